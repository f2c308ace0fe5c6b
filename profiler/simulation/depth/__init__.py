"""Trials of a stack of equal layers that run with few layers and are continued to all of them.

A trial runs with two small depths. What the deeper one has in addition is one layer's part of each phase; the trace is
continued to the real depth by repeating it. The result is exact or there is none: layers that are not proven equal
(`uniformity.py`), an addition that is no repetition (`continuation.py`) and a continued trace that frees another block
than it allocated (`continuation.py`) all make the trial run with all its layers.
"""
