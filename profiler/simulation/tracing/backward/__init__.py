"""What autograd does differently in place, and in Python."""
