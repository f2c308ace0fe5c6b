"""`python -m profiler.campaign`."""

import sys

from profiler.campaign.main import main

sys.exit(main())
