"""The nouns of the project. Standard library only; imported by every other row."""
