"""The emulated card: as the driver reports it, marks on its figures, and what the processes of a job did with it."""

import ctypes
import json
import os
import shutil
import struct
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from profiler.domain.cards.capabilities import shared_memory
from profiler.domain.cards.card import Board, cuda_context_bytes
from profiler.domain.cards.gpu import Gpu
from profiler.domain.memory import KIB, MIB, Category, Phase
from profiler.domain.runs.other_runs import JobChange, JobMemory, JobPhase, JobProcess
from profiler.domain.runs.readings import CategoryShare
from profiler.emulation.building.library_sources import CORE_LIBRARY

UNLIMITED_BYTES = 1 << 42
"""More memory than any program takes. Not more than 4 TiB: with expandable segments torch reserves addresses for more
than a whole card, several times."""


def unlimited(gpu: Gpu) -> Gpu:
    """Return the card with more memory than any program takes."""
    return replace(gpu, memory_bytes=UNLIMITED_BYTES)


def card_description(gpu: Gpu) -> str:
    """Return a card as the emulated driver reads it: ``"name=...;memory_bytes=...;..."``."""
    major, minor = gpu.compute_capability
    shared = shared_memory(gpu.compute_capability)
    board = gpu.board or _unknown_board(gpu)
    fields = {
        "name": gpu.title.replace(";", ","),
        "memory_bytes": gpu.memory_bytes,
        "nvml_memory_bytes": max(board.nvml_mib * MIB, gpu.memory_bytes),
        "context_bytes": cuda_context_bytes(gpu.compute_capability),
        "capability_major": major,
        "capability_minor": minor,
        "multiprocessors": gpu.chip.multiprocessors,
        "shared_per_multiprocessor": shared.per_multiprocessor_bytes,
        "shared_per_block": shared.per_block_bytes,
        "l2_cache_bytes": board.l2_kib * KIB,
        "threads_per_multiprocessor": gpu.chip.threads_per_multiprocessor,
        "bus_bits": board.bus_bits,
        "ecc": int(board.counts_errors),
    }
    return ";".join(f"{key}={value}" for key, value in fields.items())


