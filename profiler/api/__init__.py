"""The Python API, as `import grpo_vram`: estimates, their inversion and advice, without the command line.

Sizes are integers of bytes. All answers are estimated, in closed form; `UsageError` carries every fault of the input.
"""

from profiler.api.advice import Recommendation, advise
from profiler.api.estimate import Estimate, estimate
from profiler.api.job import Job, read_recipe
from profiler.api.limits import Limit, SmallestCard, smallest_card, solve
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
