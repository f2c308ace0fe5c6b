"""The largest tensors on the card at one instant, by their name in the model and by the line that made them.

A snapshot of torch's allocator has the Python stack of each block in use. torch runs backward passes on a thread
without one, so gradients have no line; a parameter's gradient and its optimizer states have a name all the same.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from profiler.domain.runs.other_runs import HeldTensors

_MOST = 10
_LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_IN_USE = "active_allocated"


@dataclass(frozen=True, kw_only=True)
class KnownObjects:
    """What is known of the program at that instant."""

    script: Path
    models: Iterable[Any]
    optimizers: Iterable[Any]


def largest_held(snapshot: Mapping[str, Any], known: KnownObjects) -> tuple[HeldTensors, ...]:
    """Return the groups of blocks with the most bytes in `snapshot`, largest first."""
    names = names_by_address(known)
    return _grouped(((size, names.get(address, ""), frames) for address, size, frames in _blocks(snapshot)), known)


def largest_at_peak(
    snapshot: Mapping[str, Any], known: KnownObjects, names: Mapping[tuple[int, int], str]
) -> tuple[HeldTensors, ...]:
    """Return the groups of blocks with the most bytes when the recorded history has most in use, largest first.

    Args:
        snapshot: With the whole history of the program.
        known: The script.
        names: Names of parameters, gradients and states by address and bytes, as they were during the run.
    """
    entries = [entry for entry in snapshot["device_traces"][0] if entry["action"] in (_ALLOC, _FREE)]
    live: dict[int, Mapping[str, Any]] = {}
    total = most = place_of_most = 0
    for place, entry in enumerate(entries, start=1):
        total += _apply(entry, live)
        if total > most:
            most, place_of_most = total, place
    live.clear()
    for entry in entries[:place_of_most]:
        _apply(entry, live)
    found = (
        (each["size"], names.get((each["addr"], each["size"]), ""), each.get("frames", [])) for each in live.values()
    )
    return _grouped(found, known)


_ALLOC, _FREE = "alloc", "free_completed"


def _apply(entry: Mapping[str, Any], live: dict[int, Mapping[str, Any]]) -> int:
    """Apply an entry of the history to what is in use, and return by how many bytes that grows."""
    if entry["action"] == _ALLOC:
        live[entry["addr"]] = entry
        return int(entry["size"])
    freed = live.pop(entry["addr"], None)
    return -int(freed["size"]) if freed else 0


def _grouped(
    blocks: Iterable[tuple[int, str, Iterable[Mapping[str, Any]]]], known: KnownObjects
) -> tuple[HeldTensors, ...]:
    """Return the largest groups of blocks with the same name, or else from the same lines."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for size, name, frames in blocks:
        line, library = ("", "") if name else _places(frames, known.script)
        group = groups.setdefault((name, line, library), [0, 0])
        group[0] += size
        group[1] += 1
    found = (
        HeldTensors(size_bytes=size, tensors=tensors, name=name, line=line, library=library)
        for (name, line, library), (size, tensors) in groups.items()
    )
    return tuple(sorted(found, key=lambda group: (-group.size_bytes, group.name, group.line, group.library))[:_MOST])


def _blocks(snapshot: Mapping[str, Any]) -> Iterator[tuple[int, int, list[Mapping[str, Any]]]]:
    """Yield address, bytes and stack of each block in use; the stack begins with the innermost line."""
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == _IN_USE:
                yield block.get("address", address), block.get("requested_size", block["size"]), block.get("frames", [])
            address += block["size"]


def names_by_address(known: KnownObjects) -> dict[int, str]:
    """Return the names of parameters, buffers, gradients and optimizer states, layers as ``*``, by their address."""
    return {address: name for (address, _), name in names_by_place(known).items()}


def names_by_place(known: KnownObjects) -> dict[tuple[int, int], str]:
    """Return these names by address and bytes."""
    found: dict[tuple[int, int], str] = {}
    parameters: dict[int, str] = {}
    for model in known.models:
        for name, parameter in model.named_parameters():
            parameters[id(parameter)] = _LAYER.sub("*", name)
            _note(found, parameter, parameters[id(parameter)])
            _note(found, parameter.grad, f"gradient of {parameters[id(parameter)]}")
        for name, buffer in model.named_buffers():
            _note(found, buffer, _LAYER.sub("*", name))
    for optimizer in known.optimizers:
        for parameter, states in optimizer.state.items():
            for state, value in states.items():
                _note(found, value, f"{state} of {parameters.get(id(parameter), 'a parameter')}")
    return found


def _note(found: dict[tuple[int, int], str], tensor: Any, name: str) -> None:
    if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = local.untyped_storage()
        found.setdefault((storage.data_ptr(), storage.nbytes()), name)


def _places(frames: Iterable[Mapping[str, Any]], script: Path) -> tuple[str, str]:
    """Return the innermost line of the script's folder, and the innermost line of a library that is not torch."""
    line = library = ""
    for frame in frames:
        path = Path(frame["filename"])
        if not line and _is_own(path, script):
            return _place(path, frame), library
        if not library and _is_of_library(path):
            library = _place(path, frame)
    return line, library


def _is_own(path: Path, script: Path) -> bool:
    return path == script or (script.parent in path.parents and "site-packages" not in path.parts)


def _is_of_library(path: Path) -> bool:
    parts = path.parts
    if "site-packages" not in parts:
        return False
    return parts[parts.index("site-packages") + 1] not in _NOT_TELLING


_NOT_TELLING = ("torch",)
"""Every tensor is made by a line of these packages."""


def _place(path: Path, frame: Mapping[str, Any]) -> str:
    return f"{path.name}:{frame['line']}"
