"""Figures of memory along one or two keys."""
