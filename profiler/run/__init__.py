"""`python -m profiler.run [key=value ...] train.py [argument ...]`: any training script and its memory.

A script has no `TrialSpec` and no estimate: its records and tables are its own, and share the columns of an outcome.
An emulated script may run once more, with late events or on a card of unlimited memory.
"""
