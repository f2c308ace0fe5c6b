"""GPUs as slots: one trial at a time per GPU, while this sweep has its lock and it is empty and sound."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.domain.errors import EXIT_GPU_UNUSABLE, ProfilerError
from profiler.domain.memory import gib_text
from profiler.measurement.driver.nvml import GpuLostError, GpuProbe, GpuProcess, Nvml
from profiler.measurement.samples.host_usage import process_tree
from profiler.measurement.samples.summary import EMPTY_BYTES
from profiler.storage.files.trial_files import Lock, LockError, take_lock

LOCK_FOLDER = Path("/tmp")
"""The same for every user and every folder of results, because a GPU belongs to the machine."""

WAIT_FOR_EMPTY_S = 300.0
"""Time to wait for a GPU that another program uses before it is retired."""


class GpuUnusableError(ProfilerError):
    """No GPU is left to run on."""

    exit_code = EXIT_GPU_UNUSABLE


@dataclass(frozen=True, kw_only=True)
class GpuSlot:
    """A GPU that is assigned to one trial."""

    uuid: str
    lock: Lock
    errors_before: int | None
    """Uncorrected memory errors counted before the trial; None if the driver does not report them."""


class GpuPool:
    """Assigns GPUs to trials and takes them back. A broken or unavailable GPU is retired, with the reason."""

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
        """Assign nothing yet.

        Args:
            uuids: The GPUs, in the order to use them.
            nvml: The driver.
            lock_folder: Folder of the locks.
            clock: Monotonic clock, in seconds.
            wait_for_empty_s: Time to wait for a GPU that another program uses.
            own_processes: Returns the ids of this sweep's processes.
        """
        self._probes = {uuid: GpuProbe(nvml, uuid, own_processes=own_processes) for uuid in uuids}
        self._lock_folder = lock_folder
        self._clock = clock
        self._wait_for_empty_s = wait_for_empty_s
        self._in_use: dict[str, GpuSlot] = {}
        self._retired: dict[str, str] = {}
        self._locks_of_retired: list[Lock] = []
        self._occupied_since_s: dict[str, float] = {}
        self._waits: dict[str, str] = {}

    def __len__(self) -> int:
        """Return the number of GPUs, including retired ones."""
        return len(self._probes)

    @property
    def usable(self) -> int:
        """The number of GPUs that are not retired."""
        return len(self._probes) - len(self._retired)

    @property
    def retired(self) -> tuple[str, ...]:
        """One sentence per retired GPU."""
        return tuple(f"GPU {uuid} is not used any more: {reason}." for uuid, reason in self._retired.items())

    @property
    def waits(self) -> tuple[str, ...]:
        """One sentence per GPU that others use."""
        return tuple(f"Waiting for GPU {uuid}: {reason}." for uuid, reason in self._waits.items())

    def take(self) -> GpuSlot | None:
        """Return a GPU that is free, empty, sound and not used by another sweep; None if there is none now."""
        for uuid in self._probes:
            if uuid not in self._in_use and uuid not in self._retired:
                slot = self._try(uuid)
                if slot is not None:
                    self._waits.pop(uuid, None)
                    self._in_use[uuid] = slot
                    return slot
        return None

    def take_together(self, count: int) -> tuple[GpuSlot, ...]:
        """Return `count` GPUs for one trial; empty, and with none of them taken, if fewer are free now."""
        taken: list[GpuSlot] = []
        while len(taken) < count and (slot := self.take()) is not None:
            taken.append(slot)
        if len(taken) == count:
            return tuple(taken)
        for slot in taken:
            self.give_back(slot)
        return ()

    def give_back(self, slot: GpuSlot) -> None:
        """Free a sound GPU after its trial."""
        self._in_use.pop(slot.uuid, None)
        slot.lock.release()

    def retire(self, slot: GpuSlot, reason: str) -> None:
        """Stop using this GPU. Its lock is kept, so that other sweeps do not use it while this one runs."""
        self._in_use.pop(slot.uuid, None)
        self._retired[slot.uuid] = reason
        self._locks_of_retired.append(slot.lock)

    def fault_of(self, slot: GpuSlot) -> str:
        """Return what happened to the GPU since it was taken, as part of a sentence; empty if no fault is known."""
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
        # The former name of the distribution: sweeps of earlier versions wait for the same file.
        path = self._lock_folder / f"grpo-vram-profiler.{uuid}.lock"
        try:
            lock = take_lock(path, wait=False)
        except LockError as error:
            self._retired[uuid] = str(error).rstrip(".")
            return None
        if lock is None:  # held by another sweep, which will end some time
            self._occupied_since_s.pop(uuid, None)
            self._waits[uuid] = f"another sweep measures on it and holds {path}"
            return None
        try:
            used = self._probes[uuid].used_bytes()
            errors = self._probes[uuid].uncorrected_errors()
            self._probes[uuid].faults()  # start listening, and drop earlier events
        except GpuLostError as error:
            self._retired[uuid] = f"the driver has lost it ({error})"
            lock.release()
            return None
        if used is None or used <= EMPTY_BYTES:
            self._occupied_since_s.pop(uuid, None)
            return GpuSlot(uuid=uuid, lock=lock, errors_before=errors)
        if uuid not in self._occupied_since_s:
            self._occupied_since_s[uuid] = self._clock()
            by = _named(self._probes[uuid].others())
            self._waits[uuid] = f"other programs hold its memory{by}; it is left out after {self._wait_for_empty_s:g} s"
        if self._clock() - self._occupied_since_s[uuid] >= self._wait_for_empty_s:
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
    """Return the program's name; empty if the process is not visible, as in a container."""
    try:
        return f" {Path(f'/proc/{pid}/comm').read_text().strip()}"
    except OSError:
        return ""
