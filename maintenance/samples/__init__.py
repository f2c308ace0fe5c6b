"""Trials that are drawn or listed, to be run."""
