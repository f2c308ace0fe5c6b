"""Record what each program of `script_programs.py` asks of the allocator on this card, and add it to the table.

Run once per card: ``python record_script_programs.py script_programs.json.gz``.
"""

import sys
from pathlib import Path

from memory_events import add_card, events
from script_programs import PROGRAMS, SORTS


def main(path: Path) -> None:
    """Record every program, each run once before, so that workspaces are there and kernels are compiled."""
    found = {}
    for name, program in (PROGRAMS | SORTS).items():
        program("cuda")()
        found[name] = events(program("cuda"))
    add_card(path, "script_programs", found)


main(Path(sys.argv[1]))
