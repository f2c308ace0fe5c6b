"""A Ray cluster on this machine: a head and nodes, each a process group of its own that can be killed."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "GRPO_VRAM_PROFILER_STRESS"
"""Environment variable that all processes of a cluster and its drivers have."""

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

_START_S = 90.0
_STARTED = "Ray runtime started"
_OBJECT_STORE = 80 * 2**20
_QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}
"""A killed node is noticed within seconds, not within half a minute."""

_SLOT = ("ray::Slot", "multiprocessing.forkserver", "from multiprocessing")


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class RayNodes:
    """A head without CPU cores, and nodes. Leaving it as a context ends all of their processes."""

    def __init__(self) -> None:
        """Start the head."""
        self.folder = Path(tempfile.mkdtemp(prefix="ray-nodes-"))
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.port, self.client_port = free_port(), free_port()
        (self.folder / "tmp").mkdir()
        self.environment = {
            **os.environ,
            MARK: self.mark,
            "TMPDIR": str(self.folder / "tmp"),
            "PYTHONPATH": os.pathsep.join(map(str, (HERE, ROOT))),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "RAY_worker_niceness": "0",  # by default 15, which starves on a machine with other work
        }
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._started = 0
        head = [
            "--head",
            f"--port={self.port}",
            f"--ray-client-server-port={self.client_port}",
            "--num-cpus=0",
            "--num-gpus=0",
            "--include-dashboard=false",
        ]
        head += [f"--temp-dir={self.folder}/ray", f"--system-config={json.dumps(_QUICK)}"]
        self.head = self._start("head", head)
        self._wait_for_words("head", self.head)

    @property
    def address(self) -> str:
        """The address of the cluster."""
        return f"127.0.0.1:{self.port}"

    def add(self, *, cpus: int = 2, path: Path | None = None, **more: object) -> subprocess.Popen[bytes]:
        """Start a node; `more` are options of `ray start`, and `path` is searched for modules first."""
        words = [f"--address={self.address}", f"--num-cpus={cpus}"]
        words += [f"--{name.replace('_', '-')}={value}" for name, value in more.items()]
        self._started += 1
        node = self._start(f"node-{self._started}", words, path=path)
        self.nodes.append(node)
        self._wait_for_words(f"node-{self._started}", node)
        return node

    def kill(self, node: subprocess.Popen[bytes], *, only_raylet: bool = False) -> None:
        """SIGKILL a node: all its processes at once, or only the one that Ray runs the node with."""
        processes = below(node.pid)
        if only_raylet:
            processes = [each for each in processes if name_of(each).endswith("raylet")]
        for each in processes:
            with suppress(psutil.Error):
                each.kill()
        self.nodes.remove(node)

    def marked(self) -> list[psutil.Process]:
        """Return all processes that carry the mark, except this one."""
        found = []
        for each in psutil.process_iter():
            with suppress(psutil.Error):
                if each.pid != os.getpid() and each.environ().get(MARK) == self.mark and each.status() != "zombie":
                    found.append(each)
        return found

    def slots(self) -> list[psutil.Process]:
        """Return the processes of slots: actors, warmed processes and workers."""
        return [each for each in self.marked() if any(part in _words(each) for part in _SLOT)]

    def left(self, *, within_s: float) -> list[str]:
        """Return the processes of slots that are left after some time."""
        until_s = time.monotonic() + within_s
        while (found := self.slots()) and time.monotonic() < until_s:
            time.sleep(0.2)
        return [f"{each.pid} {_words(each)[:150]}" for each in found]

    def __enter__(self) -> "RayNodes":
        return self

    def __exit__(self, *_: object) -> None:
        for _ in range(3):
            for each in self.marked():
                with suppress(psutil.Error):
                    each.kill()
            time.sleep(0.2)
        for each in (self.head, *self.nodes):
            each.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, words: list[str], *, path: Path | None = None) -> subprocess.Popen[bytes]:
        environment = dict(self.environment)
        if path is not None:
            environment["PYTHONPATH"] = os.pathsep.join([str(path), environment["PYTHONPATH"]])
        program = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        with (self.folder / f"{name}.txt").open("ab") as log:
            return subprocess.Popen(
                [*program, f"--object-store-memory={_OBJECT_STORE}", *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def _wait_for_words(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Wait until `ray start` says that it has started; two that start at once may take each other's ports."""
        log, until_s = self.folder / f"{name}.txt", time.monotonic() + _START_S
        while _STARTED not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > until_s:
                raise TimeoutError(f"{name} has not started: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)


def below(pid: int) -> list[psutil.Process]:
    """Return a process and all below it; workers of slots are below the node too."""
    try:
        whole = psutil.Process(pid)
        return [whole, *whole.children(recursive=True)]
    except psutil.Error:
        return []


def name_of(process: psutil.Process) -> str:
    """Return the path of a process's program; empty if it is gone."""
    with suppress(psutil.Error):
        return (process.cmdline() or [""])[0]
    return ""


def _words(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
