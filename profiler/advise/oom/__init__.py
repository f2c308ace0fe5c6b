"""An out-of-memory error of a log: what was refused, and why."""
