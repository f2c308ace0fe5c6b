"""The command that estimates the memory of a trial without running it."""
