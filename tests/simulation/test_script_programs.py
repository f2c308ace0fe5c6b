"""What scripts run and trials do not allocates what it allocates on a card."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from emulated.script_programs import PROGRAMS
from trl.trainer import utils

from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.memory import Phase
from profiler.simulation.script.session import SimulatedScript

TABLE = json.loads(gzip.decompress((Path(__file__).parent / "emulated" / "script_programs.json.gz").read_bytes()))
CARDS = [name for name, gpu in KNOWN_GPUS.items() if gpu.title in TABLE["answers"]]


@pytest.fixture(scope="module", params=CARDS)
def events(request):
    """Events of all programs, each after a first run that makes the workspaces, by name; recorded and simulated."""
    gpu, simulated = KNOWN_GPUS[request.param], {}
    script = SimulatedScript(gpu, alloc_conf="", add_model=lambda _: None, add_optimizer=lambda _: None)
    with script.running():
        script.enter(Phase.FORWARD)
        for name, program in PROGRAMS.items():
            program("cuda")()
            simulated[name] = _events(script, program("cuda"))
    return TABLE["answers"][gpu.title], simulated


def _events(script, run):
    trace = script.recorder.trace
    before = len(trace.events)
    kept = run()
    found = [(1 if event > 0 else -1) * trace.sizes_bytes[abs(event) - 1] for event in trace.events[before:]]
    del kept
    return found


def test_there_are_recordings():
    assert CARDS


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_allocates_what_it_allocates_on_the_card(events, name):
    recorded, simulated = events
    assert simulated[name] == recorded[name]


def test_trl_is_itself_again_afterwards():
    assert not hasattr(utils, "_fused_logprob_entropy") or torch.cuda.is_available()
    logits = torch.randn(1, 4, 9)
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    expected = logits.log_softmax(-1)[..., 0]
    assert torch.allclose(utils.selective_log_softmax(logits, tokens), expected)
