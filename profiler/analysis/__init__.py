"""From stored frames to a `SweepReport`: the sections, rows and cells of the comparison, and every statistic."""
