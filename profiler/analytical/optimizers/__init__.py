"""State and scratch of the optimizers."""
