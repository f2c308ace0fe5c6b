"""`python -m profiler.monitor`."""

import sys

from profiler.commands import start

sys.exit(start("monitor"))
