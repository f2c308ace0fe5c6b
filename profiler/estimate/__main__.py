"""`python -m profiler.estimate`."""

import sys

from profiler.estimate.main import main

sys.exit(main())
