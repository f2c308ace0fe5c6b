"""Makes the workers of the runner's tests importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "execution"))
