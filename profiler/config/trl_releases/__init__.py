"""What changed between the releases of trl."""
