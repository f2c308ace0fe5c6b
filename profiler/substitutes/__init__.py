"""Substitutes for what a training script loads and this machine does not have: weights, tokenizers and data sets.

`substitutes` replaces the functions by which scripts load them, for the length of a run. What was replaced is collected
in a `Replaced`, whose line is the first one of the report. Memory depends on shapes and lengths, which the substitutes
have from the model's configuration and from the options.
"""

from profiler.substitutes.active import substitutes
from profiler.substitutes.options import SubstituteOptions
from profiler.substitutes.replaced import Replaced

__all__ = ["Replaced", "SubstituteOptions", "substitutes"]
