"""`python -m profiler.run`."""

import sys

from profiler.commands import start

sys.exit(start("run"))
