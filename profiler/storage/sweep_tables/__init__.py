"""The tables of a sweep: assembled from many records, carried over, and combined."""
