"""What to change so that training fits a card: `python -m profiler.advise`.

Levers are declared once each; a search finds those that are needed. An out-of-memory error is matched with what torch
says in it, and its job is simulated.
"""
