"""The parts of a memory snapshot that a replay reads; small enough to store."""

from collections.abc import Iterable, Mapping
from typing import Any

_OF_ENTRIES = ("action", "addr", "device_free", "size", "stream")
_OF_SEGMENTS = ("address", "stream", "segment_type", "segment_pool_id", "is_expandable")
_OF_BLOCKS = ("size", "requested_size", "state")


def essentials(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts that `replay_recorded` reads of the first device, in the format of a snapshot."""
    return {
        "device_traces": [[_chosen(entry, _OF_ENTRIES) for entry in snapshot["device_traces"][0]]],
        "segments": [
            _chosen(segment, _OF_SEGMENTS) | {"blocks": [_chosen(block, _OF_BLOCKS) for block in segment["blocks"]]}
            for segment in snapshot["segments"]
            if segment.get("device", 0) == 0
        ],
        "allocator_settings": dict(snapshot.get("allocator_settings", {})),
    }


def _chosen(values: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: values[key] for key in keys if key in values}
