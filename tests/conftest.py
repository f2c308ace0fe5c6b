"""Makes `tests/` importable, so that every test finds the builders in one place."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
