"""Answers of solve and advise."""
