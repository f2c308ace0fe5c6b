"""`python -m profiler.report`."""

import sys

from profiler.report.main import main

sys.exit(main())
