"""What a reader of emulated figures has to know: unknown values that were read, assumptions, unseen entry points."""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from profiler.emulation.card.loaded_card import loaded_card

FILE_VARIABLE = "EMULATED_MARKS"
"""Environment variable of an emulated process: a file to which each of its marks is appended when it is first made."""

_VALUE, _ASSUMPTION, _ENTRY_POINT = "value", "assumption", "entry point"
"""Kinds of marks, as the driver writes them. Others are left out: operators that the CPU refused, and floats that the
host read, which are printed or logged, and steer nothing that decides memory."""


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The marks of one process or job."""

    values_read: tuple[str, ...] = ()
    """Integers and booleans that the host read although a real card would have computed them, by type and operator."""
    assumptions: tuple[str, ...] = ()
    """Such as balanced experts."""
    unseen_entry_points: tuple[str, ...] = ()
    """Entry points of the driver without an answer that were called, with `strict=False`."""

    @property
    def values(self) -> str:
        """``"complete"``, or the names of `values_read`, separated by commas."""
        return ", ".join(self.values_read) or "complete"


def marks_of_file(path: Path) -> Marks:
    """Return the marks of all processes of a job whose `FILE_VARIABLE` named this file; none if there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return _marks(line.split("\t")[1:3] for line in lines)


def marks_of_this_process() -> Marks | None:
    """Return the marks of the process that calls, since `forget_marks`; None if it is not emulated."""
    library = loaded_card()
    if library is None:
        return None
    text = ctypes.create_string_buffer(1 << 17)
    library.em_marks(text, len(text))
    return _marks(line.split("\t")[:2] for line in text.value.decode(errors="replace").splitlines())


def forget_marks() -> None:
    """Forget the marks of the process that calls, such as those of a parent before a fork."""
    library = loaded_card()
    if library is not None:
        library.em_forget_marks()


def _marks(pairs: Iterable[list[str]]) -> Marks:
    found: dict[str, list[str]] = {_VALUE: [], _ASSUMPTION: [], _ENTRY_POINT: []}
    for kind, name in pairs:
        if kind in found and name not in found[kind]:
            found[kind].append(name)
    return Marks(
        values_read=tuple(found[_VALUE]),
        assumptions=tuple(found[_ASSUMPTION]),
        unseen_entry_points=tuple(found[_ENTRY_POINT]),
    )
