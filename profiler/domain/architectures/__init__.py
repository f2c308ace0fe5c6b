"""The shapes of models, and the families that they belong to."""
