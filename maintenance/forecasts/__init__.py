"""Runs of drawn lengths, each step emulated and forecast, and what differs."""
