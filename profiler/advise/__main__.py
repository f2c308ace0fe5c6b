"""`python -m profiler.advise`."""

import sys

from profiler.advise.main import main

sys.exit(main())
