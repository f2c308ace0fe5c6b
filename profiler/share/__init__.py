"""Measured trials and trainings as rows of the benchmark (`benchmark/`), to be sent: `python -m profiler.share`."""
