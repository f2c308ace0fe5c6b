"""Numbers, sizes and batches that all formulas count with."""
