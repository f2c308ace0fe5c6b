"""`python -m maintenance.campaign`."""

import sys

from maintenance.campaign.main import main

sys.exit(main())
