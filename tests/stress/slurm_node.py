"""A real Slurm with one node, on this machine: `python slurm_node.py COMMAND...` runs a command in it, and ends it.

It needs Debian's slurmctld, slurmd, slurm-client and munge, and neither root nor systemd: all of its files and its own
munged are in a temporary folder. Its four GPUs are device files that nobody opens.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from getpass import getuser
from pathlib import Path
from signal import SIGKILL, SIGTERM, signal

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "squeue", "scancel", "scontrol", "srun")

GPU = "h100"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")

_STARTS_WITHIN_S = 120.0
_ENDS_WITHIN_S = 60.0

_CONFIG = """
ClusterName=node
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobRequeue=1
SchedulerParameters=batch_sched_delay=0,sched_interval=1,requeue_delay=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=4000 Gres=gpu:{gpu}:{count} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def lacking() -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in (*DAEMONS, *CLIENTS) if _program(name) is None]


@contextmanager
def slurm_node() -> Iterator[Mapping[str, str]]:
    """Run Slurm during the block, which gets the environment by which Slurm's commands find it."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-node-"))
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    signal(SIGTERM, lambda *_: sys.exit(1))
    try:
        _write_files(folder)
        _start(folder, environment)
        yield environment
    finally:
        _cancel_all(environment)
        _stop(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _write_files(folder: Path) -> None:
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    config = _CONFIG.format(host=host, folder=folder, user=getuser(), ports=_free_ports(), gpu=GPU, count=len(_DEVICES))
    (folder / "slurm.conf").write_text(config)
    devices = [f"NodeName={host} Name=gpu Type={GPU} File={device}\n" for device in _DEVICES]
    (folder / "gres.conf").write_text("".join(devices))


def _free_ports() -> list[int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return [each.getsockname()[1] for each in (one, other)]


def _start(folder: Path, environment: Mapping[str, str]) -> None:
    munge = [f"--{name}={folder}/munge.{end}" for name, end in (("socket", "socket"), ("key-file", "key"))]
    munge += [f"--{name}={folder}/munge.{end}" for name, end in (("pid-file", "pid"), ("log-file", "log"))]
    _run(["munged", *munge, f"--seed-file={folder}/munge.seed", "--force"], environment)
    for daemon in ("slurmctld", "slurmd"):
        _run([daemon, "-f", environment["SLURM_CONF"]], environment)
    until_s = time.monotonic() + _STARTS_WITHIN_S
    while _output(["sinfo", "--noheader", "--format=%T"], environment) != "idle":
        if time.monotonic() > until_s:
            logs = [path.read_text()[-2000:] for path in sorted(folder.glob("slurm*.log"))]
            raise TimeoutError(f"Slurm has not started within {_STARTS_WITHIN_S:g} s:\n" + "\n".join(logs))
        time.sleep(0.1)


def _output(words: list[str], environment: Mapping[str, str]) -> str:
    found = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=20, check=False)
    return found.stdout.strip()


def _run(words: list[str], environment: Mapping[str, str]) -> None:
    program = _program(words[0])
    assert program is not None, f"{words[0]} is not installed"
    # Its own output: a daemon that keeps ours open would keep a pipe open.
    done = subprocess.run(
        [program, *words[1:]], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}"


def _cancel_all(environment: Mapping[str, str]) -> None:
    """Cancel all jobs, and wait until their processes have ended."""
    until_s = time.monotonic() + _ENDS_WITHIN_S
    with suppress(OSError, subprocess.SubprocessError):
        while _output(["squeue", "--noheader"], environment) and time.monotonic() < until_s:
            _output(["scancel", f"--user={getuser()}"], environment)
            time.sleep(0.5)


def _stop(folder: Path) -> None:
    for name in ("slurmctld", "slurmd", "munge"):
        with suppress(OSError, ValueError):
            _end(int((folder / f"{name}.pid").read_text()))


def _end(pid: int) -> None:
    os.kill(pid, SIGTERM)
    until_s = time.monotonic() + _ENDS_WITHIN_S
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > until_s:
            os.kill(pid, SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    with slurm_node() as environment:
        sys.exit(subprocess.run(sys.argv[1:] or ["sinfo"], env=environment, check=False).returncode)
