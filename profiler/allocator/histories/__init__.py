"""Memory snapshots of real cards: read, replayed without tolerance, and asked about other settings and cards."""
