"""What torch's CUDA allocator is asked for while something runs, from its own memory history; and tables of it."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def events(run: Callable[[], Any]) -> list[int]:
    """Return the requests of `run` in order: the bytes asked for, and the same bytes negative where they are freed.

    What `run` returns is freed after the last event that is returned.
    """
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=100_000, clear_history=True)
    result = run()
    entries = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(None)
    del result
    found, size_at = [], {}
    for entry in entries:
        if entry["action"] == "alloc":
            size_at[entry["addr"]] = entry["size"]
            found.append(entry["size"])
        elif entry["action"] == "free_completed":
            found.append(-size_at.get(entry["addr"], entry["size"]))
    return found


def given_back(found: list[int]) -> list[int]:
    """Return the sizes of the blocks that end within these events, in the order in which they were taken."""
    open_blocks: list[tuple[int, int]] = []
    closed: list[tuple[int, int]] = []
    for place, size in enumerate(found):
        if size > 0:
            open_blocks.append((place, size))
        else:
            block = max(block for block in open_blocks if block[1] == -size)
            open_blocks.remove(block)
            closed.append(block)
    return [size for _, size in sorted(closed)]


def add_card(path: Path, axes: Any, answers: Any) -> None:
    """Add the answers of the present card to the table at `path`; a table of other versions or axes is begun anew."""
    properties = torch.cuda.get_device_properties(0)
    table = {"torch": torch.__version__, "axes": axes, "chips": {}, "answers": {}}
    if path.exists():
        stored = json.loads(gzip.decompress(path.read_bytes()))
        if (stored["torch"], stored["axes"]) == (table["torch"], axes):
            table = stored
    table["chips"][properties.name] = [properties.major, properties.minor, properties.multi_processor_count]
    table["answers"][properties.name] = answers
    packed = json.dumps(table, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(packed, mtime=0))
    print(f"{properties.name}: the table has {len(table['chips'])} cards and {path.stat().st_size} bytes")
