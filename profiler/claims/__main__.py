"""`python -m profiler.claims`."""

import sys

from profiler.claims.main import main

sys.exit(main())
