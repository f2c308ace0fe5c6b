"""The memory of a whole run, step by step: `python -m profiler.forecast`."""
