"""`python -m profiler.estimate`."""

import sys

from profiler.commands import start

sys.exit(start("estimate"))
