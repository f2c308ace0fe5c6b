"""The report of a sweep: its page, its tables, and its changes."""
