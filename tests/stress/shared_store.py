"""Machines that share a store are killed and cut off: nothing that was published is lost, and nothing runs twice.

`python tests/stress/shared_store.py [trials=60] [machines=3] [kills=20] [cut_s=20] [store=s3|file] [seed=N]` ends with
0 if all is well. store=s3 needs moto's server (pip install 'moto[server,s3]') and the extra s3.

The store is reached through a proxy, which cuts the network once for `cut_s`, and answers some connections with S3's
"SlowDown". A claim of a machine that does not exist is left behind first. Machines are killed by SIGKILL, whole or a
worker only, and started again.
"""

import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil
import shared_machine
from found import Found

from profiler.domain.errors import EXIT_INTERNAL, EXIT_SOME_TRIALS_FAILED, EXIT_TOO_MANY_FAILURES
from profiler.domain.machines.engines import Address, address_of
from profiler.storage.stores.leases import claim_name
from profiler.storage.stores.objects import Objects
from profiler.storage.stores.shared_store import _objects

HERE = Path(__file__).parent
MARK = "GRPO_VRAM_PROFILER_STRESS"
BUCKET = "bucket"
SLOW_DOWN = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: 85\r\n\r\n"
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"[:85]
)
THROTTLED = 0.05
"""Part of the connections that are throttled."""

DEADLINE_S = 900.0

GONE_WITHIN_S = 60.0
"""Limit for the end of a killed machine's last processes."""

TOO_OFTEN = "The process that workers are forked from was restarted"
"""In the last sentence of a machine that gives up because that process was killed too often."""


