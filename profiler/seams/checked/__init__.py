"""Registered seams against the installed libraries."""
