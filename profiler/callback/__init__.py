"""`VramCallback`: phases by hooks of the trained model only, and torch's counters in one call."""
