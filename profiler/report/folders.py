"""The folders that the command line of a report names, in a store of several machines too."""

import glob
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from profiler.analytical.many import estimates_by_trial, estimates_of
from profiler.command_line import print_error
from profiler.config.models.architecture import read_architecture
from profiler.config.models.lookup import builtin_architecture
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.machines.engines import ADDRESS_FORMS, Address, address_of, is_address
from profiler.emulation.interpreter import cache_folder
from profiler.report.command import INTO, Command
from profiler.storage.files.foreign_files import Kind, kind_of, reason
from profiler.storage.foreign.model_config import load_model_config
from profiler.storage.stores.shared_store import open_shared, shared_faults, work_folder

FETCHED = "fetched"
"""Folder in the cache for results that are only read."""

_LEASE_S = 60.0
_RUNS = "runs.parquet"


def fetch_results(address: Address) -> Path:
    """Assemble the tables of all records at `address` in a folder of this machine, and return the folder.

    Raises:
        UsageError: The address cannot be read, or has no records.
        StorageError: Reading or writing failed.
    """
    faults = shared_faults(address, writes=False)
    if faults:
        raise UsageError(faults)
    from profiler.storage.sweep_tables.tables import assemble_tables

    folder = work_folder(address, cache_folder() / FETCHED)
    store = open_shared(address, folder, lease_s=_LEASE_S, notify=print_error)
    store.gather()
    question, command = _about(store.read_object(_RUNS), address)
    written = assemble_tables(
        folder,
        store.read_each(),
        lambda specs: estimates_by_trial(specs, estimates_of, _architecture_of),
        question=question,
        command=command,
    )
    for sentence in written.left_out:
        print_error(sentence)
    return folder


def _about(table: bytes | None, address: Address) -> tuple[str, str]:
    """Return question and command of the sweep, which only its table has; empty if there is none or it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from profiler.storage.tables.schema import arrow_buffer

    if table is None:
        return "", ""
    try:
        about = pq.read_schema(pa.BufferReader(arrow_buffer(table))).metadata or {}
        return about.get(b"question", b"").decode(), about.get(b"command", b"").decode()
    except (pa.ArrowException, OSError, ValueError):
        print_error(f"{address}: its {_RUNS} is damaged, so that question and command of the sweep are left out.")
        return "", ""


@cache
def _architecture_of(model: str) -> Architecture:
    return builtin_architecture(model) or read_architecture(load_model_config(model), model=model)


REFERENCE = "reference"
"""The folder in `results/` whose results are in git."""

COMBINED = "combined"
"""The folder next to the parts for their results as one, if the user names none."""

_COMPARED = 2

USAGE = "Write: python -m profiler.report results/<grid>, two folders to compare them, or 'results/*/<grid>'"


@dataclass(frozen=True, kw_only=True)
class Folders:
    """The folders of one command."""

    named: tuple[Path, ...]
    into: Path | None
    """Where several folders are written as one; None to draw one folder, or to compare two."""


def named_folders(command: Command) -> Folders:
    """Return the folders that the command line names.

    A pattern, more than two folders, or `into=` reads them as one.

    Raises:
        UsageError: There are none, or one of them cannot be used.
    """
    words = command.folders
    faults = [*command.faults] + [
        Fault(key="argument", found=word or "(nothing)", problem="is not a folder of results", hint=f"{USAGE}.")
        for word in words
        if not word or word.startswith("-")
    ]
    if not words and not command.faults:
        faults.append(Fault(key="folder", found="(none)", problem="name one folder or several", hint=f"{USAGE}."))
    if faults:
        raise UsageError(faults)
    is_pattern = any(_is_pattern(word) for word in words)
    is_shared = len(words) == 1 and is_address(words[0])
    addresses = [_address(word) for word in words]
    named = tuple(
        folder
        for word, address in zip(words, addresses, strict=True)
        for folder in ([fetch_results(address)] if address is not None else _expanded(word))
    )
    faults = [fault for folder in named if (fault := _folder_fault(folder)) is not None]
    if faults:
        raise UsageError(faults)
    as_one = is_pattern or is_shared or command.options.into is not None or len(words) > _COMPARED
    into = _into(command, named) if as_one else None
    # A pattern may find what an earlier report wrote.
    parts = (
        named
        if into is None
        else tuple({each.resolve(): each for each in named if each.resolve() != into.resolve()}.values())
    )
    if not parts:
        problem = "no such folder" if is_pattern else "is also where the results are to be written"
        raise UsageError([Fault(key="folder", found=" ".join(words), problem=problem, hint=f"{USAGE}.")])
    return Folders(named=parts, into=into)


def _address(word: str) -> Address | None:
    """Return the address that a word is; None for a folder.

    Raises:
        UsageError: It is meant as an address and is not one.
    """
    address = address_of(word) if is_address(word) else None
    if is_address(word) and address is None:
        problem = f"is not an address; write {ADDRESS_FORMS}"
        raise UsageError([Fault(key="folder", found=word, problem=problem)])
    return address


def _is_pattern(word: str) -> bool:
    return not is_address(word) and glob.has_magic(word) and not os.path.lexists(word)


def _expanded(word: str) -> list[Path]:
    # Not Path.glob, which takes no absolute pattern.
    return [Path(found) for found in sorted(glob.glob(word))] if _is_pattern(word) else [Path(word)]  # noqa: PTH207


def _into(command: Command, named: tuple[Path, ...]) -> Path:
    """Return where to write several folders as one.

    Raises:
        UsageError: Nothing names it: the folders have nothing in common.
    """
    if command.options.into is not None:
        return Path(command.options.into)
    names = {folder.resolve().name for folder in named}
    if len(names) > 1:
        problem = f"are of several grids ({', '.join(sorted(names))})"
        hint = f"Name the folder for their results as one: {INTO}=FOLDER."
        raise UsageError([Fault(key="folder", found=" ".join(command.folders), problem=problem, hint=hint)])
    if any(is_address(word) for word in command.folders):
        return Path("results") / COMBINED / names.pop()
    alike = len({folder.is_absolute() for folder in named}) <= 1
    parents = [str((folder if alike else folder.absolute()).parent.parent) for folder in named]
    return Path(os.path.commonpath(parents) if parents else "") / COMBINED / (names.pop() if names else "")


def _folder_fault(folder: Path) -> Fault | None:
    try:
        kind = kind_of(folder)
        return None if kind is Kind.FOLDER else _no_folder(folder, kind)
    except OSError as error:
        return Fault(key="folder", found=str(folder), problem=f"cannot be read ({reason(error)})")


def _no_folder(folder: Path, kind: Kind) -> Fault:
    """Return the fault of a path that is no folder, with what the user may have meant."""
    if kind is not Kind.MISSING:
        return Fault(key="folder", found=str(folder), problem="is not a folder", hint=f"{USAGE}.")
    kept = folder.parent / REFERENCE / folder.name
    if (kept / "runs.parquet").is_file():
        hint = f"Run the sweep first (python -m profiler.sweep +grid={folder.name}), or draw the kept results: {kept}."
    else:
        grids = sorted(path.parent.name for path in folder.parent.glob("*/runs.parquet"))
        hint = nearest(folder.name, grids) or f"{USAGE}."
    return Fault(key="folder", found=str(folder), problem="no such folder", hint=hint)
