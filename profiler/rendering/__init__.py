"""From a `SweepReport` to a table in the terminal, pages and figures. Computes no statistics."""
