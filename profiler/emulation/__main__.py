"""`python -m profiler.emulation`."""

import sys

from profiler.commands import start

sys.exit(start("emulation"))
