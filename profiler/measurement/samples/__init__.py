"""Samples of GPU and host over time, and what they show: use, growth, and other programs on the card."""
