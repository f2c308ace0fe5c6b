"""`python -m maintenance.releases`."""

import sys

from maintenance.releases.main import main

sys.exit(main())
