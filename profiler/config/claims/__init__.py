"""The claims of public texts, as their file states them."""
