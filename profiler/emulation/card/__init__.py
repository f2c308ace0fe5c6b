"""The emulated card: its facts, the one of the process that calls, and what a reader of its figures has to know."""
