"""Processes of this machine that are not part of the job: their Ray clusters, and the ports on which they listen.

They do not run on the emulated cards. A job that talked to them would miss them in its figures.
"""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from profiler.emulation.card import PROCESSES_VARIABLE


def refuse_other_clusters(folder: str) -> Callable[[ModuleType], None]:
    """Return what has to be done after the import of Ray's `services`: it shall find no cluster of another job."""

    def after_import(services: ModuleType) -> None:
        find = services.get_ray_address_from_environment

        @wraps(find)
        def found(*args: Any, **kwargs: Any) -> Any:
            if other := process_of_another_cluster(folder):
                raise RuntimeError(
                    f"A Ray cluster is running already (process {other}), and its processes are not part of this run. "
                    "End it with ray stop, or run on another machine."
                )
            return find(*args, **kwargs)

        services.get_ray_address_from_environment = found  # type: ignore[attr-defined]

    return after_import


def process_of_another_cluster(folder: str, processes: Path = Path("/proc")) -> int | None:
    """Return a process of a Ray cluster that was not started in the job of this folder; None if there is none."""
    for process in processes.glob("[0-9]*"):
        try:
            program = (process / "cmdline").read_bytes().partition(b"\0")[0]
            if Path(os.fsdecode(program)).name != "gcs_server":
                continue
            if not is_of_job(process, folder):
                return int(process.name)
        except PermissionError:  # of another user
            return int(process.name)
        except OSError:
            continue
    return None


def is_of_job(process: Path, folder: str) -> bool:
    """Return whether a process, by its folder of the kernel, was started in the job of this folder.

    Raises:
        OSError: It has ended, or is of another user.
    """
    return os.fsencode(f"{PROCESSES_VARIABLE}={folder}") in (process / "environ").read_bytes().split(b"\0")


# ---- ports -----------------------------------------------------------------------------------------------------------


def refuse_ports_of_others(folder: str) -> None:
    """Let a port count as in use where a process that is not part of the job listens on it, and say which one does.

    The kernel lets two servers of a user share a port if both of them ask for it, as vLLM's do: either one would then
    get the requests of both jobs.
    """
    bind = socket.socket.bind

    def bound(self: socket.socket, address: Any) -> None:
        port = address[1] if self.family in (socket.AF_INET, socket.AF_INET6) else 0
        shares = bool(port) and self.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
        if shares and (other := listening_process(port)) is not None and not _is_ours(other, folder):
            raise OSError(errno.EADDRINUSE, _in_use(port, other))
        try:
            bind(self, address)
        except OSError as error:
            if not port or error.errno != errno.EADDRINUSE:
                raise
            raise OSError(errno.EADDRINUSE, _in_use(port, listening_process(port))) from error

    socket.socket.bind = bound  # type: ignore[method-assign]


def _is_ours(pid: int, folder: str) -> bool:
    with suppress(OSError):
        return is_of_job(Path("/proc", str(pid)), folder)
    return False


def _in_use(port: int, pid: int | None) -> str:
    by = "another process" if not pid else f"process {pid}"
    return f"port {port} is in use by {by}: end it, or choose another port"


def listening_process(port: int, processes: Path = Path("/proc")) -> int | None:
    """Return a process that listens on a TCP port of this machine, 0 if it is of another user; None if none does."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in (processes / "net" / table).read_text().splitlines()[1:]]
            sockets |= {row[9] for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port}
    for process in processes.glob("[0-9]*") if sockets else ():
        with suppress(OSError):
            if any(_socket_of(file) in sockets for file in (process / "fd").iterdir()):
                return int(process.name)
    return 0 if sockets else None


_LISTENS = "0A"
"""State of a socket in the kernel's tables (`TCP_LISTEN` in linux/net/tcp_states.h)."""


def _socket_of(file: Path) -> str:
    with suppress(OSError):
        return str(file.readlink()).removeprefix("socket:[").removesuffix("]")
    return ""
