"""The GPUs of this machine as slots: one trial at a time on each, only while it is ours, empty and sound."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.domain.errors import EXIT_GPU_UNUSABLE, ProfilerError
from profiler.domain.units import gib_text
from profiler.execution.lock import Lock, take_lock
from profiler.measurement.contention import EMPTY_BYTES
from profiler.measurement.nvml import GpuLostError, GpuProbe, GpuProcess, Nvml
from profiler.measurement.process_tree import process_tree

LOCK_FOLDER = Path("/tmp")
"""The same for every user and folder of results: a GPU belongs to the machine."""

WAIT_FOR_EMPTY_S = 300.0
"""How long a GPU with another program's memory on it is waited for before it is given up."""


class GpuUnusableError(ProfilerError):
    """No GPU is left to run on: run elsewhere."""

    exit_code = EXIT_GPU_UNUSABLE


@dataclass(frozen=True, kw_only=True)
class GpuSlot:
    """A GPU taken for one trial."""

    uuid: str
    lock: Lock
    errors_before: int | None
    """Uncorrected memory errors counted so far; None where the driver does not say."""


class GpuPool:
    """Hands GPUs out and takes them back. One that is broken or not to be had is retired, with its reason."""

    def __init__(
        self,
        uuids: Sequence[str],
        *,
        nvml: Nvml,
        lock_folder: Path = LOCK_FOLDER,
        clock: Callable[[], float] = time.monotonic,
        wait_for_empty_s: float = WAIT_FOR_EMPTY_S,
        own_processes: Callable[[], frozenset[int]] = process_tree,
    ) -> None:
        """`uuids` in the order to use them; `clock` is monotonic."""
        self._probes = {uuid: GpuProbe(nvml, uuid, own_processes=own_processes) for uuid in uuids}
        self._lock_folder = lock_folder
        self._clock = clock
        self._wait_for_empty_s = wait_for_empty_s
        self._in_use: dict[str, GpuSlot] = {}
        self._retired: dict[str, str] = {}
        self._occupied_since_s: dict[str, float] = {}

    def __len__(self) -> int:
        """How many GPUs there are, retired ones too."""
        return len(self._probes)

    @property
    def usable(self) -> bool:
        """Whether there is any that is not retired."""
        return len(self._retired) < len(self._probes)

    @property
    def retired(self) -> tuple[str, ...]:
        """A sentence for each GPU that was given up."""
        return tuple(f"GPU {uuid} is not used any more: {reason}." for uuid, reason in self._retired.items())

    def take(self) -> GpuSlot | None:
        """A GPU that is free, not another sweep's, empty and sound; None if there is none now."""
        for uuid in self._probes:
            if uuid not in self._in_use and uuid not in self._retired:
                slot = self._try(uuid)
                if slot is not None:
                    self._in_use[uuid] = slot
                    return slot
        return None

    def give_back(self, slot: GpuSlot) -> None:
        """The trial is over and the GPU sound."""
        self._in_use.pop(slot.uuid, None)
        slot.lock.release()

    def retire(self, slot: GpuSlot, reason: str) -> None:
        """Use this GPU no more. Its lock is kept, so that other sweeps leave it alone while this one runs."""
        self._in_use.pop(slot.uuid, None)
        self._retired[slot.uuid] = reason

    def fault_of(self, slot: GpuSlot) -> str:
        """What befell the GPU since it was taken, as a sentence's part; empty if it is sound as far as can be told."""
        try:
            xids = self._probes[slot.uuid].faults()
            errors = self._probes[slot.uuid].uncorrected_errors()
            self._probes[slot.uuid].used_bytes()
        except GpuLostError as error:
            return f"the driver has lost it ({error})"
        if xids:
            return f"the driver reported Xid {', '.join(str(number) for number in xids)}"
        if errors is None or slot.errors_before is None or errors <= slot.errors_before:
            return ""
        return f"it had {errors - slot.errors_before} memory errors that could not be corrected"

    def _try(self, uuid: str) -> GpuSlot | None:
        lock = take_lock(self._lock_folder / f"grpo-vram-profiler.{uuid}.lock", wait=False)
        if lock is None:  # another sweep's; it will be done some day
            self._occupied_since_s.pop(uuid, None)
            return None
        try:
            used = self._probes[uuid].used_bytes()
            errors = self._probes[uuid].uncorrected_errors()
            self._probes[uuid].faults()  # begins to listen, and forgets what was before the trial
        except GpuLostError as error:
            self._retired[uuid] = f"the driver has lost it ({error})"
            lock.release()
            return None
        if used is None or used <= EMPTY_BYTES:
            self._occupied_since_s.pop(uuid, None)
            return GpuSlot(uuid=uuid, lock=lock, errors_before=errors)
        since = self._occupied_since_s.setdefault(uuid, self._clock())
        if self._clock() - since >= self._wait_for_empty_s:
            by = _named(self._probes[uuid].others())
            self._retired[uuid] = (
                f"other programs hold {gib_text(used, 2)} of its memory{by}, and did for "
                f"{self._wait_for_empty_s:g} s, so nothing measured there would be the trial's own"
            )
        lock.release()
        return None


def _named(processes: Sequence[GpuProcess]) -> str:
    names = ", ".join(f"process {one.pid}{_program(one.pid)}" for one in processes)
    return f" ({names})" if names else ""


def _program(pid: int) -> str:
    """The program's name; in a container the number may be nobody's here."""
    try:
        return f" {Path(f'/proc/{pid}/comm').read_text().strip()}"
    except OSError:
        return ""
