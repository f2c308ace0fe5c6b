"""Record what each scenario asks of the allocator on this card, and add it to the table.

Run once per card: ``python record_scenarios.py scenarios.json.gz``. Scenarios of products run in processes of their
own, since cuBLAS keeps its workspaces.
"""

import os
import subprocess
import sys
from pathlib import Path

from memory_events import add_card, events
from scenarios import ATTENTION, AUTOCAST, KERNELS, PRODUCTS

EVERY = ATTENTION | KERNELS | AUTOCAST | PRODUCTS


def main(arguments: list[str]) -> None:
    """Record every scenario, or print the events of one."""
    if len(arguments) == 2:
        print(events(EVERY[arguments[1]]("cuda")), flush=True)
        os._exit(0)  # the CUDA libraries' own end is none of the record
    found = {}
    for name, scenario in EVERY.items():
        if name in PRODUCTS:
            alone = [sys.executable, __file__, arguments[0], name]
            printed = subprocess.run(alone, capture_output=True, text=True, check=True).stdout
            found[name] = [int(part) for part in printed.strip().strip("[]").split(",")]
        else:
            scenario("cuda")()  # makes the workspaces of both threads
            found[name] = events(scenario("cuda"))
    add_card(Path(arguments[0]), "scenarios", found)


main(sys.argv[1:])
