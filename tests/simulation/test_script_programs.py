"""What scripts run and trials do not allocates what it allocates on a card."""

import gzip
import json
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from emulated.compared import SELECTION_BYTES
from emulated.script_programs import PROGRAMS, SORTS
from trl.trainer import utils

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UnsupportedTrialError
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
        for name, program in (PROGRAMS | SORTS).items():
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
    assert _in_one_order(simulated[name]) == _in_one_order(recorded[name])


def _in_one_order(found):
    """Return events without CUB's selections, and frees that follow each other in the order of their sizes."""
    ordered, freed = [], []
    for size in found:
        if abs(size) == SELECTION_BYTES:
            continue
        if size < 0:
            freed.append(size)
        else:
            ordered += [*sorted(freed), size]
            freed = []
    return ordered + sorted(freed)


@pytest.mark.parametrize("name", SORTS)
def test_a_sort_of_long_rows_takes_what_it_takes_but_for_tables(events, name):
    recorded, simulated = (max(accumulate(found[name])) for found in events)
    assert 0.97 * recorded < simulated <= recorded


def test_trl_is_itself_again_afterwards():
    assert not hasattr(utils, "_fused_logprob_entropy") or torch.cuda.is_available()
    logits = torch.randn(1, 4, 9)
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    expected = logits.log_softmax(-1)[..., 0]
    assert torch.allclose(utils.selective_log_softmax(logits, tokens), expected)


@pytest.mark.parametrize("name", ["divergence, forward", "divergence, mixture"])
def test_a_divergence_in_bfloat16_is_refused_where_torch_has_no_product(name):
    """torch fails on such a card too: "gemm input type at::BFloat16 and output type float"."""
    script = SimulatedScript(
        KNOWN_GPUS["t4-16gb"], alloc_conf="", add_model=lambda _: None, add_optimizer=lambda _: None
    )
    refused = r"^trl's divergence from the teacher in bfloat16 .*Load the models in float16 or float32"
    with script.running(), pytest.raises(UnsupportedTrialError, match=refused):
        PROGRAMS[name]("cuda")()
    with script.running():
        PROGRAMS["divergence, float32"]("cuda")()
