"""Text in and out: counts, sums, and foreign text."""