class Proxy:
    """A TCP proxy in front of the store, which can be cut."""

    def __init__(self, target: int, chance: random.Random) -> None:
        self.throttled = 0
        self._target = target
        self._random = chance
        self._is_cut = threading.Event()
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, seconds: float) -> None:
        """Break all connections and answer nothing for some seconds."""
        self._is_cut.set()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        time.sleep(seconds)
        self._is_cut.clear()

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            if self._is_cut.is_set():
                client.close()
            elif self._random.random() < THROTTLED:
                self.throttled += 1
                threading.Thread(target=self._throttle, args=(client,), daemon=True).start()
            else:
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _throttle(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            client.recv(65536)
            client.sendall(SLOW_DOWN)
            client.shutdown(socket.SHUT_WR)
            client.settimeout(1.0)
            while client.recv(65536):
                pass

    def _pass_on(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        self._open |= {client, server}
        other = threading.Thread(target=self._copy, args=(server, client), daemon=True)
        other.start()
        self._copy(client, server)
        other.join()
        self._open -= {client, server}
        client.close()
        server.close()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                target.sendall(content)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


class Stress:
    """One run."""

    def __init__(self, address: Address, environment: dict[str, str], folder: Path, options: dict[str, int]) -> None:
        self.found = Found()
        self._address = address
        self._environment = environment
        self._folder = folder
        self._options = options
        self._random = random.Random(options["seed"])
        self._notes = folder / "notes.txt"
        self._notes.touch()
        self._known: dict[str, str] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, objects: Objects, cut: threading.Thread) -> Found:
        """Kill machines until all trials are answered and each machine has ended well."""
        until_s = time.monotonic() + DEADLINE_S
        for number in range(self._options["machines"]):
            self._start(f"machine-{number}")
        cut.start()
        while self._running and time.monotonic() < until_s:
            time.sleep(self._random.uniform(0.2, 1.0))
            for name, process in list(self._running.items()):
                if process.poll() is not None:
                    del self._running[name]
                    if process.returncode != 0:
                        self._check_end(name, process.returncode)
                        self._start(name)
            if self._running and self.found.kills.total() < self._options["kills"]:
                self._kill(self._random.choice(sorted(self._running)))
            self._check_records(objects)
        if self._running:
            self.found.other.append(f"{', '.join(self._running)} did not end within {DEADLINE_S:g} s")
        cut.join()
        self.conclude(objects)
        self.found.left += [str(path) for path in self._folder.glob("*/cache/shared/*/*/records/*.json")]
        return self.found

    def conclude(self, objects: Objects) -> None:
        """Check what is published, what ran and what is left, after all machines have ended."""
        self._check_records(objects)
        self._check_runs()
        if len(self._known) != self._options["trials"]:
            grid = self._address / "lora_vs_full"
            self.found.other.append(f"{len(self._known)} of {self._options['trials']} trials are published at {grid}")
        if claims := sorted(objects.list("claims/")):
            self.found.left += claims
        until_s = time.monotonic() + GONE_WITHIN_S
        while (left := _marked(self._environment[MARK])) and time.monotonic() < until_s:
            time.sleep(0.2)
        self.found.left += [str(each) for each in left]

    def first_trial(self) -> str:
        """Return the id of the first trial, by a dry run."""
        command = [sys.executable, *self._words("dry"), "dry_run=true"]
        said = subprocess.run(command, env=self._environment, capture_output=True, check=True, text=True).stdout
        return next(line.split()[0] for line in said.splitlines() if re.match("[0-9a-f]{16} ", line))

    def _words(self, name: str) -> list[str]:
        words = [str(HERE / "shared_machine.py"), name, str(self._address), str(self._notes), "backend=simulated"]
        words += ["model=qwen2.5-0.5b", "tuning=full", "optim=adamw_torch", "gradient_checkpointing=false"]
        return [*words, f"seed=range(1,{self._options['trials'] + 1})", "jobs=2", "lease_s=10"]

    def _start(self, name: str) -> None:
        self.found.starts += 1
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        with (folder / "log.txt").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, *self._words(name)],
                env={**self._environment, "GRPO_VRAM_CACHE": str(folder / "cache")},
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
            )

    def _check_end(self, name: str, code: int) -> None:
        log = (self._folder / name / "log.txt").read_text(errors="replace")
        # Of kills of a worker some hit the process that workers are forked from, which is restarted twice.
        if code == EXIT_INTERNAL and TOO_OFTEN in log.splitlines()[-1]:
            return
        if code not in (-signal.SIGKILL, EXIT_SOME_TRIALS_FAILED, EXIT_TOO_MANY_FAILURES):
            self.found.other.append(f"{name} ended with {code}: {log[-2000:]}")

    def _kill(self, name: str) -> None:
        """Kill a machine with all its processes, or a worker only."""
        with suppress(psutil.Error):
            whole = psutil.Process(self._running[name].pid)
            below = whole.children(recursive=True)
            workers = [each for each in below if "forkserver" in " ".join(each.cmdline()) and not each.children()]
            if self._random.random() < 0.3 or not workers:
                self.found.kills["machine"] += 1
                for each in (whole, *below):
                    with suppress(psutil.Error):
                        each.kill()
            else:
                self.found.kills["worker"] += 1
                self._random.choice(workers).kill()

    def _check_records(self, objects: Objects) -> None:
        now = objects.list("records/")
        self.found.lost += [name for name, stamp in self._known.items() if now.get(name) != stamp]
        new = objects.read_many(sorted(now.keys() - self._known.keys()))
        self._known |= {name: now[name] for name, content in new.items() if shared_machine.is_answer(content)}

    def _check_runs(self) -> None:
        """Find trials that ran although they were published, and those that two machines ran at the same time."""
        runs: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for line in self._notes.read_text().splitlines():
            word, trial_id, began, ended, _ = line.split()
            runs[trial_id].append((float(began), float(ended)))
            if word == shared_machine.AGAIN:
                self.found.twice.append(f"{trial_id} ran although it was published")
        for trial_id, times in runs.items():
            pairs = itertools.pairwise(sorted(times))
            self.found.twice += [f"{trial_id} ran at the same time" for one, other in pairs if other[0] < one[1]]
        self.found.runs = sum(map(len, runs.values()))


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get(MARK) == mark and each.pid != os.getpid():
                found.append(each)
    return found


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def start_moto(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start an S3 server in a process of its own, and return it with its port."""
    port = _free_port()
    with (folder / "moto.txt").open("wb") as log:
        server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log)
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return server, port
        time.sleep(0.05)
    raise TimeoutError("moto's server has not started within 30 s")


CREDENTIALS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}


def make_bucket(port: int) -> None:
    """Make the bucket of the tests."""
    import fsspec

    os.environ |= {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(BUCKET)


def run(options: dict[str, int], store: str) -> tuple[Found, str]:
    """Run once; return what was found, and a line about the network."""
    folder = Path(tempfile.mkdtemp(prefix="shared-stress-"))
    mark = f"{os.getpid()}-{options['seed']}"
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, MARK: mark, "PYTHONPATH": path}
    server = None
    try:
        if store == "s3":
            server, port = start_moto(folder)
            make_bucket(port)
            proxy = Proxy(port, random.Random(options["seed"]))
            environment |= {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}
            address = address_of(f"s3://{BUCKET}/results")
        else:
            address = address_of(f"file://{folder / 'mounted'}")
        assert address is not None
        objects = _objects(address / "lora_vs_full")
        stress = Stress(address, environment, folder, options)
        objects.create(claim_name(stress.first_trial(), 1), b"left behind by a machine that has ended")

        def cut() -> None:
            if server is not None:
                time.sleep(10)
                proxy.cut(options["cut_s"])

        found = stress.run(objects, threading.Thread(target=cut))
        network = f"network cut for {options['cut_s']} s, {proxy.throttled} connections throttled" if server else "-"
        return found, network
    finally:
        for each in _marked(mark):
            if server is None or each.pid != server.pid:
                each.kill()
        if server is not None:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def main(words: list[str]) -> int:
    """Run the stress and print its counts."""
    given = dict(word.split("=", 1) for word in words)
    store = given.pop("store", "s3")
    options = {"trials": 60, "machines": 3, "kills": 20, "cut_s": 20, "seed": int(time.time())}
    options |= {name: int(value) for name, value in given.items()}
    began_s = time.monotonic()
    found, network = run(options, store)
    kills = ", ".join(f"{name} {count}" for name, count in sorted(found.kills.items()))
    print(
        f"{store}: {options['trials']} trials on {options['machines']} machines in {time.monotonic() - began_s:.0f} s, "
        f"{found.kills.total()} SIGKILL ({kills}), {found.starts} starts, {network}: {len(found.lost)} published "
        f"trials lost, {len(found.twice)} run twice, {len(found.left)} processes, claims or files left, "
        f"{len(found.other)} other problems, {found.runs} runs ended (seed={options['seed']})"
    )
    print("\n".join(found.problems()))
    return 1 if found.problems() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
