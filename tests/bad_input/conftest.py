"""Where the fakes of a sweep and the records of a script are."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sweep"))
sys.path.insert(0, str(Path(__file__).parents[1] / "run"))
