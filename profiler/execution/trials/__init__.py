"""Trials without an answer: which must run, which wait, and which this sweep has locked."""
