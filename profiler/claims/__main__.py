"""`python -m profiler.claims`."""

import sys

from profiler.commands import start

sys.exit(start("claims"))
