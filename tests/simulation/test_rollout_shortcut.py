"""An extrapolated rollout equals the rollout token by token, event by event."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix import further, with_further
from simulating import LORA, Simulated, simulate
from transformers import Qwen2Model

from profiler.allocator import AllocatorConfig, Trace, replay_on_card
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import Attention, Dtype, Lengths, Logprobs, Rollout, Tuning
from profiler.simulation.tracing import host_values

TINY = dict(BUILTIN_MODELS["tiny"].config)
QWEN3 = TINY | {"model_type": "qwen3", "head_dim": 16}
LLAMA = TINY | {"model_type": "llama"}
EXPERTS = QWEN3 | {
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
HYBRID = QWEN3 | {
    "model_type": "qwen3_5_text",
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
"""One layer has a state of constant size in place of keys and values."""
LORA_KEYS = {"tuning": Tuning.LORA, **LORA}


def mistral(window: int) -> dict[str, Any]:
    return TINY | {"model_type": "mistral", "sliding_window": window}


def described(trace: Trace) -> Iterator[tuple[int, int, Category, Any]]:
    """Events with the properties of their blocks; sites by value, as their numbers depend on the order."""
    for event in trace.events:
        block = abs(event) - 1
        yield event, trace.sizes_bytes[block], trace.categories[block], trace.sites[trace.site_of[block]]


def assert_same(short: Simulated, long: Simulated) -> None:
    assert len(short.trace.events) == len(long.trace.events)
    assert all(one == other for one, other in zip(described(short.trace), described(long.trace), strict=True))
    assert short.trace.phase_starts == long.trace.phase_starts
    assert short.trace.names == long.trace.names


ONE_MICRO_BATCH = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1, "steps_per_generation": 1}
"""The 16 rows of a rollout train at once: what follows the rollout is the same in both runs, and takes as long."""


def both_ways(**keys: Any) -> tuple[Simulated, Simulated]:
    keys = {"max_completion_length": 30, "steps": 1} | ONE_MICRO_BATCH | keys
    return simulate(every_block=True, **keys), simulate(shortcut_rollout=False, **keys)


CASES: list[Any] = [
    *({"max_completion_length": tokens} for tokens in (6, 7)),
    *further(*({"max_completion_length": tokens} for tokens in (1, 2, 3, 5, 8, 20))),
    {"steps": 2},
    *further({"lengths": Lengths.FORCED, "gradient_checkpointing": False}),
    *further({"beta": 0.04}, {"gpu": "a100-40gb"}, *({"attn_implementation": attention} for attention in Attention)),
    # FlashAttention splits the keys from 257 on.
    {"gpu": "a100-40gb", "max_completion_length": 270},
    *further({"attn_implementation": Attention.FLASH_ATTENTION_2, "max_completion_length": 270}),
    {"dtype": Dtype.FLOAT32, **LORA_KEYS},
    *further({"beta": 0.04, **LORA_KEYS}, {"dtype": Dtype.FLOAT32}, {"model_config": QWEN3}),
    {"model_config": LLAMA, "attn_implementation": Attention.EAGER},
    {"model_config": EXPERTS},
    {"model_config": HYBRID},
    {"model_config": mistral(26)},
    *further(*({"model_config": mistral(window)} for window in (6, 16, 1000))),
    *further({"model_config": mistral(18), "attn_implementation": Attention.FLASH_ATTENTION_2}),
]


@pytest.mark.parametrize("keys", CASES, ids=str)
def test_extrapolated_steps_equal_steps_that_ran(keys: dict[str, Any]) -> None:
    short, long = both_ways(**keys)
    assert_same(short, long)
    assert short.decoding.ran_in_full == 0
    assert (short.decoding.steps_extrapolated > 0) == (keys.get("max_completion_length", 30) > 6)


@pytest.fixture
def uneven_prompts(tmp_path: Path) -> str:
    """Prompts of 3 to 11 words: the shorter ones are padded, so every step has a mask."""
    rows = ({"prompt": " ".join(f"w{row + word}" for word in range(3 + row * 3 % 9))} for row in range(32))
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


MASKED = [
    ("h100-80gb", Attention.EAGER),
    ("a100-40gb", Attention.FLASH_ATTENTION_2),
    ("t4-16gb", Attention.SDPA),
]
"""Each card and each attention once; the other pairs are further cases."""
OTHERS = [(gpu, attention) for gpu, _ in MASKED for attention in Attention if (gpu, attention) not in MASKED]


@pytest.mark.parametrize("masked", [*MASKED, *further(*OTHERS)], ids=lambda masked: "-".join(masked))
def test_with_masks(uneven_prompts: str, masked: tuple[str, Attention]) -> None:
    gpu, attention = masked
    # A T4 cannot run the fused LM head in bfloat16.
    keys = {"attn_implementation": attention, "gpu": gpu, "logprobs": Logprobs.FULL}
    short, long = both_ways(dataset=uneven_prompts, max_completion_length=60, **keys)
    assert_same(short, long)
    assert short.decoding.steps_extrapolated > 20


def test_masks_whose_sum_is_split_from_some_length_on(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "w " * words}) for words in (900, 1000)))
    wide = {"per_device_train_batch_size": 128, "num_generations": 64, "max_prompt_length": 1000}
    # 512 threads take 255 values each up to 1,020 columns of 128 rows, and from 256 on blocks of threads share a sum.
    short, long = both_ways(dataset=str(path), max_completion_length=60, **wide)
    assert_same(short, long)
    assert short.decoding.ran_in_full == 0
    assert short.decoding.steps_extrapolated > 20


# ---- when steps do not repeat ----------------------------------------------------------------------------------------


def with_scratch(monkeypatch: pytest.MonkeyPatch, size_bytes: Any) -> None:
    """Make each forward allocate and free `size_bytes(positions in the cache)`."""
    forward = Qwen2Model.forward

    def noticed(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = forward(self, *args, **kwargs)
        if result.past_key_values is not None:
            torch.empty(size_bytes(result.past_key_values.get_seq_length()), dtype=torch.uint8, device="meta")
        return result

    monkeypatch.setattr(Qwen2Model, "forward", noticed)


def test_a_mismatch_in_the_middle_undoes_the_extrapolation(monkeypatch: pytest.MonkeyPatch) -> None:
    with_scratch(monkeypatch, lambda length: 4096 if length > 30 else 1024)
    short, long = both_ways(max_completion_length=36)
    assert_same(short, long)
    assert short.decoding.steps_extrapolated == 0


def test_a_mismatch_of_the_last_step_undoes_the_extrapolation(monkeypatch: pytest.MonkeyPatch) -> None:
    with_scratch(monkeypatch, lambda length: 4096 if length == 8 + 60 - 1 else 1024)
    short, long = both_ways(max_completion_length=60)
    assert_same(short, long)
    assert short.decoding.steps_extrapolated == 0


def test_steps_with_a_period_of_eight_are_extrapolated_in_eights(monkeypatch: pytest.MonkeyPatch) -> None:
    with_scratch(monkeypatch, lambda length: -(-length // 8) * 4096)
    short, long = both_ways(max_completion_length=60)
    assert_same(short, long)
    assert short.decoding.steps_extrapolated % 8 == 0
    assert short.decoding.steps_extrapolated > 0


def test_steps_that_never_repeat_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with_scratch(monkeypatch, lambda length: 512 * length * length)
    short, long = both_ways(max_completion_length=60)
    assert_same(short, long)
    assert short.decoding.steps_extrapolated == 0
    assert short.decoding.ran_in_full == 1


# ---- memory of the rollout -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rollout", list(Rollout))
@pytest.mark.parametrize("config", [TINY, QWEN3, LLAMA], ids=lambda config: str(config["model_type"]))
def test_the_cache_at_its_end_by_hand(rollout: Rollout, config: dict[str, Any]) -> None:
    prompt, completion, rows, layers, kv_heads, head_dim, bytes_per_value = 8, 40, 8, 2, 2, 16, 2
    trial = simulate(
        rollout=rollout, model_config=config, steps=1, max_prompt_length=prompt, max_completion_length=completion
    )
    # Every number of positions of this size is a multiple of 512 bytes: nothing is rounded.
    cache = 2 * layers * rows * kv_heads * (prompt + completion - 1) * head_dim * bytes_per_value
    one_tensor = cache // (2 * layers)
    before_the_last = one_tensor * (prompt + completion - 2) // (prompt + completion - 1)
    levels = [level[Category.KV_CACHE] for phase, level in trial.levels() if phase is Phase.ROLLOUT]
    # The last tensor to grow is there twice, the rest at full length.
    assert max(levels) == cache + before_the_last


def test_the_states_of_linear_attention_by_hand() -> None:
    prompt, completion, rows = 8, 40, 8
    trial = simulate(model_config=HYBRID, steps=1, max_prompt_length=prompt, max_completion_length=completion)
    # The last 4 inputs of the convolution over queries, keys and values, in bfloat16, and a matrix per value head.
    states = rows * (2 * 2 * 16 + 4 * 16) * 4 * 2 + rows * 4 * 16 * 16 * 4
    one_tensor = rows * 2 * (prompt + completion - 1) * 16 * 2
    before_the_last = one_tensor * (prompt + completion - 2) // (prompt + completion - 1)
    levels = [level[Category.KV_CACHE] for phase, level in trial.levels() if phase is Phase.ROLLOUT]
    assert max(levels) == states + 2 * one_tensor + before_the_last


def rollout_peaks(simulated: Simulated) -> tuple[int, int]:
    """Highest total and highest KV cache during the rollout."""
    rollout = [
        (sum(level.values()), level[Category.KV_CACHE]) for phase, level in simulated.levels() if phase is Phase.ROLLOUT
    ]
    return max(total for total, _ in rollout), max(cache for _, cache in rollout)


@pytest.mark.parametrize(
    "keys", [{}, {"beta": 0.04, **LORA_KEYS}, {"lengths": Lengths.FORCED}, {"model_config": HYBRID}]
)
def test_a_synthetic_rollout_has_the_peaks_of_a_generated_one(keys: dict[str, object]) -> None:
    sizes = {"max_prompt_length": 16, "max_completion_length": 24, "steps": 1}
    short = simulate(rollout=Rollout.SYNTHETIC, **sizes, **ONE_MICRO_BATCH, **keys)
    long = simulate(shortcut_rollout=False, **sizes, **ONE_MICRO_BATCH, **keys)
    assert len(short.trace.events) < len(long.trace.events)
    assert rollout_peaks(short) == rollout_peaks(long)
    assert short.left_at_the_end() == long.left_at_the_end()


# ---- neutral blocks -------------------------------------------------------------------------------------------------

WIDE = TINY | {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
"""Each tensor of its cache exceeds 1 MiB at 129 positions of 16 rows, so it stops being a small block."""

LARGE_FROM_THE_START = {"max_completion_length": 100, "max_prompt_length": 140, "model_config": WIDE}
LONG_TRIALS: list[dict[str, Any]] = [
    {"max_completion_length": 200},
    {"max_completion_length": 200, **LORA_KEYS},
    {"max_completion_length": 200, "model_config": WIDE},
    LARGE_FROM_THE_START,
    {**LARGE_FROM_THE_START, **LORA_KEYS},
    {**LARGE_FROM_THE_START, "gpu": "a100-40gb"},
]
SETTINGS = [
    AllocatorConfig(),
    AllocatorConfig(expandable_segments=True),
    AllocatorConfig(max_split_bytes=32 * 2**20),
]


@pytest.mark.parametrize("keys", with_further(LONG_TRIALS, LONG_TRIALS[::3]), ids=str)
def test_neutral_blocks_change_nothing_on_a_card(keys: dict[str, Any]) -> None:
    keys = ONE_MICRO_BATCH | keys
    traces = [simulate(every_block=every_block, steps=2, **keys).trace for every_block in (False, True)]
    assert len(traces[0].events) < len(traces[1].events)
    for config in SETTINGS:
        few, every = (replay_on_card(trace, capacity_bytes=None, config=config) for trace in traces)
        assert few.phases == every.phases, config
        assert few.breakdown == every.breakdown, config
        assert few.peak_allocated_bytes == every.peak_allocated_bytes, config
        assert few.peak_reserved_bytes == every.peak_reserved_bytes, config
        assert few.peak_inactive_split_bytes == every.peak_inactive_split_bytes, config


FEW = 512
"""Fewer than the ids of 16 rows of 38 tokens."""


def test_ids_of_many_rows_are_kept_so_that_a_rollout_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout of 1,024 rows of 1,024 tokens had no end: no more had values than of positions by positions."""
    monkeypatch.setattr(host_values, "_MOST_ELEMENTS", FEW)
    assert simulate(**ONE_MICRO_BATCH, max_completion_length=30, steps=1).decoding.steps_extrapolated


def test_a_rollout_of_too_many_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_values, "_MOST_TOKENS", FEW)
    monkeypatch.setattr(host_values, "_MOST_ELEMENTS", FEW)
    with pytest.raises(UnsupportedTrialError, match=r"^A rollout of 16 rows of \d+ tokens does not end"):
        simulate(**ONE_MICRO_BATCH, max_completion_length=30, steps=1)


def test_a_run_repeated_is_the_same_event_by_event() -> None:
    assert simulate().trace == simulate().trace


def test_only_scored_positions_reach_the_fused_head() -> None:
    """On a GPU trl scores only the positions of completions; ragged rows have fewer of them than forced ones."""
    ragged, forced = simulate(lengths=Lengths.RAGGED, steps_per_generation=1), simulate(lengths=Lengths.FORCED)
    hidden_bytes = 64 * 2
    # Completions of 12, 11, 9 and 8 tokens (0, 1, 2 and 3 eighths of 12 less) against four of 12.
    assert (12 + 12 - 12 // 8 + 12 - 24 // 8 + 12 - 36 // 8) * hidden_bytes in ragged.trace.sizes_bytes
    assert 4 * 12 * hidden_bytes in forced.trace.sizes_bytes
