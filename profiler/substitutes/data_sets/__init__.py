"""Data sets that are unavailable, replaced by rows that have the columns that are read, or answer them at run time."""
