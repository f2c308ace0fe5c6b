"""`python -m profiler`: list the commands."""

import sys

from profiler.console import main

sys.exit(main())
