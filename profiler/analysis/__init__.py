"""Stored frames to what is shown: sections, rows and cells of the comparison, and every statistic."""
