import sys
from pathlib import Path

for folder in ("measurement", "sweep"):  # where `scripted` and `sweep_fakes` are
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
