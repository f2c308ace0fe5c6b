"""The instants of a trial, one module per recipe, found by name in `registry.py`."""
