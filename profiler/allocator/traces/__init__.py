"""Traces of allocations, replayed on a card: peaks by phase, categories, largest tensors and snapshots."""
