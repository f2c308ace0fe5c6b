"""Figures of one run: its phases and its course."""
