"""Rows, prompts and tokens that a trial trains on."""
