"""The largest setting that fits a card: `python -m profiler.solve`."""
