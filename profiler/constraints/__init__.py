"""Which combinations of keys are refused, where, and with which sentence."""
