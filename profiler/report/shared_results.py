"""Results in a store that several machines share: brought to this machine, as the folder that a sweep leaves."""

from functools import cache
from pathlib import Path

from profiler.command_line import print_error
from profiler.config.models.architecture import read_architecture
from profiler.config.models.lookup import builtin_architecture
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import UsageError
from profiler.domain.machines.address import Address
from profiler.emulation.building.cache import cache_folder
from profiler.report.estimates import estimates_by_trial, estimates_of
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

    from profiler.storage.tables.arrow_buffer import arrow_buffer

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
