"""Bad input, environments and outputs of commands that run in processes of their own."""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cases import BOMB, LONG, Files, Special, bad
from matrix import with_further

from profiler.storage.foreign.hub import ANSWER_S

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "reference" / "logprobs"

ALONE = {"HF_HOME": "empty"}
"""No cached file of the hub: a folder in the working folder."""

FULL = "Standard output cannot be written (No space left on device); the command goes on without it."
GONE = "working folder=(gone): … Change to a folder that exists."


@dataclass(frozen=True, kw_only=True)
class Real:
    """A command line for a shell, in a folder of its own."""

    line: str
    """After `python -m`."""
    says: str = ""
    """As in `Case`; empty if standard error must be."""
    code: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Files = field(default_factory=dict)
    before: str = ""
    """Command of the shell that runs first."""
    sentences: int = 1


def full(line: str) -> Real:
    """A command whose standard output is on a full disk."""
    return Real(line=f"{line} > /dev/full", says=FULL, code=1)


def closed(line: str) -> Real:
    """A command whose standard output is closed, as that of `| head` is."""
    return Real(line=f"{line} >&-", code=0, sentences=0)


def gone(line: str) -> Real:
    """A command in a folder that has been removed."""
    return Real(line=line, says=GONE, before="mkdir gone && cd gone && rmdir ../gone &&")


def hub(says: str, **environment: str) -> Real:
    """A hub id in an environment."""
    said = f"model=somebody/model: its config.json is unavailable from the hub … {says}"
    return Real(line="profiler.estimate model=somebody/model", says=said, environment=ALONE | environment)


COMMANDS = (
    full("profiler.estimate model=tiny"),
    full("profiler.estimate model=tiny format=json"),
    full("profiler.estimate --help"),
    full("profiler.sweep --help"),
    full("profiler.sweep +grid=logprobs --cfg job"),
    full("profiler.sweep +grid=logprobs dry_run=true"),
    full(f"profiler.report {RESULTS} {RESULTS}"),
    full("profiler.replay --help"),
    full("profiler.console --help"),
    closed("profiler.estimate model=tiny"),
    closed("profiler.sweep +grid=logprobs dry_run=true"),
    closed("profiler.console --version"),
    Real(line="profiler.estimate model=tiny <&- >&- 2>&-", code=0, sentences=0),
    Real(line="profiler.estimate model=huge 2>&-", sentences=0),
    Real(line="profiler.estimate model=huge 2> /dev/full", sentences=0),
    gone("profiler.estimate model=tiny"),
    gone("profiler.sweep +grid=logprobs"),
    gone("profiler.report x"),
    gone("profiler.replay x.pickle"),
    hub("HF_HUB_OFFLINE is set, and the local cache has no copy", HF_HUB_OFFLINE="1"),
    hub("http://127.0.0.1:9 cannot be reached", HF_ENDPOINT="http://127.0.0.1:9"),
    hub("HF_ENDPOINT=huggingface.co must be an address such as https://", HF_ENDPOINT="huggingface.co"),
    hub("HF_ENDPOINT= must be an address such as https://", HF_ENDPOINT=""),
    Real(
        line="profiler.estimate model=größe/config.json",
        says="model=gr",
        environment={"PYTHONIOENCODING": "ascii"},
        files={"größe/config.json": "{}"},
    ),
    Real(line="profiler.estimate model='~nosuchuser'", says="model=~nosuchuser"),
    Real(line=f"profiler.estimate model={LONG}", says="model=aaa … File name too long"),
    Real(line="profiler.estimate config=f.yaml", says="more than 100,000 values", files={"f.yaml": BOMB}),
    Real(line="profiler.estimate config=f.yaml", says="it is not a regular file", files={"f.yaml": Special.FIFO}),
    Real(line="profiler.estimate config=/dev/zero", says="it is not a regular file"),
    Real(line="profiler.estimate config=/dev/stdin < /dev/zero", says="it is not a regular file"),
    Real(line="profiler.estimate model=tiny seed=2020-13-45", says="seed=2020-13-45"),
    Real(line="profiler.sweep +grid=logprobs 'seed=range(0,1000000000)'", says="has more values than the 100,000"),
    Real(line="profiler.sweep +grid=logprobs timeout_s=1e9", says="timeout_s="),
    Real(
        line="profiler.sweep -cd . +grid=mine",
        says="its list of defaults includes itself",
        files={"grid/mine.yaml": "# @package _global_\ndefaults: [mine]\n"},
    ),
    Real(line="profiler.replay f.pickle", says="it is not a regular file", files={"f.pickle": Special.FIFO}),
    Real(line="profiler.report f", says="it is not a regular file", files={"f/runs.parquet": Special.FIFO}),
    Real(line="profiler.console sweeep", says="command=sweeep"),
    Real(line="maintenance.campaign rollouts", says="folder=(none)"),
)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    lines: list[str]


def run(real: Real, folder: Path) -> Ended:
    bad(files=real.files).prepare(folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TQDM_DISABLE": "1", **real.environment}
    words = f"{real.before} exec {shlex.quote(sys.executable)} -m {real.line}"
    done = subprocess.run(
        ["bash", "-c", words], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=120
    )
    return Ended(done.returncode, done.stderr.decode().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("real", with_further(COMMANDS, COMMANDS[::2]), ids=lambda real: real.line[:60])
def test_a_command_ends_with_one_sentence(real, tmp_path):
    found = run(real, tmp_path)
    assert found.code == real.code, found
    assert len(found.lines) == real.sentences, found
    for text in filter(None, real.says.split(" … ")):
        assert text in found.lines[0]


@pytest.mark.slow
def test_a_hub_that_is_silent_is_given_up(tmp_path):
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = (
            "import time\n"
            "from profiler.storage.foreign.hub import HubError, hub_file\n"
            "start = time.monotonic()\n"
            "try: hub_file('somebody/model', 'config.json')\n"
            "except HubError as error: print(time.monotonic() - start, error)"
        )
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **ALONE, "HF_ENDPOINT": address}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
    took, _, reason = done.stdout.partition(" ")
    assert float(took) < 30 * ANSWER_S, done
    assert address in reason
