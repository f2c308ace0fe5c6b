"""`python -m maintenance.accuracy`."""

import sys

from maintenance.accuracy.main import main

sys.exit(main())
