"""Kill runs of a framework's own command at random moments, and look for what they leave: processes and files.

    python tests/stress/whole_commands.py kills=10 python=PYTHON [of=verl] [seed=0] [within_s=100] [skip=0]

PYTHON is printed by `python -m profiler.emulation install requirements=emulated_environments/verl.txt`; of=openrlhf
has openrlhf.txt, and of=trl, which starts a server and a trainer, has trl.txt. Each run gets one signal (SIGINT,
SIGTERM or SIGKILL), to the program itself, to its keeper or to a random process below that: nine
runs have every pair once. One run in three gets it in the first two seconds of that process, or of the first one below.
A run that goes on without the process is ended by SIGTERM a minute later. With the same seed `skip` leaves out the
first runs, which were done before. Files in /tmp and in shared memory that other programs make then are reported too:
run it where nothing else does, or as root behind
`unshare -m sh -c 'mount -t tmpfs none /tmp; mount -t tmpfs none /dev/shm; exec "$@"' sh`.
"""

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
from found import Found
from processes import GONE_WITHIN_S, MARK, left_of

from profiler.emulation.interpreter import VARIABLE, cache_folder

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "verl": (ROOT / "tests" / "run" / "programs" / "verl_grpo.sh", "trainer.n_gpus_per_node=2"),
    "trl": (ROOT / "examples" / "scripts" / "grpo_server.sh",),
    "openrlhf": (ROOT / "examples" / "scripts" / "openrlhf_grpo.sh",),
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
PLACES = (Path(tempfile.gettempdir()), Path("/dev/shm"))
GOES_ON_S = 60.0
"""How long a run may go on without one of its processes, before it is ended too."""
PROGRAM, KEEPER, OTHER = "the program", "the keeper", "another process"
VICTIMS = (PROGRAM, KEEPER, OTHER)
EARLY_S, EARLY_SHARE = 2.0, 1 / 3


@dataclass(frozen=True)
class Kill:
    """One signal: which, to what, how long after its start, and the choice among several processes (from 0 to 1)."""

    number: signal.Signals
    victim: str
    after_s: float
    place: float

    @classmethod
    def sampled(cls, chance: random.Random, within_s: float) -> Iterator[Self]:
        """Yield kills without end: every pair of signal and victim comes once before any comes again."""
        while True:
            pairs = list(itertools.product(SIGNALS, VICTIMS))
            chance.shuffle(pairs)
            for number, victim in pairs:
                ends_s = EARLY_S if chance.random() < EARLY_SHARE else within_s
                yield cls(number, victim, after_s=chance.uniform(0.0, ends_s), place=chance.random())

    def among(self, program: psutil.Process) -> list[psutil.Process]:
        """Return the processes of which one gets the signal; none where they are not there."""
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if self.victim == PROGRAM:
                return [program]
            # Of what the program starts the keeper alone has a session of its own.
            keepers = [each for each in program.children() if os.getsid(each.pid) == each.pid]
            below = [each for keeper in keepers for each in keeper.children(recursive=True)]
            return keepers if self.victim == KEEPER else below
        return []

    def sent(self, program: psutil.Process) -> tuple[psutil.Process, str]:
        """Wait for the process and then for its time, send the signal, and return to which it went and what was sent.

        It goes to the program where the process that is meant does not come or has ended.
        """
        until_s = time.monotonic() + GOES_ON_S
        while not self.among(program) and time.monotonic() < until_s:
            time.sleep(0.01)
        time.sleep(self.after_s)
        found = self.among(program)
        process, name = (found[int(self.place * len(found))], self.victim) if found else (program, PROGRAM)
        with suppress(psutil.NoSuchProcess):
            name = process.name() if name == OTHER else name
            process.send_signal(self.number)
        return process, f"{self.number.name} to {name}"


def names() -> set[str]:
    """Return what lies in the folders that all programs share."""
    return {str(path) for place in PLACES if place.is_dir() for path in place.iterdir()}


def kill_once(folder: Path, python: str, of: str, kill: Kill, found: Found) -> None:
    """Start a run, send one signal to one of its processes, and note what is left when it has ended."""
    mark = f"{os.getpid()}-{found.runs}"
    words = (f"results_dir={folder}", "gpus=2xh100-80gb", "ranks=1", f"python={python}", "timeout_s=500")
    command = (sys.executable, "-m", "profiler.run", *words, "bash", *map(str, COMMANDS[of]))
    variables = {MARK: mark, VARIABLE: str(cache_folder()), "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    before = names()
    with (folder / "log").open("wb") as log:
        run = subprocess.Popen(command, cwd=folder, env=os.environ | variables, stdout=log, stderr=log)
    found.runs += 1
    program = psutil.Process(run.pid)
    victim, what = kill.sent(program)
    found.kills[what] += 1
    what += f" after {kill.after_s:.1f} s"
    try:
        run.wait(GOES_ON_S)
    except subprocess.TimeoutExpired:
        if victim == program:
            found.other.append(f"{what}: it goes on after {GOES_ON_S:g} s")
        run.terminate()
        run.wait(GONE_WITHIN_S)
    found.left += [f"{what}: process {each}" for each in left_of(mark)]
    until_s = time.monotonic() + GONE_WITHIN_S  # the keeper removes files after the last process
    while (left := names() - before) and time.monotonic() < until_s:
        time.sleep(0.2)
    left |= {str(path) for path in folder.glob("jobs/*/processes-*")}
    found.left += [f"{what}: file {name}" for name in sorted(left)]
    print(f"{found.runs}: {what}, exit code {run.returncode}, left {len(left)} files", flush=True)


def main(words: list[str]) -> int:
    """Do what the module says; 1 if something was left."""
    given = dict(word.partition("=")[::2] for word in words)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job hands on that it is ignored
    chance, found = random.Random(int(given.get("seed", "0"))), Found()
    kills = Kill.sampled(chance, float(given.get("within_s", "100")))
    first = int(given.get("skip", "0"))
    with tempfile.TemporaryDirectory(dir=given.get("folder"), ignore_cleanup_errors=True) as folder:
        for kill in itertools.islice(kills, first, first + int(given.get("kills", "10"))):
            kill_once(Path(folder), given["python"], given.get("of", "verl"), kill, found)
    for problem in found.problems():
        print(problem)
    print(f"{found.runs} runs killed: {dict(found.kills)}; {len(found.problems())} problems.")
    return bool(found.problems())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
