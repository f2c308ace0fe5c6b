"""`python -m maintenance.look_up`."""

import sys

from maintenance.look_up.main import main

sys.exit(main())
