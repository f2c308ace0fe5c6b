"""Why a request was refused, by the sizes of the message alone, whose the memory was, and simulated requests.

Whose the memory of a card was at an out-of-memory error: this program's, or that of other processes.

torch calls a process "this process" only if NVML lists it by the number that it has itself. In a container it has
another one, so that its own memory is printed as that of "Process 6123". The sums of the message say more than
numbers of processes do: what is in use on the card is that of all processes, and this program has at least what its
allocator took from the driver.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from profiler.allocator.oom_message import OomMessage
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.machines.extras import safe_path_flags
from profiler.domain.memory import GIB, MIB, Phase, gib_text
from profiler.domain.runs.step_shape import LargeRequest
from profiler.domain.trials.trial import TrialSpec

ROUNDING_BYTES = 24 * MIB
"""How far sums of sizes with two digits in GiB can be apart: half of the last digit, four times."""

OUTSIDE_BYTES = 3 * GIB
"""Most memory that a program is taken to have outside of PyTorch's allocator (our choice): a CUDA context has at most
0.7 GiB (`domain/cards/card.py`), buffers of NCCL and of libraries come on top. As much may be in use by what NVML
does not list as a process that computes: a desktop, the driver."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Memory of a card that is not this program's, as bounds."""

    least_others_bytes: int
    most_others_bytes: int
    """Equal to the least if the message decides it."""
    others: int | None
    """How many other processes the message lists; None if it does not tell them from this program."""
    is_named: bool
    """Whether torch itself names the memory of this program."""


def shares(message: OomMessage) -> Shares | None:
    """Return whose the memory of the card was; None if the message does not have the sums.

    By hand, 79.10 GiB of which 1.43 are free, 75.86 reserved, and "Process 6123 has 77.66 GiB": another process next to
    a program of 75.86 would not fit, so 6123 is the program.
    """
    total, free, reserved = message.total_bytes, message.free_bytes, message.reserved_bytes
    if total is None or free is None or reserved is None or free > total:
        return None
    in_use = total - free
    listed = [size for size in message.processes_bytes if 0 < size <= total]
    own = message.in_use_bytes
    if own is not None and _is_possible(own, total=total, reserved=min(reserved, in_use)):
        least = max(sum(listed), in_use - own - OUTSIDE_BYTES)
        return _shares(least, max(least, in_use - own), others=len(listed) or None, is_named=True)
    return _unnamed(in_use, reserved, listed)


def _unnamed(in_use: int, reserved: int, listed: Sequence[int]) -> Shares:
    """Return the shares where torch does not name this program.

    Args:
        in_use: Memory of all processes on the card.
        reserved: What this program's allocator took from the driver.
        listed: Memory of the processes that the message lists.
    """
    whole = max(in_use, sum(listed))
    # This program is one of the listed processes, or what none of them has.
    unlisted = [whole - sum(listed)] if listed else []
    possible = [size for size in (*listed, *unlisted) if size + ROUNDING_BYTES >= reserved]
    likely = [size for size in possible if size <= reserved + OUTSIDE_BYTES] or possible
    if not likely:
        return _shares(whole - reserved - OUTSIDE_BYTES, whole - reserved, others=None)
    is_listed = sum(listed) + reserved > whole + ROUNDING_BYTES
    count = len(listed) - 1 if is_listed else None if any(size in listed for size in likely) else len(listed)
    return _shares(whole - max(likely), whole - min(likely), others=count)


def _is_possible(own: int, *, total: int, reserved: int) -> bool:
    """Return whether a program can have `own` bytes. Under Windows and WSL, NVML says 2**64 - 1, or nothing."""
    return 0 < own <= total and own + ROUNDING_BYTES >= reserved


def _shares(least: int, most: int, *, others: int | None, is_named: bool = False) -> Shares:
    """Return bounds, where what rounding may explain is nothing."""
    bounds = [size if size > ROUNDING_BYTES else 0 for size in (least, most)]
    return Shares(least_others_bytes=bounds[0], most_others_bytes=bounds[1], others=others, is_named=is_named)


_OTHERS_PART = 0.02
"""Part of a card from which the memory of other processes is worth a word."""

_DRIVER_BYTES = 64 * MIB
"""Most free memory that the driver is taken to need for itself when it serves a request (our choice)."""

_ASK_DRIVER = "`nvidia-smi` shows the processes of the card"


