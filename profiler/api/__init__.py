"""The Python API, as `import grpo_vram`: estimates, their inversion and advice, without the command line.

Sizes are integers of bytes. All answers are estimated, in closed form; `UsageError` carries every fault of the input.
"""

from profiler.api.answers import Estimate, Limit, Recommendation, SmallestCard, advise, estimate, smallest_card, solve
from profiler.api.job import Job, read_recipe
from profiler.domain.errors import UsageError

__all__ = [
    "Estimate",
    "Job",
    "Limit",
    "Recommendation",
    "SmallestCard",
    "UsageError",
    "advise",
    "estimate",
    "read_recipe",
    "smallest_card",
    "solve",
]
