"""Figures: each function takes what analysis found and returns a matplotlib figure; `files` turns it into bytes."""