class Cause(StrEnum):
    """Why a request was refused."""

    NEED = "need"
    """The card has too little memory for what was in use and the request."""
    FRAGMENTS = "fragmentation"
    """There was enough memory, but not in one piece."""
    OTHERS = "other processes"
    """There would have been enough memory without the other processes on the card."""
    LIMIT = "limit"
    """The card had the memory free, but the program or its driver may not have it."""
    UNKNOWN = "unknown"
    """The message does not have the sizes."""


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Why the card refused a request."""

    cause: Cause
    sentence: str
    others: Shares | None = None
    """Whose the memory of the card was; None if the message does not have the sums."""


def explained(message: OomMessage) -> Explained:
    """Return why the request was refused.

    By hand, 1.90 GiB requested, 1.28 free and 2.41 cached but unused: 3.69 GiB were there, in pieces.
    """
    requested, free = message.requested_bytes, message.free_bytes
    if requested is None or free is None:
        return Explained(cause=Cause.UNKNOWN, sentence=_absent(message))
    limit = _own_limit(message, requested)
    if limit is not None:
        return limit
    if free >= requested:
        return _although_free(message, requested, free)
    if message.unallocated_bytes is None:
        return Explained(cause=Cause.UNKNOWN, sentence=f"{_absent(message)} So memory or one piece of it was missing.")
    return _missing(message, requested - free, message.unallocated_bytes, shares(message))


def _absent(message: OomMessage) -> str:
    """Return which of the sizes that decide are absent."""
    if message.requested_bytes is None:
        if message.requested_text:
            return "The request is for more than 2**60 bytes: a size or a shape is wrong, and no card is the reason."
        return "The message does not say how much was requested."
    absent = [
        name
        for name, size in (("free", message.free_bytes), ("cached but unused", message.unallocated_bytes))
        if size is None
    ]
    return f"The message does not say how much memory was {' or '.join(absent)}."


def _own_limit(message: OomMessage, requested: int) -> Explained | None:
    """Return the limit that the program set itself, if the request would pass it."""
    allowed, reserved = message.allowed_bytes, message.reserved_bytes
    if allowed is None or (reserved is not None and reserved + requested + ROUNDING_BYTES <= allowed):
        return None
    held = f", of which PyTorch had {gib_text(reserved, 2)}" if reserved is not None else ""
    said = f"the program may take {gib_text(allowed, 2)} of the card{held}, whatever the card has free."
    return Explained(cause=Cause.LIMIT, sentence=f"Limit: {said}", others=shares(message))


def _although_free(message: OomMessage, requested: int, free: int) -> Explained:
    """Return why a request is refused that is smaller than the free memory."""
    found = shares(message)
    if free < requested + _DRIVER_BYTES:
        said = f"{gib_text(free, 2)} were free, which the driver needs for more than {message.requested_text}."
        return Explained(cause=Cause.NEED, sentence=f"Need: {said}", others=found)
    said = (
        f"{gib_text(free, 2)} were free, and {message.requested_text} was refused all the same: by a limit of the "
        "driver (Windows, WSL, a slice of a shared GPU), or another process gave memory back a moment later. The "
        "message does not tell these apart."
    )
    return Explained(cause=Cause.LIMIT, sentence=f"Limit: {said}", others=found)


def _missing(message: OomMessage, from_driver: int, unused: int, found: Shares | None) -> Explained:
    """Return why a request is refused for which the driver has too little.

    Args:
        message: The message.
        from_driver: What the driver lacks for the request.
        unused: What PyTorch has cached and does not use.
        found: Whose the memory of the card is.
    """
    assert message.free_bytes is not None
    there = message.free_bytes + unused
    least = _worth_a_word(found.least_others_bytes, message) if found is not None else 0
    parts = f"{gib_text(message.free_bytes, 2)} free and {gib_text(unused, 2)} cached but unused"
    if from_driver <= unused:
        enough = f"{gib_text(there, 2)} ({parts}) were enough for {message.requested_text}, but not in one piece."
        if least > unused:  # and so more than the driver lacks
            return Explained(
                cause=Cause.OTHERS, sentence=f"Other processes: {_held(least, found)} {enough}", others=found
            )
        tail = _also(least, found, from_driver)
        return Explained(cause=Cause.FRAGMENTS, sentence=f"Fragmentation: {enough}{tail}", others=found)
    missing = from_driver - unused
    if least:
        cause = Cause.OTHERS if least >= missing else Cause.NEED
        said = f"{_held(least, found)} {gib_text(missing, 2)} were missing for {message.requested_text}."
        return Explained(cause=cause, sentence=f"{cause.value.capitalize()}: {said}", others=found)
    said = f"with all that was left ({parts}), {gib_text(missing, 2)} were missing for {message.requested_text}."
    return Explained(cause=Cause.NEED, sentence=f"Need: {said}{_also(0, found, missing)}", others=found)


def _worth_a_word(size_bytes: int, message: OomMessage) -> int:
    """Return memory of other processes, or 0 if it is a small part of the card."""
    return size_bytes if message.total_bytes and size_bytes > _OTHERS_PART * message.total_bytes else 0


def _held(least: int, found: Shares | None) -> str:
    """Return what others have, with what the message does not tell apart."""
    assert found is not None
    most = found.most_others_bytes
    if found.others is None:
        return (
            f"{_no_owner(found)}, which rarely take {gib_text(OUTSIDE_BYTES, 0)}. At least {gib_text(least, 2)} are "
            f"probably of other processes, which the message does not list, such as ranks of this job ({_ASK_DRIVER})."
        )
    size = (
        gib_text(least, 2) if found.is_named or most == least else f"from {gib_text(least, 2)} to {gib_text(most, 2)}"
    )
    count = f"{found.others} other process{'es' * (found.others != 1)}"
    how = "" if found.is_named else " (by their sizes: torch could not tell which process is this program)"
    return f"{count} had {size} of the card{how}."


def _also(least: int, found: Shares | None, decides: int) -> str:
    """Return a sentence on memory of others that is not the cause, or that may be and cannot be told apart."""
    if found is None:
        return ""
    if least:
        return f" Also, {_held(least, found)}"
    if found.most_others_bytes >= decides and found.most_others_bytes > found.least_others_bytes:
        return f" {_no_owner(found)}, or of other processes; the message does not tell which ({_ASK_DRIVER})."
    return ""


def _no_owner(found: Shares) -> str:
    """Return memory of which the message does not say whose it is, with what it may be."""
    size = gib_text(found.most_others_bytes, 2)
    if found.is_named:
        return f"{size} of the card are in use by no process that the message lists: of the driver and a desktop"
    return (
        f"{size} of the card are neither free nor in PyTorch's cache of this program: of its CUDA context and its "
        "other libraries"
    )


# ---- the large requests of a trial, simulated ------------------------------------------------------------------------

_TIMEOUT_S = 600


@dataclass(frozen=True, kw_only=True)
class SimulatedTrial:
    """What the simulation of a trial says of its requests; `problem` is set if there is none."""

    requests: tuple[LargeRequest, ...] = ()
    status: str = ""
    refused_in: Phase | None = None
    """The phase in which the simulated card refuses a request."""
    refused_bytes: int | None = None
    needed_bytes: int | None = None
    """What a full card cannot return, and the CUDA context."""
    problem: str = ""

    @property
    def refuses(self) -> bool:
        """Whether the simulated card refuses a request."""
        return not self.problem and self.refused_in is not None


def simulate_requests(spec: TrialSpec, model_config: Mapping[str, object], *, allocated_bytes: int) -> SimulatedTrial:
    """Return the simulated requests of `spec`, from a process of its own, because commands import no torch.

    Args:
        spec: The trial.
        model_config: The `config.json` of its model.
        allocated_bytes: Memory in use at the error; the nearest of equal requests counts.
    """
    job = {"spec": spec_to_mapping(spec), "model_config": dict(model_config), "allocated_bytes": allocated_bytes}
    try:
        run = subprocess.run(
            [sys.executable, *safe_path_flags(), "-m", "profiler.worker.large_requests"],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
            check=False,
        )
        found = json.loads(run.stdout)
    except subprocess.TimeoutExpired:
        return SimulatedTrial(problem=f"it took more than {_TIMEOUT_S} s")
    except (ValueError, OSError):
        return SimulatedTrial(problem="its process ended without an answer")
    if "problem" in found:
        return SimulatedTrial(problem=str(found["problem"]))
    verdict = found["verdict"]
    unreleasable, context = verdict["required_unreleasable_bytes"], verdict["context_bytes"]
    return SimulatedTrial(
        requests=tuple(
            LargeRequest(**{**each, "phase": Phase(each["phase"]), "shape": tuple(each["shape"])})
            for each in found["requests"]
        ),
        status=verdict["status"],
        refused_in=Phase(verdict["phase"]) if verdict["phase"] else None,
        refused_bytes=verdict["requested_bytes"],
        needed_bytes=unreleasable + context if unreleasable is not None and context is not None else None,
    )
