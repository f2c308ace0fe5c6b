"""A user's script on the simulated GPU: the names and calls by which a script uses a card, answered by `meta`.

Its counters come from a replay of the trace as it grows. What a script reads and nobody knows is named.
"""
