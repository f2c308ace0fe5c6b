"""Which combinations of keys are refused, where, and with which sentence.

One table, one row per combination: the commands that refuse it (all, a sweep, those of the closed form, or those that
ask about a card), the sentence and the hint.
"""
