"""Slots of a real Slurm are killed and requeued: no finished trial is lost, and none runs twice.

`python tests/stress/slurm_sweep.py [trials=60] [slots=4] [kills=20] [requeues=5] [limits=3] [drivers=2] [seed=N]`
starts a Slurm with one node (`slurm_node.py`), runs a sweep with engine=slurm, and ends with 0 if all is well. Slots
and their workers are killed by SIGKILL; slots are requeued by scontrol, and by the signal that announces their time
limit; the command itself is killed and started again.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import shared_machine
from shared_store import MARK, Stress, _marked
from slurm_node import lacking, slurm_node

from profiler.domain.machines.engines import Address, Scheme
from profiler.storage.stores.objects import FolderObjects

HERE = Path(__file__).parent
DEADLINE_S = 900.0


class SlurmStress(Stress):
    """One run: the checks are those of machines that share a store, and what is killed are slots."""

    requeues = 0
    limits = 0
    _known_then = 0
    _killed_since = 0

    def run_on(self, objects: FolderObjects, words: list[str]) -> None:
        """Kill and requeue slots until the command has ended well."""
        until_s = time.monotonic() + DEADLINE_S
        driver = self._driver(words)
        while driver.poll() is None and time.monotonic() < until_s:
            time.sleep(self._random.uniform(0.5, 1.5))
            self._disturb()
            part = len(self._known) / self._options["trials"]
            if self.found.kills["driver"] < self._options["drivers"] * part:
                self.found.kills["driver"] += 1
                driver.kill()
            if driver.poll() not in (None, 0):
                self._check_end("driver", driver.returncode)
                driver = self._driver(words)
            self._check_records(objects)
        if driver.poll() is None:
            self.found.other.append(f"the sweep did not end within {DEADLINE_S:g} s")
            driver.kill()

    def _driver(self, words: list[str]) -> subprocess.Popen[bytes]:
        self.found.starts += 1
        folder = self._folder / "driver"
        folder.mkdir(exist_ok=True)
        with (folder / "log.txt").open("ab") as log:
            command = [sys.executable, str(HERE / "shared_machine.py"), "driver", str(self._address), str(self._notes)]
            return subprocess.Popen([*command, *words], env=self._environment, stdout=log, stderr=log, cwd=folder)

    def _disturb(self) -> None:
        """Kill the process of a slot, or let Slurm requeue one."""
        queue = subprocess.run(
            ["squeue", "--array", "--noheader", "--format=%i %T %R"],
            env=self._environment, capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
        found = [line.split() for line in queue.stdout.splitlines()]
        running = [words[0] for words in found if words[1] == "RUNNING"]
        for name in (words[0] for words in found if words[2] == "(BeginTime)"):
            # Slurm starts what was requeued after two minutes.
            self._slurm("scontrol", "update", f"JobId={name}", "StartTime=now")
        if not running:
            return
        kills, part = self.found.kills["slot"] + self.found.kills["worker"], len(self._known) / self._options["trials"]
        if self.requeues < self._options["requeues"] * part:
            self.requeues += 1
            self._slurm("scontrol", "requeue", self._random.choice(running))
        elif self.limits < self._options["limits"] * part:
            self.limits += 1
            self._slurm("scancel", "--signal=USR2", self._random.choice(running))
        elif kills < self._options["kills"] * part + 1:
            self._kill_one()

    def _slurm(self, *words: str) -> None:
        subprocess.run(words, env=self._environment, capture_output=True, timeout=20, check=False)

    def _kill_one(self) -> None:
        """Kill a slot or its worker, unless as many as there are slots were killed since a trial has ended.

        Slots that are lost one after the other, three times each, end a sweep.
        """
        if len(self._known) > self._known_then:
            self._known_then, self._killed_since = len(self._known), 0
        if self._killed_since >= self._options["slots"]:
            return
        self._killed_since += 1
        slots = [each for each in _marked(self._environment[MARK]) if "submitit.core._submit" in _line(each)]
        slots = [each for each in slots if "srun" not in _line(each) and "slurm_script" not in _line(each)]
        if not slots:
            return
        chosen = self._random.choice(slots)
        with suppress(psutil.Error):
            workers = [each for each in chosen.children(recursive=True) if not each.children()]
            if workers and self._random.random() < 0.5:
                self.found.kills["worker"] += 1
                self._random.choice(workers).kill()
            else:
                self.found.kills["slot"] += 1
                chosen.kill()


def _line(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def run(options: dict[str, int], environment: Mapping[str, str]) -> SlurmStress:
    """Run once in a Slurm that runs already."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-stress-"))
    mark = f"{os.getpid()}-{options['seed']}"
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    home = folder / "home"
    own = {**environment, MARK: mark, "PYTHONPATH": path, "GRPO_VRAM_CACHE": str(home)}
    address = Address(scheme=Scheme.FILE, path=str(folder / "mounted"))
    own |= {shared_machine.NOTES: str(folder / "notes.txt"), shared_machine.STORE: f"{address}/lora_vs_full"}
    words = ["backend=simulated", "model=qwen2.5-0.5b", "tuning=full", "optim=adamw_torch", "lease_s=4"]
    words += ["gradient_checkpointing=false", f"seed=range(1,{options['trials'] + 1})"]
    words += ["engine=slurm", f"jobs={options['slots']}", "slurm_time=10", "slurm_gpus_per_node=null"]
    try:
        objects = FolderObjects(folder / "mounted" / "lora_vs_full")
        stress = SlurmStress(address, own, folder, {**options, "machines": 0})
        stress.run_on(objects, words)
        stress.conclude(objects)
        stress.found.left += [str(path) for path in home.glob("shared/*/*/records/*.json")]
        return stress
    finally:
        for each in _marked(mark):
            each.kill()
        shutil.rmtree(folder, ignore_errors=True)


def main(words: list[str]) -> int:
    """Run the stress and print its counts."""
    if absent := lacking():
        print(f"not installed: {', '.join(absent)} (Debian: slurmctld slurmd slurm-client munge)")
        return 2
    options = {
        "trials": 60,
        "slots": 4,
        "kills": 20,
        "requeues": 5,
        "limits": 3,
        "drivers": 2,
        "seed": int(time.time()),
    }
    options |= {name: int(value) for name, value in (word.split("=", 1) for word in words)}
    began_s = time.monotonic()
    random.seed(options["seed"])
    with slurm_node() as environment:
        stress = run(options, environment)
    found = stress.found
    kills = ", ".join(f"{name} {count}" for name, count in sorted(found.kills.items()))
    print(
        f"slurm: {options['trials']} trials on {options['slots']} slots in {time.monotonic() - began_s:.0f} s, "
        f"{found.kills.total()} SIGKILL ({kills}), {stress.requeues} requeued, {stress.limits} time limits, "
        f"{found.starts} starts of the command: "
        f"{len(found.lost)} published trials lost, {len(found.twice)} run twice, {len(found.left)} processes, claims "
        f"or files left, {len(found.other)} other problems, {found.runs} runs ended (seed={options['seed']})"
    )
    print("\n".join(found.problems()))
    return 1 if found.problems() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
