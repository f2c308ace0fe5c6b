"""What is held at the peak of each phase, by category: histories worked by hand, and their sum."""

import ast
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profiler.allocator.histories.recorded import _SITES, HeldCategories, KnownBlocks
from profiler.allocator.settings import AllocatorConfig
from profiler.domain.memory import MIB, Category, Phase

_FSDP = "/env/site-packages/torch/distributed/fsdp/"
_VLLM = "/env/site-packages/vllm/v1/worker/"
_CLIENT = "/env/site-packages/vllm/v1/engine/core_client.py"
_FORKED = "/usr/lib/python3.11/multiprocessing/process.py:_bootstrap"


def take(address: int, size: int, *stack: str) -> dict:
    """A request; `stack` has ``"file:function"``, innermost first."""
    frames = [{"filename": each.partition(":")[0], "line": 1, "name": each.partition(":")[2]} for each in stack]
    return {"action": "alloc", "addr": address, "size": size, "frames": frames}


def free(address: int) -> dict:
    return {"action": "free_requested", "addr": address, "size": 0}


def read(held: HeldCategories, phase: Phase, *entries: dict, **known) -> dict[str, int]:
    found = held.read(entries, phase, KnownBlocks(**known))
    return {share.category.value: share.size_bytes for share in found}


def test_a_step_by_hand():
    """One weight of 1 MiB: what is named at the end of a phase, what is freed before, and what stays for the next."""
    held = HeldCategories(AllocatorConfig())
    weight = {(1, MIB): Category.WEIGHTS}
    assert read(held, Phase.LOAD, take(1, MIB), take(2, 100), free(2), categories=weight) == {
        "weights": MIB,
        "other": 512,
    }
    forward = (
        take(3, 2 * MIB, "model.py:forward"),
        take(4, 900 * 10, "model.py:forward"),
        take(5, 700, "model.py:loss"),
    )
    assert read(held, Phase.FORWARD, *forward, row_bytes=frozenset({900})) == {
        "weights": MIB,
        "activations": 2 * MIB + 1024,
        "logits": 9216,
    }
    backward = (take(6, MIB), free(3), take(7, 3 * MIB), free(4), free(7), free(5))
    gradient = {(6, MIB): Category.GRADIENTS}
    assert read(held, Phase.BACKWARD, *backward, categories=weight | gradient) == {
        "weights": MIB,
        "gradients": MIB,
        "activations": 3 * MIB + 1024,
        "logits": 9216,
    }
    states = {(8, MIB): Category.OPTIMIZER_STATE, (9, MIB): Category.OPTIMIZER_STATE}
    step = (take(8, MIB), take(9, MIB), take(10, MIB), free(10), free(6))
    assert read(held, Phase.OPTIMIZER, *step, categories=weight | states) == {
        "weights": MIB,
        "gradients": MIB,
        "optimizer_state": 2 * MIB,
        "workspace": MIB,
    }
    assert read(held, Phase.ROLLOUT, categories=weight) == {"weights": MIB, "optimizer_state": 2 * MIB}


