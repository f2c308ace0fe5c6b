"""Trials of a stack of equal layers that run with few layers and are continued to all of them.

A trial runs with three layers. The middle one's part of each phase is repeated up to the real depth. The result is
exact or there is none: layers that are not proven equal (`uniformity.py`), a part that repeats nothing and a continued
trace that frees another block than it allocated (`continuation.py`) all make the trial run with all its layers.
"""
