"""The seams of each library, as data."""
