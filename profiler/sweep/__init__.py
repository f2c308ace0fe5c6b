"""The command `python -m profiler.sweep +grid=NAME [key=value ...]`."""
