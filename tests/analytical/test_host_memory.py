"""Memory of the host: DeepSpeed's own buffers, what a checkpoint takes, libraries on a card, and the verdict."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from formula_row import group
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.analytical.explanation.explained import Fit, HostVerdict, explain, host_verdict
from profiler.analytical.formulas.host import (
    LEAST_PROCESS_BYTES,
    MOST_PROCESS_BYTES,
    OffloadedZero,
    pinned_bytes,
    sleeping_engine,
)
from profiler.analytical.timeline.instants import InstantName
from profiler.analytical.timeline.sharding.sharding import managed_states
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.memory import GIB, Category
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import TrialSpec

KEPT = Path(__file__).parents[2] / "results" / "reference" / "h200" / "tables"
MODEL, PARAMETERS, EMBEDDING = "qwen2.5-0.5b", 494_032_768, 151_936 * 896

TRAINED, LARGEST = 1_509_504, 2048 * 128
OF_DEEPSPEED = [
    # stage, micro-batches, weights too: master, float32 gradients, bfloat16 gradients, buffer of weights, states
    (1, 2, False, (6_038_016, 6_038_016, 524_288, 3_019_008, 12_076_032), 0),
    (2, 1, False, (6_038_016, 6_038_016, 524_288, 3_019_008, 12_076_032), 0),
    (2, 2, False, (6_038_016, 6_038_016, 3_019_008 + 524_288, 3_019_008, 12_076_032), 0),
    (3, 2, False, (6_038_016, 6_038_016, 3_019_008, 0, 12_076_032), 0),
    (3, 1, True, (6_038_016, 6_038_016, 3_019_008, 0, 12_076_032), 3_019_008),
]
"""DeepSpeed 0.19 on a CPU with one process, which trained a Qwen2 of 1,509,504 parameters for two steps: the storages
of its optimizer's tensors, without pinned memory."""


def _architecture(model):
    found = builtin_architecture(model)
    assert found is not None
    return found


def _spec(**keys) -> TrialSpec:
    return parse_point(
        {"backend": "emulated", "gpu": "h100-80gb", "model": MODEL, **keys}, architecture_of=_architecture
    )


def _zero(stage, **keys) -> TrialSpec:
    keys = {"num_processes": 4, "offload_optimizer_device": "cpu", **keys}
    return _spec(distributed_type="deepspeed", zero_stage=stage, **keys)


def _host(spec, **keys) -> HostVerdict:
    return host_verdict(spec, _architecture(spec.model), **keys)


def _sizes(spec, name=InstantName.STEP):
    """Bytes of one process by category, without libraries."""
    found = next(each for each in _host(spec).instants if each.name is name)
    return {part.category: int(part.term.size) for part in found.parts if not part.may_be}, found


def _offloaded(stage, **changes) -> OffloadedZero:
    found = OffloadedZero(
        stage=stage,
        own=TRAINED,
        frozen=0,
        kept=TRAINED,
        accumulates=False,
        trained=[group(LARGEST, copies=2), group(1000)],
        offloads_states=True,
        offloads_weights=False,
    )
    return replace(found, **changes)


@pytest.mark.parametrize(("stage", "micro_batches", "with_weights", "expected", "weights"), OF_DEEPSPEED)
def test_deepspeed_itself_has_these_bytes(stage, micro_batches, with_weights, expected, weights):
    found = _offloaded(
        stage,
        accumulates=micro_batches > 1,
        offloads_weights=with_weights,
    )
    master, wide, narrow, buffer, states = expected
    assert found.states.size == master + buffer + states
    assert found.gradients.size == wide + narrow
    # A buffer of trained weights is pinned where there is a card, so that its size is a power of two.
    assert found.weights.size == (pinned_bytes(weights) if weights else 0)


