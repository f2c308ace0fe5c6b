"""Ways to generate completions: one file per engine, found by name in `registry.py`."""
