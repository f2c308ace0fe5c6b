"""Reserved memory by a replay: numbers that know their blocks, and the requests that are made of them."""

from dataclasses import replace

import pandas as pd
import pytest
from estimate_sample import REFERENCE
from hypothesis import given, settings
from trial_strategies import ADAPTED, architecture, specs

from maintenance.samples.sampling import architecture_of
from profiler.allocator import AllocatorConfig, replay_on_card
from profiler.analytical.estimate import estimate, estimate_with_replay, on_first_alike
from profiler.analytical.explanation.explained import all_cards, explain, needed_of
from profiler.analytical.formulas.layers.eager_attention import (
    saved_scores_bytes,
    scores_backward_bytes,
    scores_forward_bytes,
    scores_made,
    scores_undone,
)
from profiler.analytical.formulas.models.tensor_groups import Projection
from profiler.analytical.formulas.sizes.quantities import Itemised, blocks_of, larger, largest_blocks, stage_blocks
from profiler.analytical.formulas.sizes.trial_keys import Batch, itemised_keys, layer_kinds
from profiler.analytical.replayed.generation import GrowingCache, Rollouts, most_rows_of_four_bits
from profiler.analytical.replayed.head import Head, chunks_of
from profiler.analytical.replayed.requests import Requests, minus, others, packed, per_layer, union
from profiler.analytical.replayed.sharing import Alone
from profiler.analytical.replayed.trial import has_replay, program_of, replayed_counters, replayed_steps
from profiler.analytical.timeline.instants import read_of_card
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.config.models.architecture import read_architecture
from profiler.config.trials.identity import spec_from_mapping
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import MIB
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import SPEC_KEYS, Attention, Backend, Dtype, Logprobs, Rollout, TrialSpec, Tuning
from profiler.worker.simulated import simulate

_SPEC = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="qwen2.5-0.5b")


def block(size):
    return Itemised.of(size, (((size, 1),),))


