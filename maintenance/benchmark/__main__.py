"""`python -m maintenance.benchmark`."""

import sys

from maintenance.benchmark.main import main

sys.exit(main())
