"""`python -m profiler.advise`."""

import sys

from profiler.commands import start

sys.exit(start("advise"))
