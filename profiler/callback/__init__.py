"""`VramCallback`."""
