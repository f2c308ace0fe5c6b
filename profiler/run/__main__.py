"""Entry point of `python -m profiler.run`."""

import sys

from profiler.run.main import main

if __name__ == "__main__":
    sys.exit(main())
