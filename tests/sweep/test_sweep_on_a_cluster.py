"""A sweep on a cluster with fakes: versions of nodes, cards, the identity of measured trials, and what is refused."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from sweep_fakes import VERSIONS, as_parts

from profiler.cluster.slots import Node, SlotKind
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_USAGE, Fault, UsageError
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus

GRID = "+grid=lora_vs_full"
FEW = (GRID, "model=tiny", "tuning=full", "optim=adamw_torch", "gradient_checkpointing=false")
NONE = VisibleGpus(gpus=(), note="there is none on this node")


def gpus(card, count, driver="580.65.06"):
    known = KNOWN_GPUS[card]
    found = [VisibleGpu(uuid=f"GPU-{n}", name=known.title, memory_bytes=known.memory_bytes) for n in range(count)]
    return VisibleGpus(gpus=tuple(found), note="", driver_version=driver)


def node(name="n1", card=None, count=1, **changes):
    changes = {"versions": VERSIONS, "gpus": gpus(card, count) if card else NONE, "accelerator": card or "", **changes}
    return Node(name=name, **changes)


@dataclass
class FakeCluster:
    """Nodes, and what was done with the cluster."""

    found: list = field(default_factory=lambda: [node()])
    runs: list = field(default_factory=list)
    pythons: list = field(default_factory=list)
    is_closed: bool = False

    def nodes(self, python=None):
        self.pythons.append(python)
        return self.found

    def close(self):
        self.is_closed = True


@pytest.fixture
def cluster():
    return FakeCluster()


@pytest.fixture
def on_cluster(sweep, world, cluster):
    def run_placed(plan, *, cluster, kind_of, **how):
        cluster.runs.append([(trial, kind_of(trial.spec)) for trial in plan])
        return world.run_trials(plan, **how)

    def run(*words):
        parts = world.parts(reach=lambda options: cluster, run=as_parts(run_placed))
        return sweep(*words, "engine=ray", parts=parts)

    return run


def test_simulated_trials_need_a_core_each(on_cluster, cluster):
    code, out, _ = on_cluster(*FEW, "backend=simulated")
    assert (code, "The cluster has 1 node with 0 GPUs." in out) == (0, True)
    assert [kind for _, kind in cluster.runs[0]] == [SlotKind()]
    assert cluster.is_closed


def test_the_identity_of_a_trial_is_that_of_one_machine(on_cluster, sweep, world, cluster):
    """What a cluster has measured or simulated is not run again on one machine with the same card and versions."""
    cluster.found = [node(card="h100-80gb")]
    for backend in ("simulated", "cuda"):
        on_cluster(*FEW, f"backend={backend}")
        world.visible = gpus("h100-80gb", 1)
        sweep(*FEW, f"backend={backend}")
    assert [len(plan) for plan, _ in world.runs] == [1, 1]


def test_a_measured_trial_runs_on_the_card_that_it_names(on_cluster, cluster):
    cluster.found = [node("n1", "l40s-48gb"), node("n2", "h100-80gb", 2), node("n3")]
    assert on_cluster(*FEW, "backend=cuda", "gpu=h100-80gb,l40s-48gb")[0] == 0
    found = {trial.spec.gpu: kind for trial, kind in cluster.runs[0]}
    assert {name: (kind.gpus, kind.accelerator) for name, kind in found.items()} == {
        "h100-80gb": (1, "h100-80gb"),
        "l40s-48gb": (1, "l40s-48gb"),
    }
    assert "H100" in found["h100-80gb"].hardware
    assert "L40S" in found["l40s-48gb"].hardware
    ids = {trial.trial_id for trial, _ in cluster.runs[0]}
    cluster.found = cluster.found[1:]
    on_cluster(*FEW, "backend=cuda", "gpu=h100-80gb")
    assert len(ids) == 2
    assert len(cluster.runs) == 1  # stored already, whatever the other nodes are


@pytest.mark.parametrize(
    ("words", "path", "is_emulated"),
    [
        (["backend=simulated", "python=envs/one"], str(Path.cwd() / "envs/one"), False),
        (["backend=simulated", "python='~/one'"], "~/one", False),
        (["backend=emulated"], "None", True),
        (["backend=simulated"], None, None),
    ],
)
def test_another_python_is_looked_for_on_the_nodes_and_its_versions_are_those_of_the_trials(
    on_cluster, world, cluster, words, path, is_emulated
):
    versions = replace(VERSIONS, trl="1.17.0", emulation=1)
    cluster.found = [node("n1", versions=versions), node("n2", versions=versions)]
    code, _, err = on_cluster(*FEW, *words)
    (python,) = cluster.pythons
    found = (None, None) if python is None else (str(python.options.python), python.is_emulated)
    assert (code, found) == (0, (path, is_emulated)), err
    assert world.runs[0][1]["versions"] == versions


def test_two_pythons_are_two_sweeps(on_cluster, cluster):
    on_cluster(*FEW, "backend=simulated", "python=/one,/two")
    assert [str(python.options.python) for python in cluster.pythons] == ["/one", "/two"]


def test_auto_measures_where_a_node_has_a_gpu(on_cluster, cluster):
    cluster.found = [node("n1"), node("n2", "h200-141gb")]
    code, out, _ = on_cluster(*FEW)
    assert code == 0
    assert "backend=auto: cuda, because NVIDIA H200 is visible." in out
    assert [kind.gpus for _, kind in cluster.runs[0]] == [1]


def test_several_gpus_are_those_of_one_node(on_cluster, cluster):
    cluster.found = [node("n1", "h100-80gb", 1), node("n2", "h100-80gb", 2)]
    words = (*FEW, "backend=cuda", "distributed_type=multi_gpu")
    assert on_cluster(*words, "num_processes=2")[0] == 0
    assert [kind.gpus for _, kind in cluster.runs[0]] == [2]
    code, _, err = on_cluster(*words, "num_processes=3")
    assert code == EXIT_USAGE
    assert "num_processes=3: needs 3 GPUs of one kind in one node, and the largest has 2." in err


@pytest.mark.parametrize(
    ("nodes", "words", "sentence"),
    [
        (
            [node(), node("n2", versions=replace(VERSIONS, torch="2.12.0", trl=None))],
            ["backend=simulated"],
            "engine=ray: node n2 has torch 2.12.0 and no trl, and on node n1 it is torch 2.13.0 and trl 1.16.0.",
        ),
        (
            [node(versions=replace(VERSIONS, profiler="0.0.1"))],
            ["backend=simulated"],
            "engine=ray: node n1 has grpo-vram 0.0.1, and here it is grpo-vram 0.1.",
        ),
        ([node(lacks=("trl", "peft"))], ["backend=simulated"], "engine=ray: node n1 lacks trl and peft. Install"),
        (
            [node(), node("n2", faults=(Fault(key="python", found="/x", problem="has no trl", hint="Install it."),))],
            ["backend=simulated", "python=/x"],
            "python=/x: has no trl on node n2. Install it.",
        ),
        ([node()], ["backend=cuda"], "backend=cuda: needs a GPU, but no node of the cluster has one."),
        (
            [node(card="l40s-48gb")],
            ["backend=cuda", "gpu=h100-80gb"],
            "gpu=h100-80gb: no node of the cluster has this card; they have NVIDIA L40S.",
        ),
        (
            [node(card="h100-80gb")],
            ["backend=cuda", "gpu=l40s-48gb"],
            "gpu=l40s-48gb: no node of the cluster has this card; they have NVIDIA H100 80GB HBM3.",
        ),
    ],
)
def test_what_the_nodes_cannot_run_is_refused_before_the_first_trial(on_cluster, cluster, nodes, words, sentence):
    cluster.found = nodes
    code, _, err = on_cluster(*FEW, *words)
    assert (code, sentence in err, cluster.runs) == (EXIT_USAGE, True, []), err
    assert cluster.is_closed


def test_a_cluster_that_fails_to_answer_is_left(on_cluster, cluster):
    def nodes(python=None):
        raise UsageError([Fault(key="engine", found="ray", problem="node n1 did not answer")])

    cluster.nodes = nodes
    code, _, err = on_cluster(*FEW, "backend=simulated")
    assert (code, err.strip()) == (EXIT_USAGE, "engine=ray: node n1 did not answer.")
    assert cluster.is_closed


def test_an_out_of_memory_on_one_card_implies_nothing_on_another(on_cluster, cluster, world):
    cluster.found = [node("n1", "l40s-48gb"), node("n2", "h100-80gb")]
    on_cluster(*FEW, "backend=cuda", "gpu=null")
    pruning = world.runs[0][1]["pruning"]
    groups = {pruning.group_of(replace(world.runs[0][0][0].spec, gpu=gpu)) for gpu in (None, "l40s-48gb", "h100-80gb")}
    assert len(groups) == 2


def test_a_dry_run_asks_no_cluster(sweep, world):
    parts = world.parts(reach=lambda options: pytest.fail("the cluster was asked"))
    assert sweep(*FEW, "backend=simulated", "engine=ray", "dry_run=true", parts=parts)[0] == 0
