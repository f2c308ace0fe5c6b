"""The command `python -m profiler.sweep +grid=NAME [key=value ...]`."""

from profiler.sweep.main import main

__all__ = ["main"]
