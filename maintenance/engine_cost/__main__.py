"""`python -m maintenance.engine_cost`."""

import sys

from maintenance.engine_cost.main import main

if __name__ == "__main__":
    sys.exit(main())
