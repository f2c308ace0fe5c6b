"""What is decided and checked before the first trial starts."""