@pytest.mark.parametrize(
    ("entry", "phase", "category"),
    [
        (
            take(1, 4096, f"{_FSDP}_flat_param.py:unshard", f"{_FSDP}_runtime_utils.py:_unshard"),
            "forward",
            "communication",
        ),
        (take(1, 4096, "utils.py:_alloc_storage", f"{_FSDP}_flat_param.py:pre_unshard"), "score", "communication"),
        (take(1, 4096, f"{_FSDP}_fully_shard/_fsdp_collectives.py:foreach_all_gather"), "score", "communication"),
        (take(1, 4096, f"{_FSDP}_runtime_utils.py:_post_backward_hook"), "backward", "gradients"),
        # What is gathered ahead, within the hook that reduces another unit.
        (
            take(1, 4096, f"{_FSDP}_flat_param.py:unshard", f"{_FSDP}_runtime_utils.py:_post_backward_hook"),
            "backward",
            "communication",
        ),
        (take(1, 4096, "model.py:forward", f"{_FSDP}fully_sharded_data_parallel.py:forward"), "forward", "activations"),
        (take(1, 4096, f"{_VLLM}gpu_model_runner.py:initialize_kv_cache_tensors"), "load", "kv_cache"),
        (take(1, 4096, f"{_VLLM}gpu_worker.py:load_model"), "load", "weights"),
        (
            take(1, 4096, f"{_VLLM}gpu/sample/penalties.py:__init__", f"{_VLLM}gpu_worker.py:load_model"),
            "load",
            "other",
        ),
        # vLLM in the process of the trainer: its weights, its cache and its passes are the engine's.
        (take(1, 4096, f"{_VLLM}gpu_worker.py:load_model", f"{_CLIENT}:__init__"), "load", "engine"),
        (
            take(1, 4096, f"{_VLLM}gpu_model_runner.py:initialize_kv_cache_tensors", f"{_CLIENT}:__init__"),
            "load",
            "engine",
        ),
        (take(1, 3 * 700, "model.py:forward", f"{_CLIENT}:get_output"), "rollout", "engine"),
        # vLLM in a process that its client forked: Python's stack still has the client.
        (take(1, 4096, f"{_VLLM}gpu_worker.py:load_model", _FORKED, f"{_CLIENT}:__init__"), "load", "weights"),
        (take(1, 4096), "sync", "communication"),
        (take(1, 4096), "optimizer", "workspace"),
        (take(1, 4096), "load", "other"),
        (take(1, 4096), "backward", "activations"),
        (take(1, 4000), "backward", "gradients"),  # autograd's own thread has no Python
        (take(1, 4000, "model.py:forward"), "backward", "activations"),  # computed again
        (take(1, 4000), "forward", "activations"),
        (take(1, 3 * 700), "forward", "logits"),
        (take(1, 8 * MIB, "linear.py:forward"), "forward", "workspace"),
    ],
)
def test_a_request_has_the_category_of_its_function_or_size(entry, phase, category):
    known = {"gradient_bytes": frozenset({4000}), "row_bytes": frozenset({700}), "workspace_bytes": 8 * MIB}
    found = read(HeldCategories(AllocatorConfig()), Phase(phase), entry, **known)
    assert list(found) == [category]


def test_a_parameter_does_not_name_what_was_gathered():
    """FSDP lets its parameter point to the whole weights while they are gathered; its own shard was named before."""
    held = HeldCategories(AllocatorConfig())
    assert read(held, Phase.LOAD, take(1, 1024), categories={(1, 1024): Category.WEIGHTS}) == {"weights": 1024}
    gathered = take(2, 4096, f"{_FSDP}_flat_param.py:unshard")
    found = read(held, Phase.SCORE, gathered, categories={(2, 4096): Category.WEIGHTS})
    assert found == {"weights": 1024, "communication": 4096}


def test_the_weights_of_an_engine_are_not_those_of_a_reference():
    """Nothing trains either of the two, and both run in the process of the trainer."""
    held = HeldCategories(AllocatorConfig())
    names = {(1, 4096): Category.REFERENCE, (2, 4096): Category.REFERENCE}
    of_engine = take(1, 4096, f"{_VLLM}gpu_worker.py:load_model", f"{_CLIENT}:__init__")
    assert read(held, Phase.LOAD, of_engine, take(2, 4096)) == {"engine": 4096, "other": 4096}
    assert read(held, Phase.ROLLOUT, categories=names) == {"reference": 4096, "engine": 4096}


def test_a_name_of_another_size_names_nothing():
    """Addresses are used again."""
    held = HeldCategories(AllocatorConfig())
    assert read(held, Phase.FORWARD, take(1, 4096), categories={(1, 1024): Category.WEIGHTS}) == {"activations": 4096}


@given(
    st.lists(
        st.lists(st.tuples(st.booleans(), st.integers(1, 12), st.integers(1, 5000)), max_size=12),
        min_size=1,
        max_size=4,
    )
)
def test_the_shares_add_up_to_the_peak_of_every_part(parts):
    held = HeldCategories(AllocatorConfig())
    live: dict[int, int] = {}
    for part in parts:
        entries, most = [], sum(live.values())
        for takes, address, size in part:
            if takes and address not in live:
                live[address] = -(-size // 512) * 512
                entries.append(take(address, size))
            elif not takes and address in live:
                del live[address]
                entries.append(free(address))
            most = max(most, sum(live.values()))
        assert sum(read(held, Phase.FORWARD, *entries, row_bytes=frozenset({700})).values()) == most


def test_functions_of_torch_have_the_names_of_sites():
    """Each text of `_SITES` about torch is in the name of a function of a file whose path has the other text."""
    root = Path(torch.__file__).parents[1]
    for path, names, _ in (site for site in _SITES if site[0].startswith("torch/")):
        files = [root / path] if path.endswith(".py") else sorted((root / path).rglob("*.py"))
        nodes = chain.from_iterable(ast.walk(ast.parse(file.read_text())) for file in files)
        functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        assert [name for name in names if not any(name in function for function in functions)] == []