def test_a_number_knows_its_blocks():
    both = 2 * block(100) + block(30)

    assert both == 230
    assert largest_blocks(both) == {100: 2, 30: 1}
    assert largest_blocks(both - 30) == {100: 2}
    assert largest_blocks(both - block(100) - 50) == {50: 1, 30: 1}
    assert largest_blocks(both // 2) == {50: 2, 15: 1}
    assert largest_blocks(4 * block(100) // 2) == {100: 2}


def test_what_is_taken_away_makes_a_block_smaller():
    assert blocks_of(((100, 2), (30, -1))) == {100: 1, 70: 1}
    assert blocks_of(((100, 1), (10, 1), (30, -1))) == {70: 1, 10: 1}
    assert blocks_of(((100, 1), (300, -1))) == {}


def test_the_largest_of_several_is_each_in_turn():
    at_gate, at_down = block(100), 2 * block(40)
    largest = larger(at_gate, at_down)

    assert largest == 100
    assert stage_blocks(largest) == [{100: 1}, {40: 2}]
    assert stage_blocks(block(7) + largest) == [{7: 1, 100: 1}, {7: 1, 40: 2}]
    # of two that have stages, each passes while the other is at its largest
    assert stage_blocks(largest + larger(block(5), block(3))) == [{100: 1, 5: 1}, {40: 2, 5: 1}, {100: 1, 3: 1}]


@settings(max_examples=20)
@given(specs())
def test_itemised_formulas_have_the_same_values(spec):
    plain = trial_instants(spec, architecture(spec.model))
    itemised = trial_instants(itemised_keys(spec), architecture(spec.model))

    assert [int(instant.total_bytes) for instant in itemised] == [int(instant.total_bytes) for instant in plain]


def test_groups_of_blocks_by_hand():
    assert packed({MIB // 2: 3, 4 * MIB: 1}) == {4 * MIB: 1, MIB: 1, MIB // 2: 1}
    assert union({3: 1, 2: 2}, {3: 4}) == {3: 4, 2: 2}
    assert minus({3: 4, 2: 1}, {3: 1, 2: 1}) == {3: 3}
    assert per_layer({9: 5, 7: 1}, 2) == {9: 2}
    assert others({9: 5, 7: 1}, 2) == {9: 1, 7: 1}


def peaks_of(requests):
    counters = requests.counters("")
    return counters.peak_allocated_bytes, counters.peak_reserved_bytes


def test_a_freed_block_serves_what_fits_and_leaves_a_rest():
    requests = Requests()
    requests.set("first", {40 * MIB: 1})
    requests.drop("first")
    requests.set("second", {30 * MIB: 1})
    assert peaks_of(requests) == (40 * MIB, 40 * MIB)

    # the rest of 10 MiB is too small
    requests.set("third", {12 * MIB: 1})
    assert peaks_of(requests) == (42 * MIB, 52 * MIB)


def test_a_freed_block_is_given_back_where_the_cache_is_emptied():
    requests = Requests()
    requests.set("first", {40 * MIB: 1})
    requests.drop("first")
    requests.empty_cache()
    requests.set("second", {42 * MIB: 1})
    assert peaks_of(requests) == (42 * MIB, 42 * MIB)


def test_what_takes_a_place_comes_before_the_other_goes():
    requests = Requests()
    requests.set("gradient", {40 * MIB: 1})
    requests.replace("gradient", {40 * MIB: 1})
    assert peaks_of(requests) == (80 * MIB, 80 * MIB)
    requests.set("first", {40 * MIB: 1})
    # The first block is free again, so nothing new is taken.
    assert peaks_of(requests) == (80 * MIB, 80 * MIB)
    requests.rename("first", "kept")
    assert requests.sizes("kept") == {40 * MIB: 1}
    assert not requests.has("first")


def test_capped_logits_are_kept_until_backward():
    spec = replace(_SPEC, model="gemma-2-2b", attn_implementation=Attention.EAGER, logprobs=Logprobs.SELECTIVE)
    batch = Batch(rows=2, prompt_tokens=1, completion_tokens=15, scored_tokens=30, loss_tensors=0, has_mask=False)
    requests = Requests()
    head = Head(requests, itemised_keys(spec), architecture(spec.model))
    head.forward(batch, "rows")
    # 2 rows x 16 positions x 256,000 x 2 B
    assert requests.sizes(("rows", "capped")) == {16_384_000: 1}
    head.backward(batch, "rows", {})
    assert not requests.has(("rows", "capped"))

    before = peaks_of(requests)
    head.forward_alone(batch)
    assert not requests.has((None, "capped"))
    assert peaks_of(requests) == before


def test_steps_and_chunks_that_are_replayed_by_hand():
    assert replayed_steps(1, None) == [0]
    assert replayed_steps(5, None) == replayed_steps(3, 3) == replayed_steps(5, 9) == [0, 1]
    assert replayed_steps(5, 1) == replayed_steps(5, 2) == [0, 1, 2]
    assert replayed_steps(5, 3) == [0, 1, 3]
    assert [chunks_of(replace(_BATCH, scored_tokens=tokens)) for tokens in (256, 257)] == [1, 2]


_BATCH = Batch(rows=1, prompt_tokens=8, completion_tokens=0, scored_tokens=0, has_mask=False)


def test_the_scores_of_one_row_of_eight_tokens_by_hand(toy):
    """2 heads, so 128 scores."""
    in_float32 = replace(_SPEC, dtype=Dtype.FLOAT32, bf16=False)
    eager = replace(_SPEC, attn_implementation=Attention.EAGER)
    of_sdpa = scores_made(in_float32, toy, _BATCH, autocast=False, trains=True)
    of_eager = scores_made(eager, toy, _BATCH, autocast=True, trains=True)

    assert of_sdpa == [512, 1024, 1152, 512, 512]
    assert of_eager == [256, 512, 256, 512, 256, 768, 1280, 768, 1024, 768]
    assert scores_undone(in_float32, toy, _BATCH) == [1024, 1536, 2048, 512, 0]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("attention", [Attention.SDPA, Attention.EAGER])
def test_the_most_scores_are_those_of_the_closed_form(toy, attention, dtype, dropout):
    model = replace(toy, attention_dropout=dropout)
    for autocast in (True,) if dtype is Dtype.FLOAT32_NORMS else (True, False):
        spec = replace(_SPEC, attn_implementation=attention, dtype=dtype, bf16=autocast)
        made = scores_made(spec, model, _BATCH, autocast=autocast, trains=False)
        if in_closed_form := scores_forward_bytes(spec, model, _BATCH, autocast=autocast):
            assert max(made) == in_closed_form
            assert max(scores_undone(spec, model, _BATCH)) == scores_backward_bytes(spec, model, _BATCH)
        assert scores_made(spec, model, _BATCH, autocast=autocast, trains=True)[-1] == saved_scores_bytes(
            spec, model, _BATCH
        )


def test_a_cache_outgrows_its_segments():
    requests = Requests()
    cache = GrowingCache(requests)
    cache.add([12 * MIB, 12 * MIB])
    for size in (13, 14, 15):
        cache.grow(0, [size * MIB, size * MIB])

    # 12 twice; keys of 13 need 14, values too; those of 14 fit none that is free; keys and values of 15 need 16
    assert peaks_of(requests)[1] == 2 * 12 * MIB + 3 * 14 * MIB + 2 * 16 * MIB


@pytest.mark.parametrize(
    ("gpu", "outputs", "width", "rows"),
    [
        ("h100-80gb", 4096, 4096, 7),
        ("rtx-4090-24gb", 4096, 4096, 8),
        ("a100-80gb", 11008, 4096, 64),
        ("t4-16gb", 896, 4864, 7),
    ],
)
def test_rows_that_read_four_bits_directly_by_hand(gpu, outputs, width, rows):
    part = Projection(name="down_proj", in_features=width, out_features=outputs)

    assert most_rows_of_four_bits(KNOWN_GPUS[gpu].chip, part, Dtype.BFLOAT16) == rows
    assert most_rows_of_four_bits(KNOWN_GPUS[gpu].chip, part, Dtype.FLOAT32) == 7


_SHORT = replace(_SPEC, max_prompt_length=64, max_completion_length=64)


@pytest.mark.parametrize(
    ("model", "changes", "needs"),
    [
        ("qwen2.5-0.5b", {}, False),
        ("qwen2.5-0.5b", {"gpu": "t4-16gb"}, True),
        ("qwen2.5-0.5b", {"dtype": Dtype.FLOAT32}, True),
        ("qwen2.5-0.5b", {"attn_implementation": Attention.EAGER}, True),
        ("mixtral-8x7b", {}, True),
        ("mistral-7b-v0.1", {"gpu": "t4-16gb"}, True),
    ],
)
def test_decoding_asks_what_it_needs_where_it_needs_anything(model, changes, needs, monkeypatch):
    spec = replace(_SHORT, model=model, **changes)
    requests, keys, shape = Requests(), itemised_keys(spec), architecture_of(model)
    rollouts = Rollouts(requests, keys, shape, Alone(requests, keys, shape))
    (kind,) = rollouts._kinds
    assert {bool(rollouts._needed(kind, tokens, [512])) for tokens in range(64, 128)} == {needs}

    asked: list[int] = []
    monkeypatch.setattr(rollouts, "_needed", lambda _, tokens, __: asked.append(tokens) or [])
    rollouts.run(grows=True)
    assert bool(asked) == needs


@pytest.mark.parametrize(
    "spec",
    [
        replace(_SHORT, **ADAPTED, tuning=Tuning.LORA),
        replace(_SHORT, dtype=Dtype.FLOAT32),
        *(replace(_SHORT, **ADAPTED, tuning=Tuning.QLORA, per_device_train_batch_size=rows) for rows in (8, 16, 32)),
    ],
    ids=["lora", "float32", "qlora 8", "qlora 16", "qlora 32"],
)
def test_cards_that_read_alike_have_the_same_requests(spec):
    of_model, found = replace(architecture_of(spec.model), num_hidden_layers=2), {}
    for card in {each.chip: each for each in KNOWN_GPUS.values()}.values():
        piece = program_of(replace(spec, gpu=card.name), of_model).requests.piece()
        alike = on_first_alike(replace(spec, gpu=card.name), of_model)
        made = tuple(piece.sizes_bytes), tuple(piece.events), tuple(piece.cache_emptied)
        assert found.setdefault(alike.gpu, made) == made, (card.name, alike.gpu)
    assert len(set(found.values())) > 1, "cards that read nothing would need no such rule"


@pytest.mark.parametrize("alloc_conf", ["", "expandable_segments:True", "max_split_size_mb:64"])
@pytest.mark.parametrize("keys", [{"torch_empty_cache_steps": 2}, {"recipe": Recipe.SFT, **ADAPTED}])
def test_requests_have_the_same_counters_without_compiled_code(keys, alloc_conf, monkeypatch):
    requests = program_of(replace(_SPEC, **keys), architecture_of(_SPEC.model)).requests
    found = requests.counters(alloc_conf)
    monkeypatch.setattr("profiler.allocator.traces.smallest_fit.compiled", lambda: None)
    assert requests.counters(alloc_conf) == found


@pytest.mark.parametrize("keys", [{}, {"dtype": Dtype.FLOAT32}, {"gradient_checkpointing": False}])
def test_cards_that_read_alike_have_the_same_estimate(keys):
    spec, found = replace(_SPEC, **keys), {}
    for card in KNOWN_GPUS.values():
        estimated = estimate(replace(spec, gpu=card.name), architecture_of(spec.model))
        assert found.setdefault(read_of_card(card), estimated) == estimated, card.name


def kept_trials():
    rows = pd.read_parquet(REFERENCE / "accuracy" / "rows.parquet")
    for row in rows.astype(object).where(rows.notna(), None).to_dict(orient="records"):
        keys = {key: row[key] for key in SPEC_KEYS if key in row}
        keys["lora_target_modules"] = (keys["lora_target_modules"] or "").split(",") if keys["lora_rank"] else None
        counts = {key: int(value) for key, value in keys.items() if isinstance(value, float) and value == int(value)}
        floats = ("beta", "lora_dropout")
        keys |= {key: value for key, value in counts.items() if key not in floats}
        yield spec_from_mapping(keys), row


def test_a_replay_is_near_the_simulation_where_the_bound_is_not():
    errors = {"bound": [], "replay": []}
    needs = {"within_bounds": [], "by_replay": []}
    replayed = [(spec, row) for spec, row in kept_trials() if has_replay(spec)]
    for spec, row in replayed[::20]:
        of_model = architecture_of(spec.model)
        bounds, found = estimate(spec, of_model), estimate_with_replay(spec, of_model)
        required, unreleasable = row["required_reserved_bytes"], row["required_unreleasable_bytes"]
        errors["bound"].append(abs(bounds.peak_reserved_bytes / required - 1))
        errors["replay"].append(abs(replayed_counters(spec, of_model).peak_reserved_bytes / required - 1))
        for name, each in (("within_bounds", bounds), ("by_replay", found)):
            needs[name].append(needed_of(spec, each).most_bytes / unreleasable - 1)
    found, needs = pd.DataFrame(errors), pd.DataFrame(needs)

    assert found.replay.median() < 0.02
    assert found.replay.quantile(0.9) < 0.08 < found.bound.quantile(0.9)
    # What is called enough is enough in most trials, and by less than the bound asks.
    assert (needs.by_replay >= 0).mean() > 0.94 > 0.7 > (needs.within_bounds >= 0).mean()
    assert needs.by_replay.quantile(0.95) < 0.1 < 0.12 < needs.within_bounds.quantile(0.95)
    assert needs.by_replay.median() < 0.05


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"logprobs": Logprobs.FULL, "gradient_checkpointing": False},
        {"logprobs": Logprobs.SLICED, "gradient_accumulation_steps": 2, "steps_per_generation": 1},
        {"rollout": Rollout.SYNTHETIC, "dtype": Dtype.FLOAT32, "alloc_conf": "expandable_segments:True"},
    ],
)
def test_reserved_is_at_least_what_is_allocated(changes):
    spec = replace(_SPEC, model="tiny", steps=2, **changes)
    found = estimate_with_replay(spec, architecture("tiny"))

    assert found.peak_allocated_bytes <= found.peak_reserved_bytes
    bounds = estimate(spec, architecture("tiny"))
    replayed = {
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "peak_unreleasable_bytes": found.peak_unreleasable_bytes,
    }
    assert found == replace(bounds, **replayed, replays_operations=True)


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "glm-4.5-air", "gpt-oss-20b"])
def test_layers_of_several_kinds_are_replayed_alike(model):
    of_model = architecture(model)
    spec = replace(_SPEC, model=model, gpu="b300-288gb", rollout=Rollout.GENERATE)
    first = estimate_with_replay(spec, of_model)

    assert len(layer_kinds(of_model)) > 1
    assert (
        first.peak_allocated_bytes <= first.peak_reserved_bytes == replayed_counters(spec, of_model).peak_reserved_bytes
    )


