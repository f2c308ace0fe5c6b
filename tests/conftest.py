"""Makes `tests/` importable, so that every test finds the builders in one place; and examples of hypothesis in CI."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# Where CI is set, hypothesis takes the same examples each time (its profile "ci"), so that fewer are enough.
settings.register_profile("ci", parent=settings.get_profile("ci"), max_examples=60)
