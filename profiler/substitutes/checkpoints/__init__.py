"""Configurations, weights, tokenizers and processors in place of checkpoints that are not here."""
