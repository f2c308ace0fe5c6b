"""Record what `torch.cuda.memory_stats` counts during random requests, and add it to a table by allocator settings.

Run once per setting on the same card: ``PYTORCH_ALLOC_CONF=max_split_size_mb:21 python record_counters.py
counters.json.gz``. The last requests fill the card.
"""

import gzip
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import torch

ACTIONS = {
    "empty_cache": torch.cuda.empty_cache,
    "reset_peaks": torch.cuda.reset_peak_memory_stats,
    "reset_accumulated": torch.cuda.reset_accumulated_memory_stats,
}
STEPS, BETWEEN_COUNTS = 240, 30


def main(path: Path) -> None:
    """Record and write."""
    table = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    table[os.environ.get("PYTORCH_ALLOC_CONF", "")] = _recorded(random.Random(7))
    path.write_bytes(gzip.compress(json.dumps(table, separators=(",", ":")).encode(), mtime=0))


def _recorded(choices: random.Random) -> list[list[Any]]:
    """Return steps: ["allocate", number, bytes], ["free", number], an action, and the counters as ["counts", ...]."""
    live: dict[int, torch.Tensor] = {}
    found: list[list[Any]] = []
    for step in range(STEPS):
        action = choices.choices([*ACTIONS, "allocate", "free"], [2, 1, 1, 50, 46])[0]
        if action in ACTIONS:
            ACTIONS[action]()
            found.append([action])
        elif action == "free" and live:
            number = choices.choice(list(live))
            del live[number]
            found.append(["free", number])
        else:
            size = int(2 ** choices.uniform(0, 26))
            live[step] = torch.empty(size, dtype=torch.uint8, device="cuda")
            found.append(["allocate", step, size])
        if step % BETWEEN_COUNTS == 0:
            found.append(["counts", dict(torch.cuda.memory_stats())])
    size = torch.cuda.get_device_properties(0).total_memory
    found.append(["refused", size])
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        found.append(["counts", dict(torch.cuda.memory_stats())])
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
