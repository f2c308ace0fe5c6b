"""Memory of one GPU of several."""
