"""The page of a sweep that opens from disk: one file, without a network."""
