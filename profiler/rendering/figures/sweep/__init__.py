"""Figures of a section of a sweep."""
