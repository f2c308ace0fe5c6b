"""One decoder layer, with and without gradient."""