SELECTED = (
    ({"logprobs": Logprobs.SELECTIVE}, 0.01),
    ({"logprobs": Logprobs.SELECTIVE_IN_PLACE, "tuning": Tuning.LORA, **ADAPTED}, 0.002),
    ({"logprobs": Logprobs.SELECTIVE_KEPT, "tuning": Tuning.LORA, "bf16": False, **ADAPTED}, 0.03),
)
"""Log-sums of rows, the same in place of a slice, and the log-softmax of rows in bfloat16."""


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "most"), SELECTED, ids=[keys["logprobs"] for keys, _ in SELECTED])
def test_selected_log_probabilities_are_near_a_simulation(keys, most):
    """Two layers, and the real vocabulary: a block in another place is a tenth of the peak."""
    rows = {"num_generations": 4, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    lengths = {"max_prompt_length": 128, "max_completion_length": 256, "rollout": Rollout.SYNTHETIC, "steps": 2}
    assert reserved_error(replace(_SPEC, **rows, **lengths, **keys), layers=2) == pytest.approx(0, abs=most)


def reserved_error(spec, *, layers):
    """Return by which part a replay differs from a simulation, with so many layers of the model."""
    config = {**BUILTIN_MODELS[spec.model].config, "num_hidden_layers": layers}
    trace = simulate(spec, config).trace
    needed = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig()).peak_reserved_bytes
    return replayed_counters(spec, read_architecture(config, model="short")).peak_reserved_bytes / needed - 1


def test_what_has_no_replay_keeps_the_bound():
    assert has_replay(_SPEC)
    others = replace(_SPEC, critic=True)
    for spec in (others, replace(_SPEC, use_vllm=True)):
        assert not has_replay(spec)
    assert estimate_with_replay(others, architecture(others.model)) == estimate(others, architecture(others.model))


def test_the_card_of_a_trial_is_judged_by_its_replay():
    spec = replace(_SPEC, model="tiny", logprobs=Logprobs.FULL)
    explained = explain(spec, architecture("tiny"))
    own = next(verdict for verdict in explained.cards if verdict.gpu.name == spec.gpu)
    bounds = {verdict.gpu: verdict for verdict in all_cards(spec, architecture("tiny"))}

    assert own.peak_reserved_bytes == explained.estimate.peak_reserved_bytes != bounds[own.gpu].peak_reserved_bytes
    assert all(verdict == bounds[verdict.gpu] for verdict in explained.cards if verdict is not own)
