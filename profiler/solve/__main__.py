"""`python -m profiler.solve`."""

import sys

from profiler.commands import start

sys.exit(start("solve"))
