"""`python -m profiler.seams`."""

import sys

from profiler.commands import start

sys.exit(start("seams"))
