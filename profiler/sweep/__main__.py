"""`python -m profiler.sweep`."""

import sys

from profiler.sweep.main import main

sys.exit(main())
