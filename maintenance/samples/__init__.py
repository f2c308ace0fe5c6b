"""Trials that are drawn, listed or kept."""
