"""Replayed histories."""
