"""The memory of a whole run: lengths of its rows, what logs say of them, whether it survives, and leaks."""
