"""A user's script on the simulated GPU: the names and calls by which a script uses a card, answered by `meta`."""
