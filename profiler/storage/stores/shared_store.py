"""Open a store that several machines share, and check it before anything starts."""

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

from profiler.domain.errors import Fault
from profiler.domain.machines.engines import Address, Scheme
from profiler.domain.machines.extras import Extra, missing_fault
from profiler.storage.files.foreign_files import reason
from profiler.storage.stores.objects import FolderObjects, Objects, PatientObjects
from profiler.storage.stores.record_store import RESULTS_DIR
from profiler.storage.stores.shared_records import SharedRecords

Answer = TypeVar("Answer")

PERSIST_S = 300.0
"""How long one operation is tried while the store cannot be reached."""

ANSWER_S = 9.0
"""Time within which the store has to answer before anything starts."""

_MODULES = {Scheme.S3: ("fsspec", "s3fs"), Scheme.GS: ("fsspec", "gcsfs"), Scheme.FILE: ()}
_EXTRAS = {Scheme.S3: Extra.S3, Scheme.GS: Extra.GCS}


def open_shared(address: Address, folder: Path, *, lease_s: float, notify: Callable[[str], None]) -> SharedRecords:
    """Return the records of a grid at `address`; `folder` is where workers of this machine write."""
    objects = _objects(address)
    return SharedRecords(
        PatientObjects(objects, address=str(address), persist_s=PERSIST_S),
        impatient=PatientObjects(objects, address=str(address), persist_s=0.0),
        folder=folder,
        address=str(address),
        lease_s=lease_s,
        notify=notify,
    )


def work_folder(address: Address, cache: Path) -> Path:
    """Return the folder of this machine for what is not yet at `address`; the same for each run."""
    place = hashlib.sha256(str(address).encode()).hexdigest()[:16]
    return cache / "shared" / place / address.name


def shared_faults(address: Address, *, writes: bool, answer_s: float = ANSWER_S) -> list[Fault]:
    """Return why results cannot be read from `address`, or written to it and claimed there; returns in time.

    Args:
        address: The address of a grid; nothing needs to be there yet.
        writes: Whether to try to write and to claim.
        answer_s: Time within which the store has to answer.
    """
    if (extra := _EXTRAS.get(address.scheme)) is not None:
        fault = missing_fault(RESULTS_DIR, str(address), _MODULES[address.scheme], extra)
        if fault is not None:
            return [fault]
    problem = _in_time(lambda: _problem(address, writes=writes), answer_s) or ""
    if not problem:
        return []
    done = "written" if writes else "read"
    hint = "Check the address, the network and the credentials."
    return [
        Fault(key=RESULTS_DIR, found=str(address), problem=f"results cannot be {done} there ({problem})", hint=hint)
    ]


def read_published(address: Address, name: str, *, answer_s: float = ANSWER_S) -> bytes | str | None:
    """Return an object below `address`, None if there is none, or why it cannot be read; returns in time."""
    if (extra := _EXTRAS.get(address.scheme)) is not None:
        fault = missing_fault(RESULTS_DIR, str(address), _MODULES[address.scheme], extra)
        if fault is not None:
            return fault.problem
    return _in_time(lambda: _content(address, name), answer_s)


def _content(address: Address, name: str) -> bytes | str | None:
    try:
        return _objects(address).read(name)
    except OSError as error:
        return reason(error)
    except Exception as error:  # a library that refuses its settings raises anything
        return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _in_time(ask: Callable[[], Answer], answer_s: float) -> Answer | str:
    """Return what `ask` returns, or a sentence if it takes too long."""
    answer: SimpleQueue[Answer] = SimpleQueue()
    # A thread that hangs in a library does not keep the process from ending.
    Thread(target=lambda: answer.put(ask()), daemon=True).start()
    try:
        return answer.get(timeout=answer_s)
    except Empty:
        return f"it did not answer within {answer_s:g} s"


def _problem(address: Address, *, writes: bool) -> str:
    """Return what an object cannot be done with; empty if all that a sweep does can be done."""
    try:
        objects = _objects(address)
        if not writes:
            return "" if objects.list("records/") else "there are no records"
        name, content = f"checks/{secrets.token_hex(8)}", secrets.token_bytes(8)
        if not objects.create(name, content) or objects.create(name, b"again"):
            return "it does not create objects conditionally, so trials cannot be claimed"
        try:
            if objects.read(name) != content or name not in objects.list("checks/"):
                return "what was written cannot be read back"
        finally:
            objects.remove(name)
    except OSError as error:
        return reason(error)
    except Exception as error:  # a library that refuses its settings raises anything
        return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return ""


def _objects(address: Address) -> Objects:
    if address.scheme is Scheme.FILE:
        return FolderObjects(Path(address.path))
    from profiler.storage.stores.cloud_objects import CloudObjects  # imports fsspec, an extra

    return CloudObjects(address)
