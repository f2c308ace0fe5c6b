"""trl's server and its trainer on two emulated cards, as examples/scripts/grpo_server.sh starts them.

TRL_PYTHON is what `python -m profiler.emulation install requirements=emulated_environments/trl.txt` prints.
"""

import json
import os
import socket
from pathlib import Path

import pytest

from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED
from profiler.domain.memory import GIB, Phase
from profiler.domain.runs.other_runs import JobProcess, JobRecord
from profiler.measurement.samples.host_usage import process_tree
from profiler.run.main import main
from profiler.storage.files.typed_json import from_json

PYTHON = os.environ.get("TRL_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="TRL_PYTHON names no environment")

SCRIPT = Path(__file__).parents[2] / "examples" / "scripts" / "grpo_server.sh"
WORDS = ("gpus=2xh100-80gb", f"python={PYTHON}", "timeout_s=560")
OPTIONS = "--enforce_eager True --max_model_len 2048"


def run(folder: Path) -> tuple[int, JobRecord]:
    before = process_tree()
    code = main([f"results_dir={folder}", *WORDS, "bash", str(SCRIPT)])
    assert process_tree() <= before
    return code, from_json(JobRecord, json.loads((folder / "jobs" / "grpo_server" / "job.json").read_text()))


def doing(record: JobRecord, role: str) -> tuple[JobProcess, dict[Phase, int]]:
    (found,) = (process for process in record.memory.processes if process.roles == (role,))
    return found, {phase.phase: phase.allocated_bytes for phase in found.phases}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_a_trainer_and_its_server_have_their_cards_and_phases(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERVER_OPTIONS", OPTIONS)
    monkeypatch.setenv("PORT", str(free_port()))
    code, record = run(tmp_path)
    assert (code, record.status, record.message, record.left) == (EXIT_OK, "ok", "", ())
    trainer, trains = doing(record, "trains")
    engine, generates = doing(record, "generates")
    assert trainer.peak_bytes[0] > 0 == trainer.peak_bytes[1]
    assert engine.peak_bytes[0] == 0 < engine.peak_bytes[1]
    assert (trainer.rank, engine.rank) == (None, 0)
    assert generates.keys() == {Phase.LOAD, Phase.ROLLOUT, Phase.SYNC}
    assert trains.keys() == generates.keys() | {
        Phase.SCORE, Phase.REWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
    }  # fmt: skip
    # 494,032,768 x 4 B on their way, next to the weights and two states of the optimizer.
    assert trains[Phase.SYNC] - trains[Phase.ROLLOUT] == pytest.approx(494_032_768 * 4, rel=0.01)
    assert generates[Phase.LOAD] == pytest.approx(0.9 * 84_944_093_184, abs=0.2 * GIB)


def test_a_busy_port_ends_the_command_with_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERVER_OPTIONS", OPTIONS)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as vLLM's own server has it
        other.bind(("0.0.0.0", 0))
        other.listen()
        monkeypatch.setenv("PORT", str(port := other.getsockname()[1]))
        code, record = run(tmp_path)
    assert (code, record.status) == (EXIT_SOME_TRIALS_FAILED, "failed")
    said = " ".join(capsys.readouterr().out.split())
    assert f"port {port} is in use by process {os.getpid()}: end it, or choose another port" in said
