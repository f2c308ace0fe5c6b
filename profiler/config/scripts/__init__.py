"""Training scripts and notebooks, read without running them."""
