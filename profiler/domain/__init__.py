"""The nouns of the project. Standard library only; imported by every other row.

Units (the only place that says 1024), errors and exit codes, phases and categories, the specification of a trial, its
outcome, labels. Cards, compute capabilities, model families, built-in models and optimizers have one row each. The
keys of a trial are declared once, as fields of `TrialSpec`: reading, identity, order, schema, docs/columns.md and the
arrays of the closed form derive from them. Text of others reaches a terminal through `text.py` only.
"""