def test_pinned_buffers_are_powers_of_two():
    assert [pinned_bytes(size) for size in (0, 1, 4096, 4097, 3 * GIB + 1)] == [0, 1, 4096, 8192, 4 * GIB]
    # Stage 3, by hand: 3,019,008 B of gradients to 4 MiB, and 6,038,016 B to 8 MiB.
    assert _offloaded(3).rounding.size == 4 * 2**20 - 3_019_008 + 8 * 2**20 - 6_038_016
    # Two groups of 10^9 and a rest: 4 x 10^9 B to 4 GiB, 2 B of 2 x 10^9 and 64 values to 4 GiB, 256 B stay.
    found = _offloaded(3, own=2_000_000_064).rounding.size
    assert found == 2 * (2**32 - 4_000_000_000) + 2**32 - 4_000_000_128
    # Stage 2: master and gradients to 8 MiB each, the weights' buffer to 4 MiB; the largest tensor is a power.
    assert _offloaded(2).rounding.size == 2 * (8 * 2**20 - 6_038_016) + 4 * 2**20 - 3_019_008


def test_libraries_are_those_of_a_real_card():
    peaks = [
        row["host_peak_rss_bytes"]
        for path in KEPT.glob("*/runs.parquet")
        for row in pq.read_table(path, columns=["backend", "host_peak_rss_bytes"]).to_pylist()
        if row["backend"] == "cuda"
    ]
    assert (len(peaks), min(peaks), max(peaks)) == (60, LEAST_PROCESS_BYTES, MOST_PROCESS_BYTES)


def test_zero_by_hand():
    own = PARAMETERS // 4
    sizes, found = _sizes(_zero(2, gradient_accumulation_steps=4))
    assert sizes[Category.OPTIMIZER_STATE] == 14 * own
    # The embedding is larger than a quarter of all, and is accumulated whole.
    assert sizes[Category.GRADIENTS] == 4 * own + 2 * EMBEDDING + 2 * EMBEDDING
    assert found.process_bytes == LEAST_PROCESS_BYTES + 18 * own + 4 * EMBEDDING
    assert found.least_bytes == 4 * found.process_bytes
    sizes, _ = _sizes(_zero(3, offload_param_device="cpu", gradient_accumulation_steps=4))
    assert sizes[Category.OPTIMIZER_STATE] == 12 * own
    assert sizes[Category.GRADIENTS] == 6 * own
    assert sizes[Category.WEIGHTS] == 2**28  # 247,016,384 B, pinned


