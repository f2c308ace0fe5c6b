"""Entry point of `python -m profiler.monitor`."""

import sys

from profiler.monitor.main import main

if __name__ == "__main__":
    sys.exit(main())
