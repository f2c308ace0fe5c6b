"""`python -m profiler.report`."""

import sys

from profiler.commands import start

sys.exit(start("report"))
