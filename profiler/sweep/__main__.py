"""`python -m profiler.sweep`."""

import sys

from profiler.commands import start

sys.exit(start("sweep"))
