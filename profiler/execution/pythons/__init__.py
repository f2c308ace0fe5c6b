"""The Python programs that workers run in."""
