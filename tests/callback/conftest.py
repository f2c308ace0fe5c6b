"""Where the scripted driver is."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "measurement"))