def test_frozen_weights_of_zero_3_are_shards_that_are_not_pinned():
    spec = _zero(3, tuning="lora", offload_param_device="cpu", offload_optimizer_device="none")
    sizes, _ = _sizes(spec)
    adapters = 8_798_208  # rank 16 in all linear layers of 24: test_persistent_formulas has the number
    assert sizes[Category.WEIGHTS] == 2 * (PARAMETERS // 4) + pinned_bytes(2 * adapters // 4)
    assert Category.OPTIMIZER_STATE not in sizes


@pytest.mark.parametrize(
    ("keys", "read", "saved"),
    [
        ({}, 0, 2 * PARAMETERS),
        ({"dtype": "float32"}, 0, 4 * PARAMETERS),
        ({"num_processes": 2}, 0, 2 * PARAMETERS),
        ({"num_processes": 2, "dtype": "float32"}, 4 * PARAMETERS, 4 * PARAMETERS),
        ({"num_processes": 2, "distributed_type": "fsdp"}, 4 * PARAMETERS, 4 * PARAMETERS),
        ({"num_processes": 2, "distributed_type": "deepspeed", "zero_stage": 3}, 0, 2 * PARAMETERS),
        ({"num_processes": 2, "tuning": "lora"}, 0, 4 * 8_798_208),
    ],
)
def test_what_is_read_and_saved(keys, read, saved):
    spec = _spec(**keys)
    assert _sizes(spec, InstantName.READING)[0].get(Category.WEIGHTS, 0) == read
    assert _sizes(spec, InstantName.SAVING)[0].get(Category.WEIGHTS, 0) == saved


def test_a_checkpoint_takes_memory_where_its_type_changes(tmp_path, monkeypatch):
    """`from_pretrained` itself: weights in their own type are pages of the file, others are copies; on every rank."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 1, "vocab_size": 32_768}
    config = transformers.Qwen2Config(**sizes, num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=False)
    with torch.device("meta"):
        empty = transformers.Qwen2ForCausalLM(config)
    empty.to(torch.bfloat16).to_empty(device="cpu").save_pretrained(tmp_path)
    count = sum(parameter.numel() for parameter in empty.parameters())
    monkeypatch.setattr(transformers.modeling_utils, "is_fsdp_enabled", lambda: True)
    monkeypatch.setattr(transformers.modeling_utils, "is_local_dist_rank_0", lambda: False)
    for dtype, element in ((torch.bfloat16, 0), (torch.float32, 4)):
        model = transformers.Qwen2ForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
        of_files = _places_of_files(tmp_path)
        storages = {one.data_ptr(): one.untyped_storage().nbytes() for one in model.parameters()}
        taken = sum(size for place, size in storages.items() if not any(place in each for each in of_files))
        assert taken == element * count, dtype


def _places_of_files(folder: Path) -> list[range]:
    """Addresses at which the files of a folder are mapped, by which no other test's memory is counted."""
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    ends = (line.split()[0].split("-") for line in lines if str(folder) in line)
    return [range(int(first, 16), int(last, 16)) for first, last in ends]


def test_what_may_be_added():
    paged = managed_states(Optimizer.PAGED_ADAMW_8BIT, [group(102_400), group(1000)])
    assert paged.size == 2 * 102_400
    assert managed_states(Optimizer.PAGED_ADAMW_32BIT, [group(102_400), group(1000)]).size == 2 * 102_400 * 4
    assert managed_states(Optimizer.ADAMW_8BIT, [group(102_400)]).size == 0
    engine = {"use_vllm": True, "vllm_enable_sleep_mode": True}
    assert sleeping_engine(_spec(**engine), _architecture(MODEL)).size == 2 * PARAMETERS
    assert sleeping_engine(_spec(use_vllm=True), _architecture(MODEL)).size == 0
    found = _host(_spec(**engine))
    more = MOST_PROCESS_BYTES - LEAST_PROCESS_BYTES + 2 * PARAMETERS
    assert [each.most_bytes - each.least_bytes for each in found.instants][1:] == [more, more]
    full = _host(_spec(num_processes=2, distributed_type="fsdp")).instants[-1]
    assert (
        sum(part.size_bytes for part in full.parts if part.may_be and part.processes == 1) == 8 * PARAMETERS + 4 * 290
    )


def test_the_verdict_is_by_least_and_most():
    spec = _zero(2)
    found = _host(spec)
    least, most = found.least_bytes, found.most_bytes
    assert least < most
    assert found.fit is None
    fits = [_host(spec, memory_bytes=size).fit for size in (most, most - 1, least, least - 1)]
    assert fits == [Fit.FITS, Fit.TIGHT, Fit.TIGHT, Fit.TOO_LARGE]
    alone = _host(spec, gpus_per_node=1)
    assert (alone.processes, found.processes) == (1, 4)
    step, step_alone = found.instants[1], alone.instants[1]
    assert step.least_bytes == 4 * step_alone.least_bytes == 4 * step_alone.process_bytes
    explained = explain(spec, _architecture(MODEL), host_bytes=most)
    assert (explained.host.fit, explained.host.most_bytes) == (Fit.FITS, most)


@settings(max_examples=30, deadline=None)
@given(
    stage=st.integers(1, 3),
    gpus=st.integers(2, 64),
    micro_batches=st.integers(1, 4),
    weights=st.booleans(),
    tuning=st.sampled_from(["full", "lora"]),
)
def test_more_gpus_of_a_node_need_more_and_offloading_too(stage, gpus, micro_batches, weights, tuning):
    keys = {"num_processes": gpus, "gradient_accumulation_steps": micro_batches, "tuning": tuning}
    keys |= {"offload_param_device": "cpu"} if weights and stage == 3 else {}
    spec = _zero(stage, **keys)
    found = _host(spec)
    kept = _host(replace(spec, offload_optimizer_device="none", offload_param_device="none"))
    for instant, other in zip(found.instants, kept.instants, strict=True):
        assert instant.most_bytes >= instant.least_bytes >= instant.process_bytes
        assert instant.least_bytes >= other.least_bytes
        counted = sum(part.size_bytes for part in instant.parts if not part.may_be)
        assert counted == instant.least_bytes
        assert sum(part.size_bytes for part in instant.parts) == instant.most_bytes
    assert found.processes == min(gpus, 8)
    assert _host(spec, gpus_per_node=4).least_bytes <= found.least_bytes
