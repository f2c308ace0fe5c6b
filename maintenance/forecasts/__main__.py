"""`python -m maintenance.forecasts`."""

import sys

from maintenance.forecasts.main import main

sys.exit(main())
