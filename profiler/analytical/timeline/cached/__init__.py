"""Memory that is reserved and not allocated."""
