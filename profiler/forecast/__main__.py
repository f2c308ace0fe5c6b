"""`python -m profiler.forecast`."""

import sys

from profiler.commands import start

sys.exit(start("forecast"))
