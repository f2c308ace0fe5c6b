"""The data of the built-in models, by family."""
