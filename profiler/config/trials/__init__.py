"""Trials: untyped keys to specifications, grids to trials, and the identity of each."""
