"""Recipes: what is specific to one trainer of trl. One module or folder per recipe, found by name in `registry.py`."""
