"""What a memory snapshot says besides its history: the allocator's settings, and lines of code.

A snapshot has the settings twice in `allocator_settings`: the text of the environment variable, and some of what the
allocator read from it (`THCPModule_memorySnapshot`, torch/csrc/cuda/Module.cpp). Older versions of torch write neither.

With each recorded request PyTorch stores a stack: a list of frames, innermost first, each a mapping with `filename`,
`line` and `name` (`torch.cuda.memory._record_memory_history`, which stores stacks unless `context=None`). A line of
torch makes every request, so the line of interest is the innermost one of Python outside of torch and of its library.
The threads of the backward pass have no Python; with `stacks="all"`, the default, a frame of C++ names the operation.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from profiler.allocator.alloc_conf import known_items, parse_alloc_conf
from profiler.allocator.settings import ROUNDUP_INTERVALS, AllocatorConfig
from profiler.domain.errors import Fault, UsageError

SETTINGS = "allocator_settings"
_TEXTS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_MOST_DIGITS = 6
"""Of the first MiB of an interval."""
_MOST_SPLIT_BYTES = 1 << 62
"""Larger values mean no limit: torch writes the largest `size_t`, which is -1 as a signed number."""


def recorded_config(settings: Mapping[str, Any], *, has_expandable: bool | None) -> AllocatorConfig:
    """Return the settings of a recorded run. If text and single values differ, the single values count.

    Args:
        settings: The snapshot's `allocator_settings`; empty for torch's defaults.
        has_expandable: Whether the recorded segments are expandable; None: there are none, or some are and some are
            not. It counts more than what was asked for, because not every platform has them.

    Raises:
        UsageError: A value cannot be read.
    """
    text = next((settings[key] for key in _TEXTS if settings.get(key)), "")
    if not isinstance(text, str):
        raise _fault(_TEXTS[0], text, "must be a text")
    try:
        # Keys unknown to this version of torch are left out; the comparison shows whether they mattered.
        config = parse_alloc_conf(known_items(text))
    except UsageError as error:
        raise UsageError([replace(fault, key=f"{SETTINGS}.{_TEXTS[0]}") for fault in error.faults]) from error
    changes: dict[str, Any] = {}
    if "max_split_size" in settings:
        size = _whole(settings, "max_split_size")
        changes["max_split_bytes"] = size if 0 < size < _MOST_SPLIT_BYTES else None
    if "garbage_collection_threshold" in settings:
        changes["garbage_collection_threshold"] = _ratio(settings, "garbage_collection_threshold")
    if "expandable_segments" in settings:
        changes["expandable_segments"] = settings["expandable_segments"] is True
    if "roundup_power2_divisions" in settings:
        changes["roundup_power2_divisions"] = _divisions(settings["roundup_power2_divisions"])
    if has_expandable is not None:
        changes["expandable_segments"] = has_expandable
    return replace(config, **changes)


def _whole(settings: Mapping[str, Any], key: str) -> int:
    value = settings[key]
    if isinstance(value, int):
        return int(value)
    raise _fault(key, value, "must be a whole number")


def _ratio(settings: Mapping[str, Any], key: str) -> float:
    value = settings[key]
    if isinstance(value, int | float) and 0 <= value < 1:
        return float(value)
    raise _fault(key, value, "must be a number from 0 and below 1")


def _divisions(value: object) -> tuple[int, ...]:
    """Return the divisions by interval of ``{"1": 0, "2": 0, "4": 4, ...}``: keys: first MiB of an interval."""
    if isinstance(value, Mapping):
        found = [
            (key, number)
            for key, number in value.items()
            if isinstance(key, str) and key.isdecimal() and len(key) <= _MOST_DIGITS
        ]
        numbers = [number for _, number in sorted(found, key=lambda item: int(item[0]))][:ROUNDUP_INTERVALS]
        if all(isinstance(number, int) and number >= 0 and number.bit_count() <= 1 for number in numbers):
            return tuple(numbers) + (0,) * (ROUNDUP_INTERVALS - len(numbers))
    raise _fault("roundup_power2_divisions", value, "must be powers of two by interval")


def _fault(key: str, found: object, problem: str) -> UsageError:
    shown = repr(found) if isinstance(found, str | float | bool) else f"value of type {type(found).__name__}"
    return UsageError([Fault(key=f"{SETTINGS}.{key}", found=shown[:80], problem=problem)])


OPERATION, MODULE, CATEGORY = "operation", "module", "category"
"""Names of the frames that a simulated snapshot has in place of lines."""

_MOST_FRAMES = 1000
"""Frames of a stack that are read: Python's own limit on recursion."""
_MOST_CHARACTERS = 400
_SHOWN_PARTS = 3
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_OWN_OF_PYTHON = re.compile(r"/lib/python3\.\d+/(?!site-packages|dist-packages)|^<frozen ")
_BACKWARD = re.compile(r"(\w+Backward\d*)\b")
_LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, kw_only=True, order=True)
class CodeLine:
    """A line of code, or what stands for it where there is none."""

    file: str
    """Path as recorded; empty without a line."""
    line: int
    function: str
    """Name of the function; without a line, what is known of the request."""

    def __str__(self) -> str:
        return f"{short_path(self.file)}:{self.line} {self.function}" if self.file else self.function


