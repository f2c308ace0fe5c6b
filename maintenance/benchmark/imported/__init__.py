"""Rows that others measured, read from their files: numbers and settings only."""
