"""A trial: its keys, its recipe, its optimizer, its labels, and the kernels that it needs."""
