"""Models that are built for a trial, and their sizes."""
