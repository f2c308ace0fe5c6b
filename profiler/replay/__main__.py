"""`python -m profiler.replay`."""

import sys

from profiler.commands import start

sys.exit(start("replay"))