def short_path(path: str) -> str:
    """Return a path from the installed package on, or else its last parts.

    By hand: ``/opt/env/lib/python3.11/site-packages/trl/models/utils.py`` is ``trl/models/utils.py``.
    """
    parts = PurePosixPath(path.replace("\\", "/")).parts
    installed = [place for place, part in enumerate(parts) if part in _INSTALLED]
    return "/".join(parts[installed[-1] + 1 :] if installed else parts[-_SHOWN_PARTS:]).removeprefix("/")


class CodeLines:
    """Reader of the stacks of one snapshot. Frames and stacks are shared within a pickle, so each is read once.

    It refers to objects by their identity: the snapshot must exist as long as the reader.
    """

    def __init__(self) -> None:
        self._of_stack: dict[int, CodeLine | None] = {}
        self._of_frame: dict[int, CodeLine | None] = {}
        self._known: dict[CodeLine, CodeLine] = {}

    def of(self, raw: Mapping[str, Any]) -> CodeLine | None:
        """Return the line of an entry or a block; None if it has no stack, or one that says nothing."""
        frames = raw.get("frames")
        if not isinstance(frames, list | tuple) or not frames:
            return None
        if id(frames) not in self._of_stack:
            found = self._innermost(frames[:_MOST_FRAMES])
            self._of_stack[id(frames)] = None if found is None else self._known.setdefault(found, found)
        return self._of_stack[id(frames)]

    def _innermost(self, frames: Sequence[object]) -> CodeLine | None:
        for frame in frames:
            if id(frame) not in self._of_frame:
                self._of_frame[id(frame)] = _telling_line(frame)
            found = self._of_frame[id(frame)]
            if found is not None:
                return found
        return _simulated(frames) or _backward(frames)


def _telling_line(frame: object) -> CodeLine | None:
    """Return the line of a frame of Python that belongs neither to torch nor to Python's own library."""
    if not isinstance(frame, Mapping):
        return None
    file, line = frame.get("filename"), frame.get("line")
    if not isinstance(file, str) or not isinstance(line, int) or line < 1:
        return None
    path = file.replace("\\", "/")
    if not (path.endswith(".py") or (path.startswith("<") and path.endswith(">"))) or _OWN_OF_PYTHON.search(path):
        return None
    if _is_of_torch(PurePosixPath(path).parts):
        return None
    return CodeLine(file=file[-_MOST_CHARACTERS:], line=line, function=_name(frame))


def _is_of_torch(parts: Sequence[str]) -> bool:
    """Whether a path belongs to an installed torch, or to one that runs from its source tree."""
    places = [place for place, part in enumerate(parts[:-1]) if part == "torch" and place]
    return any(parts[place - 1] in _INSTALLED or parts[place - 1].startswith("pytorch") for place in places)


def _name(frame: Mapping[str, Any]) -> str:
    name = frame.get("name")
    return name[:_MOST_CHARACTERS] if isinstance(name, str) else ""


def _backward(frames: Sequence[object]) -> CodeLine | None:
    """Return the operation of autograd that a stack without Python names."""
    for frame in frames:
        found = _BACKWARD.search(_name(frame)) if isinstance(frame, Mapping) else None
        if found is not None:
            return CodeLine(file="", line=0, function=f"backward pass: {found[1]}")
    return None


def _simulated(frames: Sequence[object]) -> CodeLine | None:
    """Return what a simulated snapshot says of a tensor: category, module (layers as ``*``) and operation."""
    said = {
        frame.get("filename"): _name(frame)
        for frame in frames
        if isinstance(frame, Mapping) and isinstance(frame.get("filename"), str)
    }
    if CATEGORY not in said:
        return None
    parts = (said[CATEGORY], _LAYER.sub("*", said.get(MODULE, "")), said.get(OPERATION, ""))
    return CodeLine(file="", line=0, function=", ".join(part for part in parts if part))
