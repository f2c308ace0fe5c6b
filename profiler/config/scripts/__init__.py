"""Training scripts, read without running them."""
