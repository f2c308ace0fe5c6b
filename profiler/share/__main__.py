"""`python -m profiler.share`."""

import sys

from profiler.commands import start

sys.exit(start("share"))
