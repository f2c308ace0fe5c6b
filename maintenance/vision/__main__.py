"""`python -m maintenance.vision`."""

import sys

from maintenance.vision.main import main

if __name__ == "__main__":
    sys.exit(main())
