"""What each release of a trainer costs: the same jobs emulated with release after release."""