def _unknown_board(gpu: Gpu) -> Board:
    """Return the board of a card that is not in the table, such as a measured one: no part is the driver's own."""
    return Board(nvml_mib=gpu.memory_bytes // MIB, l2_kib=40_960, bus_bits=384, counts_errors=False)


def loaded_card() -> ctypes.CDLL | None:
    """Return the library of the emulated card if this process has loaded it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if path.endswith(f"/{CORE_LIBRARY}"):
            return ctypes.CDLL(f"/{path}")
    return None


def lift_limit() -> None:
    """Let the cards of this process, which must not have used them yet, have more memory than any program takes."""
    library = loaded_card()
    if library is not None:
        library.em_lift_limit()


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


RANKS_RUN = "EMULATED_RANKS_RUN"
"""Environment variable: the number of workers of each group that run; without it all do."""
RANKS_POSSIBLE = "EMULATED_RANKS_POSSIBLE"
"""Environment variable: how many such workers the machine holds; of groups with more, the workers of one engine run."""
CONTENTS_VARIABLE = "EMULATED_CONTENTS"
"""Environment variable: each process of a job keeps what it held at the peak of each phase, by category."""
STEPS_VARIABLE = "EMULATED_STEPS"
"""Environment variable: a process of a job ends after so many optimizer steps; without it none does."""
PROCESSES_VARIABLE = "EMULATED_PROCESSES"
"""Environment variable of an emulated process: the folder in which the processes of its job say what they hold."""

_SETTINGS, _CHOICE = "settings", "ranks"
"""Files of that folder: keys that a process has set for the run, and how many workers it lets run."""


def note_setting(folder: str, key: str, value: object) -> None:
    """Keep a key of a framework's configuration that is set for this run."""
    with (Path(folder) / _SETTINGS).open("a") as file:
        file.write(f"{key}={json.dumps(value)}\n")


def note_choice(folder: str, ranks: int) -> None:
    """Keep how many workers of each group run, where the command line has not said it."""
    (Path(folder) / _CHOICE).write_text(str(ranks))


def settings_of(folder: Path) -> tuple[str, ...]:
    """Return the keys that the processes of a job have set, as ``"key=value"``, each once."""
    notes = folder / _SETTINGS
    return tuple(dict.fromkeys(notes.read_text().splitlines())) if notes.is_file() else ()


def choice_of(folder: Path) -> int | None:
    """Return the number of workers that a process of a job has chosen; None if none has."""
    note = folder / _CHOICE
    return int(note.read_text()) if note.is_file() else None


_CONTENTS = "contents"
"""Folder of that folder: a file per process, with a line per end of a phase."""


def note_content(phase: Phase, shares: Iterable[CategoryShare]) -> None:
    """Keep what this process held of a card at the peak of a phase, in the folder of its job."""
    folder = Path(os.environ[PROCESSES_VARIABLE]) / _CONTENTS
    folder.mkdir(exist_ok=True)
    with (folder / str(os.getpid())).open("a") as file:
        file.write(json.dumps([phase, {each.category: each.size_bytes for each in shares}]) + "\n")


def _contents(folder: Path, pid: int) -> dict[Phase, Counter[Category]]:
    """Return the most that a process has kept of each phase; of equal ones the last, when it knew most."""
    notes = folder / _CONTENTS / str(pid)
    found: dict[Phase, Counter[Category]] = {}
    for line in notes.read_text().splitlines() if notes.is_file() else ():
        phase, sizes = json.loads(line)
        if sum(sizes.values()) >= found.get(Phase(phase), Counter()).total():
            found[Phase(phase)] = Counter({Category(each): size for each, size in sizes.items()})
    return found


_MOST_RESTS = 0.01
"""Share of a peak. Blocks have a rest of up to 1 MiB that is too small to be split off: torch's counter has it, and its
recorder does not. Less than that is another instant, as where the process did not see the end of a phase."""


def _shares(sizes: Counter[Category], allocated_bytes: int) -> tuple[CategoryShare, ...]:
    """Return what a peak consists of, with such rests; nothing of another instant, as while an engine sleeps."""
    rests = allocated_bytes - sizes.total()
    if not 0 <= rests <= _MOST_RESTS * allocated_bytes:
        return ()
    sizes[Category.OTHER] += rests
    return tuple(CategoryShare(category=each, size_bytes=sizes[each]) for each in Category if sizes[each])


_TABLE = "cards"
"""File of that folder; `driver/processes.c` writes it, and says at its beginning what is where."""

_COURSE = "course"
"""Another file of that folder; `driver/course.c` writes it."""

_LAYOUT_BYTES = 768
_CHANGE = struct.Struct("<qqqQ")
_PHASES = tuple(Phase)
_MOST_POWER = 40
"""Of two: bytes of a change that is never left out."""
_MOST_CHANGES = 20_000
"""That are kept of a job; of more the smallest are left out."""
_TRAINS, _GENERATES, _COMPUTES = 1, 2, 4
"""Bits of what a process did, as in `driver/emulated.h`."""
_ROLES = ((_TRAINS, "trains"), (_GENERATES, "generates"))


def roles_of(did: int, phases: Container[Phase] = ()) -> tuple[str, ...]:
    """Return what a process did on the cards: trains and generates, or scores if it computed without either.

    A trainer that chooses tokens in passes with gradient alone measures its accuracy by them, and generates nothing.
    """
    if Phase.BACKWARD in phases:
        did |= _TRAINS
        if Phase.ROLLOUT not in phases and Phase.SCORE not in phases:
            did &= ~_GENERATES
    found = tuple(role for bit, role in _ROLES if did & bit)
    return found or (("scores",) if did & _COMPUTES else ())


def job_of(folder: Path) -> JobMemory:
    """Return what the processes of the job in this folder have said; an empty job if there is nothing to read."""
    try:
        table = (folder / _TABLE).read_bytes()
        words = table[:_LAYOUT_BYTES].partition(b"\0")[0].decode("ascii")
        at = {name: int(value) for name, value in (word.split("=") for word in words.split(";"))}
        entries = tuple(
            _entry(table, at["first"] + number * at["each"], at, folder) for number in range(_whole(table, at["count"]))
        )
        return JobMemory(
            processes=entries,
            card_peak_bytes=_numbers(table, at["card_most"], at["cards"]),
            course=_course(folder / _COURSE, len(entries)),
        )
    except (OSError, ValueError, KeyError):
        return JobMemory()


def _entry(table: bytes, start: int, at: Mapping[str, int], folder: Path) -> JobProcess:
    def whole(name: str) -> int:
        return _whole(table, start + at[name])

    def text(name: str) -> str:
        return table[start + at[name] :][: at["text"]].partition(b"\0")[0].decode(errors="replace")

    rank, ranks, refused_on = whole("rank"), whole("ranks"), whole("refused_on")
    phases = _phases(
        _contents(folder, whole("pid")),
        *(_numbers(table, start + at[name], at["phases"]) for name in ("allocated", "reserved")),
    )
    return JobProcess(
        pid=whole("pid"),
        parent=whole("parent"),
        command=text("command"),
        rank=None if rank < 0 else rank,
        ranks=None if ranks < 0 else ranks,
        roles=roles_of(whole("did"), {each.phase for each in phases}),
        last_sentence=text("said"),
        has_ended_itself=bool(whole("ended")),
        peak_bytes=_numbers(table, start + at["most"], at["cards"]),
        refused_bytes=whole("refused"),
        refused_card=None if refused_on < 0 else refused_on,
        last_sentence_s=whole("said_ms") / 1000,
        at_worst_bytes=_numbers(table, start + at["at_most"], at["cards"]),
        at_worst_phases=tuple(_PHASES[place] for place in _numbers(table, start + at["phase_at_most"], at["cards"])),
        phases=phases,
    )


def _phases(
    contents: Mapping[Phase, Counter[Category]], allocated: Sequence[int], reserved: Sequence[int]
) -> tuple[JobPhase, ...]:
    found = zip(Phase, allocated, reserved, strict=False)  # the table has place for more
    return tuple(
        JobPhase(
            phase=phase,
            allocated_bytes=tensors,
            reserved_bytes=cache,
            shares=_shares(contents.get(phase, Counter()), tensors),
        )
        for phase, tensors, cache in found
        if cache
    )


def _course(path: Path, processes: int) -> tuple[JobChange, ...]:
    """Return the changes of the processes with an entry; one that was cut off by the end of the machine is left out."""
    words = path.read_bytes() if path.is_file() else b""
    changes = [
        JobChange(process=entry, card=card, phase=_PHASES[phase], held_bytes=held)
        for entry, card, phase, held in _CHANGE.iter_unpack(words[: len(words) // _CHANGE.size * _CHANGE.size])
        if entry < processes
    ]
    for power in range(_MOST_POWER):
        if len(changes) <= _MOST_CHANGES:
            break
        changes = _larger(changes, 1 << power)
    return tuple(changes)


def _larger(changes: Sequence[JobChange], least_bytes: int) -> list[JobChange]:
    """Return the changes of at least so many bytes since the one that is kept before it, and each return of all."""
    held: dict[tuple[int, int], int] = {}
    kept = []
    for change in changes:
        place = change.process, change.card
        before = held.get(place, -least_bytes)
        if abs(change.held_bytes - before) >= least_bytes or (before and not change.held_bytes):
            held[place] = change.held_bytes
            kept.append(change)
    return kept


def _whole(table: bytes, at: int) -> int:
    found = table[at : at + 8]
    if len(found) < 8:
        raise ValueError("the table ends before its entries")
    return int.from_bytes(found, "little", signed=True)


def _numbers(table: bytes, at: int, count: int) -> tuple[int, ...]:
    return tuple(_whole(table, at + 8 * number) for number in range(count))


_JOBS = "grpo-vram-emulated"


def processes_folder() -> str:
    """Return a folder for what the processes of this job hold; jobs of other callers do not see them."""
    memory = Path("/dev/shm")  # in memory, and gone after a restart
    parent = memory if memory.is_dir() else Path("/tmp")
    remove_ended(parent, name := f"{_JOBS}-{os.getuid()}-")
    return str(parent / f"{name}{os.getpid()}")


def remove_ended(parent: Path, name: str) -> None:
    """Remove the folders of this name and the number of a process that has ended: one that is killed leaves its own."""
    for folder in parent.glob(f"{name}*"):
        pid = folder.name.removeprefix(name)
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)
