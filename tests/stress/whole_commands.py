"""Kill runs of verl's own command at random moments, and look for what they leave: processes and files.

    python tests/stress/whole_commands.py kills=10 python=PYTHON [seed=0] [within_s=100]

PYTHON is printed by `python -m profiler.emulation install requirements=emulated_environments/verl.txt`. Each run gets
one signal (SIGINT, SIGTERM or SIGKILL), to the program itself or to a random process below it. A run that goes on
without it is ended by SIGTERM a minute later. Files in /tmp and in shared memory that other programs make then are
reported too: run it where nothing else does, or as root behind
`unshare -m sh -c 'mount -t tmpfs none /tmp; mount -t tmpfs none /dev/shm; exec "$@"' sh`.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from found import Found
from processes import GONE_WITHIN_S, MARK, left_of

from profiler.emulation.interpreter import VARIABLE, cache_folder

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "run" / "programs" / "verl_grpo.sh"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
PLACES = (Path(tempfile.gettempdir()), Path("/dev/shm"))
GOES_ON_S = 60.0
"""How long a run may go on without one of its processes, before it is ended too."""


def names() -> set[str]:
    """Return what lies in the folders that all programs share."""
    return {str(path) for place in PLACES if place.is_dir() for path in place.iterdir()}


def kill_once(folder: Path, python: str, chance: random.Random, within_s: float, found: Found) -> None:
    """Start a run, send one signal to one of its processes, and note what is left when it has ended."""
    mark = f"{os.getpid()}-{found.runs}"
    words = (f"results_dir={folder}", "gpus=2xh100-80gb", "ranks=1", f"python={python}", "timeout_s=500")
    command = (sys.executable, "-m", "profiler.run", *words, "bash", str(SCRIPT), "trainer.n_gpus_per_node=2")
    variables = {MARK: mark, VARIABLE: str(cache_folder()), "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    before = names()
    with (folder / "log").open("wb") as log:
        run = subprocess.Popen(command, cwd=folder, env=os.environ | variables, stdout=log, stderr=log)
    found.runs += 1
    time.sleep(chance.uniform(0.2, within_s))
    number, of_program = chance.choice(SIGNALS), chance.random() < 0.6
    below = [] if of_program or run.poll() is not None else psutil.Process(run.pid).children(recursive=True)
    victim = chance.choice(below) if below else psutil.Process(run.pid)
    what = f"{number.name} to {'the program' if victim.pid == run.pid else victim.name()}"
    victim.send_signal(number)
    found.kills[what] += 1
    try:
        run.wait(GOES_ON_S)
    except subprocess.TimeoutExpired:
        if victim.pid == run.pid:
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
    chance, found = random.Random(int(given.get("seed", "0"))), Found()
    with tempfile.TemporaryDirectory(dir=given.get("folder"), ignore_cleanup_errors=True) as folder:
        for _ in range(int(given.get("kills", "10"))):
            kill_once(Path(folder), given["python"], chance, float(given.get("within_s", "100")), found)
    for problem in found.problems():
        print(problem)
    print(f"{found.runs} runs killed: {dict(found.kills)}; {len(found.problems())} problems.")
    return bool(found.problems())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
