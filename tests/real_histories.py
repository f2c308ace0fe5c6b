"""Histories that others recorded on real cards, read from outside of the checkout; also our own, in the same format.

`RECORDED_HISTORIES` names their folder (default `../shared/recorded_histories`, relative to the checkout): for each
`NAME` of its `manifest.json` there are `NAME.entries.parquet` and `NAME.blocks.parquet`.
"""

import json
import os
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

CHECKOUT = Path(__file__).parents[1]
FOLDER = CHECKOUT / os.environ.get("RECORDED_HISTORIES", "../shared/recorded_histories")
EMULATED = CHECKOUT / "tests" / "allocator" / "emulated"
MEASURED = CHECKOUT / "tests" / "allocator" / "measured"
"""Our own histories of a real card."""

MISSING = f"there are no recorded histories at {FOLDER}; RECORDED_HISTORIES names another folder"


def manifest(folder: Path = FOLDER) -> list[dict[str, Any]]:
    path = folder / "manifest.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def snapshot_of(about: dict[str, Any], folder: Path = FOLDER) -> dict[str, Any]:
    """A history in the format of `torch.cuda.memory._snapshot()`."""
    entries = pq.read_table(folder / f"{about['name']}.entries.parquet").to_pylist()
    blocks = pq.read_table(folder / f"{about['name']}.blocks.parquet").to_pylist()
    return {
        "device_traces": [[_renamed(entry) for entry in entries]],
        "segments": [_segment(list(rows)) for _, rows in groupby(blocks, key=lambda row: row["segment_address"])],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": about["alloc_conf"]},
    }


def _renamed(entry: dict[str, Any]) -> dict[str, Any]:
    key = "device_free" if entry["action"] == "oom" else "addr"
    return {"action": entry["action"], key: entry["address"], "size": entry["size"], "stream": entry["stream"]}


def _segment(rows: list[dict[str, Any]]) -> dict[str, Any]:
    kept = {key: rows[0][key] for key in ("device", "stream", "segment_type", "is_expandable")}
    blocks = [
        {"address": row["block_address"], "size": row["block_size"]}
        | {key: row[key] for key in ("requested_size", "state")}
        for row in rows
    ]
    return kept | {"address": rows[0]["segment_address"], "total_size": rows[0]["segment_size"], "blocks": blocks}
