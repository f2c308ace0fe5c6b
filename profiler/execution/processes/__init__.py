"""Worker processes: how they start, how they end, and what is known of them meanwhile."""
