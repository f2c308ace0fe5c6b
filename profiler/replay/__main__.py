"""`python -m profiler.replay`."""

import sys

from profiler.replay.main import main

sys.exit(main())
