"""Sampled trials, each emulated and simulated, and what differs between both."""
