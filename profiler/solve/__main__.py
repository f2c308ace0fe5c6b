"""`python -m profiler.solve`."""

import sys

from profiler.solve.main import main

sys.exit(main())
