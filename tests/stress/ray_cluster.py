"""Nodes, slots and the driver of a sweep on Ray are killed: nothing finished is lost or runs twice; nothing is left.

`python tests/stress/ray_cluster.py [trials=60] [kills=20] [seed=N]` ends with 0 if all is well. It needs the extra ray
(`make engines`). A head and two nodes run on this machine. Until `kills` are spent, one of these is ended with SIGKILL
every second or so: a node (all its processes, or only Ray's own, so that its slots have to end by themselves), one
process of a slot (actor, warmed process or worker), or the driver, which is started again with the same command.
"""

import random
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import ray_driver
from found import Found, is_answer
from ray_nodes import HERE, RayNodes

NODES = 2
DEADLINE_S = 400.0
GONE_WITHIN_S = 60.0
"""Limit for the end of the last processes of slots after the end of the driver."""

_UNANSWERED = (3, 34)
"""Exit codes of a sweep in which trials lost too many slots: the same command continues."""


class Stress:
    """One run."""

    def __init__(self, nodes: RayNodes, options: dict[str, int]) -> None:
        self.found = Found()
        self._nodes = nodes
        self._options = options
        self._random = random.Random(options["seed"])
        self._results = nodes.folder / "results"
        self._records = self._results / ray_driver.RECORDS
        self._known: dict[str, bytes] = {}

    def run(self) -> Found:
        """Kill until all trials are answered and the driver has ended well."""
        until_s = time.monotonic() + DEADLINE_S
        driver = self._start()
        while time.monotonic() < until_s:
            time.sleep(self._random.uniform(0.3, 1.2))
            self._check_records()
            if driver.poll() is not None:
                if driver.returncode == 0:
                    break
                self._check_end(driver.returncode)
                driver = self._start()
            elif self.found.kills.total() < self._options["kills"] and self._known:
                self._kill(driver)
            while len(self._nodes.nodes) < NODES:
                self._nodes.add()
        else:
            self.found.other.append(f"the driver did not end within {DEADLINE_S:g} s: {self._log()[-2000:]}")
            driver.kill()
        self.found.left = self._nodes.left(within_s=GONE_WITHIN_S)
        self._check_records()
        self._check_runs()
        if len(self._known) != self._options["trials"]:
            self.found.other.append(f"{len(self._known)} of {self._options['trials']} trials are answered")
        self.found.left += [str(path) for path in self._records.glob("*.lock")]
        return self.found

    def _start(self) -> "subprocess.Popen[bytes]":
        self.found.starts += 1
        words = ["+grid=lora_vs_full", "model=qwen2.5-0.5b", "tuning=full", "optim=adamw_torch", "backend=simulated"]
        words += ["gradient_checkpointing=false", f"seed=range(1,{self._options['trials'] + 1})"]
        words += [f"results_dir={self._results}", "engine=ray", f"ray_address={self._nodes.address}"]
        with (self._nodes.folder / "driver.txt").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(HERE / "ray_driver.py"), *words],
                env=self._nodes.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _kill(self, driver: "subprocess.Popen[bytes]") -> None:
        what = self._random.choices(("driver", "node", "raylet", "slot"), weights=(2, 1, 1, 4))[0]
        if what == "slot":
            with suppress(psutil.Error, IndexError):
                self._random.choice(self._nodes.slots()).kill()
                self.found.kills[what] += 1
            return
        self.found.kills[what] += 1
        if what == "driver":
            driver.kill()
            driver.wait()
        else:
            self._nodes.kill(self._random.choice(self._nodes.nodes), only_raylet=what == "raylet")

    def _log(self) -> str:
        return (self._nodes.folder / "driver.txt").read_text(errors="replace")

    def _check_end(self, code: int) -> None:
        if code not in (-signal.SIGKILL, *_UNANSWERED):
            self.found.other.append(f"the driver ended with {code}: {self._log()[-3000:]}")

    def _check_records(self) -> None:
        now = {path.name: path.read_bytes() for path in self._records.glob("*.json")}
        self.found.lost += [name for name, content in self._known.items() if now.get(name) != content]
        self._known |= {name: content for name, content in now.items() if is_answer(content)}

    def _check_runs(self) -> None:
        lines = [line.split() for line in (self._results / ray_driver.NOTES).read_text().splitlines()]
        self.found.twice = [f"{trial_id} ran although it was stored" for word, trial_id, *_ in lines if word != "ran"]
        self.found.runs = len(lines)


def run(options: dict[str, int]) -> Found:
    """Start a cluster, run once and end the cluster."""
    with RayNodes() as nodes:
        for _ in range(NODES):
            nodes.add()
        return Stress(nodes, options).run()


def main(words: list[str]) -> int:
    """Run the stress and print its counts."""
    options = {"trials": 60, "kills": 20, "seed": int(time.time())}
    options |= {name: int(value) for name, value in (word.split("=", 1) for word in words)}
    began_s = time.monotonic()
    found = run(options)
    kills = ", ".join(f"{name} {count}" for name, count in sorted(found.kills.items()))
    print(
        f"ray: {options['trials']} trials on {NODES} nodes in {time.monotonic() - began_s:.0f} s, "
        f"{found.kills.total()} SIGKILL ({kills}), {found.starts} starts of the driver: {len(found.lost)} finished "
        f"trials lost, {len(found.twice)} run twice, {len(found.left)} processes or files left, "
        f"{len(found.other)} other problems, {found.runs} runs ended (seed={options['seed']})"
    )
    print("\n".join(found.problems()))
    return 1 if found.problems() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
