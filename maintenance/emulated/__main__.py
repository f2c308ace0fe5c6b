"""`python -m maintenance.emulated`."""

import sys

from maintenance.emulated.main import main

sys.exit(main())
