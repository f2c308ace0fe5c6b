"""`python -m profiler.accuracy`."""

import sys

from profiler.accuracy.main import main

sys.exit(main())
