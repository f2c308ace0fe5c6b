"""A layer that is replayed operation by operation requests and frees what a simulated one does, in the same order."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from matrix import further
from simulating import LORA, simulate, small_spec

from profiler.allocator import Trace
from profiler.analytical.formulas.sizes.trial_keys import Batch, generated_micro_batch, itemised_keys
from profiler.analytical.replayed.decoder.dense_layer import DenseLayer, is_known
from profiler.analytical.replayed.decoder.operations import Operations
from profiler.analytical.replayed.requests import Requests
from profiler.config.models.architecture import read_architecture
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.memory import Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import Attention, Dtype, Lengths, Logprobs, TrialSpec, Tuning

WIDE = dict(BUILTIN_MODELS["tiny"].config) | {
    "num_hidden_layers": 5, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 30_000,
}  # fmt: skip
"""Tensors of [T, H] have 4 MiB in 16 bits, those of adapters and of one number per row are below the smallest seen."""
QWEN2, QWEN3, LLAMA = (WIDE | {"model_type": name} for name in ("qwen2", "qwen3", "llama"))
QLORA = LORA | {"tuning": Tuning.QLORA}
ADAPTED = LORA | {"tuning": Tuning.LORA}
QUERIES = {"lora_target_modules": ("q_proj", "v_proj")}
KEPT, WHOLE = {"gradient_checkpointing": False}, {"lengths": Lengths.FORCED}
LAYER, LEAST_BYTES = 2, 200_000
CASES = [
    (QWEN2, {}),
    (QWEN3, ADAPTED),
    (QWEN2, QLORA),
    (LLAMA, ADAPTED | {"dtype": Dtype.FLOAT32}),
    (LLAMA, QLORA | QUERIES | WHOLE),
    *further(
        (QWEN3, {}),
        (QWEN3, QLORA),
        (QWEN2, ADAPTED | KEPT),
        (LLAMA, KEPT | WHOLE),
        (LLAMA, ADAPTED | {"lora_dropout": 0.05}),
        (LLAMA, QLORA | {"lora_dropout": 0.05}),
        (LLAMA, ADAPTED | {"bf16": False}),
        (LLAMA, ADAPTED | QUERIES | {"attn_implementation": Attention.FLASH_ATTENTION_2} | WHOLE),
        (LLAMA, {"dtype": Dtype.FLOAT16, "bf16": False}),
        (QWEN3, QLORA | KEPT | {"logprobs": Logprobs.FULL}),
    ),
]


def keys_of(changes: dict[str, Any]) -> dict[str, Any]:
    one = {"steps": 1, "gradient_accumulation_steps": 1, "steps_per_generation": 1, "gradient_checkpointing": True}
    return {**one, "max_prompt_length": 256, "max_completion_length": 256, **changes}


def in_order(events: Iterable[int], sizes: Sequence[int]) -> list[object]:
    """Return the bytes of what is requested, and between two requests those of all that is freed."""
    found: list[object] = []
    freed: list[int] = []
    for event in events:
        size = int(sizes[abs(event) - 1])
        if size < LEAST_BYTES:
            continue
        if event > 0:
            found += [sorted(freed), size]
            freed = []
        else:
            freed.append(size)
    return [*found, sorted(freed)]


def simulated(trace: Trace) -> Iterator[list[object]]:
    """Yield what the forward and the backward of a layer in the middle do, without the kernels of sums."""
    sums = {block for block, site in enumerate(trace.site_of) if "sum.dim" in trace.sites[site].operation}
    sums = {block for block in sums if "kernel" in trace.sites[trace.site_of[block]].operation}
    phase = Phase.LOAD
    starts = dict(trace.phase_starts)
    first: dict[tuple[Phase, int], int] = {}
    for index, event in enumerate(trace.events):
        phase = starts.get(index, phase)
        if event > 0:
            first.setdefault((phase, trace.sites[trace.site_of[event - 1]].layer), index)
    for phase, following in ((Phase.FORWARD, LAYER + 1), (Phase.BACKWARD, LAYER - 1)):
        events = trace.events[first[phase, LAYER] : first[phase, following]]
        yield in_order([event for event in events if abs(event) - 1 not in sums], trace.sizes_bytes)


def replayed(spec: TrialSpec, model: Architecture, batch: Batch) -> Iterator[list[object]]:
    """Yield what the replay of such a layer does."""
    keys, requests = itemised_keys(spec), Requests()
    layer = DenseLayer(keys, model, batch, adapted=True, keep=lambda _: None)
    again = spec.gradient_checkpointing
    tape = Operations(requests=requests, records=not again)
    element = 4 if spec.dtype is Dtype.FLOAT32 else 2
    stream = tape.make(batch.positions * model.hidden_size, element)
    tape.leaf(stream)
    begin, _ = requests.position()
    out = layer.forward(tape, stream)
    if not again:
        tape.free(stream)
    yield _since(requests, begin)
    gradient = tape.like(stream)
    begin, _ = requests.position()
    if again:
        tape = Operations(requests=requests, records=True)
        tape.leaf(stream)
        layer.again(tape, stream, gradient).backward(tape)
    else:
        assert out.node is not None
        out.node.gradient = gradient
        tape.run_backward()
    yield _since(requests, begin)


def _since(requests: Requests, begin: int) -> list[object]:
    piece = requests.piece()
    return in_order(piece.events[begin:], piece.sizes_bytes)


def _without_edges(found: list[object]) -> list[object]:
    """Leave out what is freed before the first request and after the last: by the layers before and after."""
    return found[1:-1]


@pytest.mark.parametrize("case", CASES)
def test_a_layer_has_the_events_of_a_simulated_one(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
    config, changes = case
    spec = small_spec(**keys_of(changes))
    model = read_architecture(config, model="wide")
    batch = generated_micro_batch(itemised_keys(spec))
    assert is_known(itemised_keys(spec), model, batch)
    forward, backward = simulated(simulate(model_config=config, **keys_of(changes)).trace)
    again, undone = replayed(spec, model, batch)
    assert _without_edges(again) == _without_edges(forward)
    assert _without_edges(undone) == _without_edges(backward)
    assert len(backward) > 100
