"""The process of a user's script."""
