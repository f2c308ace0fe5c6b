"""Parameters and weights of models."""
