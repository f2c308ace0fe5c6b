"""What to change so that training fits a card: `python -m profiler.advise`."""
