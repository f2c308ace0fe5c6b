"""The closed form of recipes on preferences: DPO, KTO, and a reward model."""

import csv
import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preference_sample import COUNT, SEEDS, kept, sample, simulated
from trial_strategies import ADAPTED, COUNTED_OPTIMIZERS, DENSE, architecture, assert_a_table_has_each_estimate

from profiler.allocator import AllocatorConfig, replay_on_card
from profiler.analytical import estimate
from profiler.analytical.estimate import estimate_with_replay, phase_instants
from profiler.analytical.many import estimate_table, table_of
from profiler.analytical.replayed.trial import program_of
from profiler.analytical.timeline.recipes.registry import micro_batch, trial_instants
from profiler.config.models.architecture import read_architecture
from profiler.domain.memory import Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.outcome import Estimate
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Attention, Backend, Dtype, Lengths, Logprobs, TrialSpec, Tuning
from profiler.estimate.main import main
from profiler.worker.simulated import simulate

ROOT = Path(__file__).parents[2]

REFERRING = (Recipe.DPO, Recipe.KTO)
ALONE = [Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
WITHIN = [Phase.LOAD, Phase.FORWARD, Phase.SCORE, Phase.BACKWARD, Phase.OPTIMIZER]
BEFORE = [Phase.LOAD, Phase.SCORE, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]


def dpo(**keys: Any) -> TrialSpec:
    return preferring(Recipe.DPO, **keys)


def preferring(recipe: Recipe, **keys: Any) -> TrialSpec:
    referring = {"max_prompt_length": 256, "beta": 0.1} if recipe in REFERRING else {}
    given_keys = {"model": "qwen2.5-0.5b", "max_length": 1024, **referring, **keys}
    adapters = {} if keys.get("tuning", Tuning.FULL) is Tuning.FULL else ADAPTED
    return TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", recipe=recipe, **{**adapters, **given_keys})


@st.composite
def specs(draw: st.DrawFn, recipes: Sequence[Recipe] = (*REFERRING, Recipe.REWARD)) -> TrialSpec:
    recipe, rows = draw(st.sampled_from(recipes)), draw(st.sampled_from([2, 3, 4, 16]))
    logprobs = draw(st.sampled_from([each for each in Logprobs if each.is_of(recipe)]))
    of_trl = logprobs is Logprobs.FUSED or (logprobs.pair_loss is not None and logprobs.pair_loss.by_kernel)
    before = recipe in REFERRING and of_trl and draw(st.booleans())
    prompt = {"max_prompt_length": draw(st.integers(1, 256))} if recipe in REFERRING else {}
    return preferring(
        recipe,
        logprobs=logprobs,
        model=draw(st.sampled_from(DENSE)),
        tuning=draw(st.sampled_from(Tuning)),
        optim=draw(st.sampled_from(COUNTED_OPTIMIZERS)),
        max_length=draw(st.integers(257, 4096)),
        **prompt,
        lengths=draw(st.sampled_from(Lengths)),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=draw(st.sampled_from([1, 2, 4])),
        gradient_checkpointing=draw(st.booleans()),
        attn_implementation=draw(st.sampled_from(Attention)),
        dtype=draw(st.sampled_from([each for each in Dtype if each.is_of_todays_trl])),
        bf16=draw(st.booleans()),
        precompute_ref_log_probs=before,
        precompute_ref_batch_size=draw(st.sampled_from([rows, 1, 8])) if before else None,
        steps=draw(st.sampled_from([1, 3])),
        alloc_conf=draw(st.sampled_from(["", "roundup_power2_divisions:8"])),
    )


def test_a_micro_batch_by_hand() -> None:
    """2 pairs are 4 rows: completions of 60 + 53 + 45 + 38 tokens after prompts of 20."""
    spec = dpo(max_length=80, max_prompt_length=20, per_device_train_batch_size=2)
    batch = micro_batch(spec)
    assert (batch.rows, batch.width, batch.positions) == (4, 80, 320)
    assert batch.scored_tokens == 60 + 53 + 45 + 38
    assert batch.has_mask is True
    whole = micro_batch(replace(spec, lengths=Lengths.FORCED))
    assert (whole.scored_tokens, whole.has_mask) == (4 * 60, False)
    # A pair alone has two rows, of which one is shorter.
    assert micro_batch(replace(spec, per_device_train_batch_size=1)).has_mask is True


def test_backward_of_the_head_by_hand() -> None:
    """Full fine-tuning in bfloat16 of a pair of 512 + 512 tokens, so N = 1,024; H = 896, V = 151,936, tied head."""
    keys = {"max_length": 1024, "max_prompt_length": 512, "per_device_train_batch_size": 1}
    spec = dpo(**keys, gradient_accumulation_steps=1, lengths=Lengths.FORCED)
    found = next(each for each in trial_instants(spec, architecture(spec.model)) if "head's backward" in each.name)
    assert found.sizes[Category.LOGITS] == 1024 * (2 * 4 + 8) + 1024 * 32_768 * 2
    assert found.sizes[Category.GRADIENTS] == 151_936 * 896 * (4 + 2)


def test_a_reference_within_the_loss_by_hand() -> None:
    """What the policy keeps waits: T = 2,048 inputs of 24 layers, the final norm's, and N = 1,024 hidden states."""
    keys = {"max_prompt_length": 512, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    within = dpo(**keys, lengths=Lengths.FORCED)
    before = replace(within, precompute_ref_log_probs=True, precompute_ref_batch_size=1)
    scores = [phase_instants(spec, architecture(spec.model))[Phase.SCORE].sizes for spec in (within, before)]
    layers = 24 * 2_048 * 896 * 2
    # Its input in float32, what it makes of it in bfloat16, and one number per token.
    norm = 2_048 * (896 * (4 + 2) + 4)
    assert scores[0][Category.ACTIVATIONS] - scores[1][Category.ACTIVATIONS] == layers + norm + 1_024 * 896 * 2
    # Targets as int64 and two float32 numbers of each scored token; before training no optimizer has a state.
    assert scores[0][Category.LOGITS] == 1_024 * (8 + 2 * 4)
    assert Category.OPTIMIZER_STATE not in scores[1]
    assert scores[0][Category.REFERENCE] == scores[0][Category.WEIGHTS]
    assert scores[1][Category.REFERENCE] == 0


def test_each_recipe_has_its_ways() -> None:
    pairs = {Logprobs.PAIRS_OF_COMPLETIONS, Logprobs.PAIRS_OF_ROWS, Logprobs.PAIRS_AT_ONCE}
    for recipe in Recipe:
        found = {each for each in Logprobs if each.is_of(recipe)}
        assert Logprobs.FUSED in found
        assert found & pairs == (pairs if recipe in REFERRING else set())
        assert recipe is not Recipe.REWARD or found == {Logprobs.FUSED}
        # OpenRLHF 0.7 to 0.11 has no trainer of KTO that is read.
        assert (Logprobs.PAIRS_WIDENED in found) is (recipe is Recipe.DPO)


def test_logits_of_other_programs_by_hand() -> None:
    """A pair of 512 + 512 tokens of LLaMA-Factory: 2 x 1,024 x 151,936 float32 logits, and one token less per row.

    In the last pass of the reference there are two of the former, and what the policy keeps, a copy and a log-softmax.
    """
    keys = {"max_prompt_length": 512, "per_device_train_batch_size": 1, "lengths": Lengths.FORCED}
    whole, scored = 2 * 1_024 * 151_936 * 4, 2 * 1_023 * 151_936 * 4
    trial = dpo(**keys, logprobs=Logprobs.PAIRS_AT_ONCE)
    found = phase_instants(trial, architecture(trial.model))
    assert found[Phase.SCORE].sizes[Category.LOGITS] == 2 * whole + 3 * scored
    assert found[Phase.FORWARD].sizes[Category.LOGITS] == whole + 2 * scored
    assert found[Phase.SCORE].sizes[Category.REFERENCE] == found[Phase.SCORE].sizes[Category.WEIGHTS]
    # Its reference has the type of autocast.
    wide = phase_instants(replace(trial, dtype=Dtype.FLOAT32), architecture(trial.model))[Phase.SCORE].sizes
    assert wide[Category.REFERENCE] == pytest.approx(wide[Category.WEIGHTS] / 2, rel=1e-6)
    # It requires no gradient, so autocast keeps no copies of its weights: 494e6 x 2 B.
    assert wide[Category.ACTIVATIONS] < 494e6
    # ms-swift makes no logits of prompts but that of their last token.
    of_completions = replace(trial, logprobs=Logprobs.PAIRS_OF_COMPLETIONS)
    scores = phase_instants(of_completions, architecture(trial.model))[Phase.SCORE].sizes
    assert scores[Category.LOGITS] == 2 * 513 * 151_936 * (4 + 4 + 2)


@pytest.mark.parametrize("tuning", [Tuning.FULL, Tuning.LORA])
@pytest.mark.parametrize("recipe", REFERRING)
@pytest.mark.parametrize(
    "logprobs", [each for each in Logprobs if each.pair_loss is not None and not each.is_of_openrlhf]
)
def test_a_replay_has_the_peak_of_each_pair_loss(logprobs: Logprobs, recipe: Recipe, tuning: Tuning) -> None:
    keys = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps": 2, "max_length": 768}
    trial = preferring(recipe, tuning=tuning, logprobs=logprobs, lengths=Lengths.FORCED, **keys)
    requested = program_of(trial, architecture(trial.model)).requests.piece()
    sizes = (int(math.copysign(requested.sizes_bytes[abs(event) - 1], event)) for event in requested.events)
    peak = max(itertools.accumulate(sizes))
    assert peak == pytest.approx(estimate(trial, architecture(trial.model)).peak_allocated_bytes, rel=0.002)


@given(specs())
def test_the_peak_is_the_largest_phase_and_each_has_its_place(spec: TrialSpec) -> None:
    found = estimate(spec, architecture(spec.model))
    phases = phase_instants(spec, architecture(spec.model))
    before = BEFORE if spec.precompute_ref_log_probs else WITHIN
    # The pass of KTO for its own term comes after the others.
    assert set(phases) == set(before if spec.recipe in REFERRING else ALONE)
    assert spec.recipe is Recipe.KTO or list(phases) == (before if spec.recipe in REFERRING else ALONE)
    assert found.peak_allocated_bytes == max(int(instant.total_bytes) for instant in phases.values())
    assert (found.peak_reserved_bytes or 0) >= found.peak_allocated_bytes
    present = {category for instant in phases.values() for category, size in instant.sizes.items() if size}
    assert Category.KV_CACHE not in present
    assert (Category.REFERENCE in present) is spec.keeps_reference_model


@given(specs(), st.sampled_from(["max_length", "steps", "gradient_accumulation_steps", "per_device_train_batch_size"]))
def test_more_work_never_needs_less(spec: TrialSpec, key: str) -> None:
    factor = 4 if key == "per_device_train_batch_size" else 2
    larger = replace(spec, **{key: factor * getattr(spec, key)})
    phases = phase_instants(larger, architecture(spec.model))
    for phase, instant in phase_instants(spec, architecture(spec.model)).items():
        assert instant.total_bytes <= phases[phase].total_bytes, phase


@given(specs(REFERRING))
def test_a_reference_before_training_never_needs_more(spec: TrialSpec) -> None:
    rows = spec.per_device_train_batch_size
    before = replace(spec, precompute_ref_log_probs=True, precompute_ref_batch_size=rows)
    within = replace(spec, precompute_ref_log_probs=False, precompute_ref_batch_size=None)
    sizes = [estimate(each, architecture(spec.model)).peak_allocated_bytes for each in (before, within)]
    # Two float32 numbers per pair are inputs then.
    assert sizes[0] <= sizes[1] + 2 * 1024 * spec.gradient_accumulation_steps


@given(st.lists(specs(), min_size=1, max_size=8), st.booleans())
def test_a_table_has_the_estimate_of_each_trial(many: list[TrialSpec], with_grpo: bool) -> None:
    assert_a_table_has_each_estimate(many, with_grpo=with_grpo)


@pytest.mark.parametrize("recipe", [*REFERRING, Recipe.REWARD])
def test_rows_of_one_group_that_differ_in_each_number(recipe: Recipe) -> None:
    more = {"max_length": 2048, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "steps": 3}
    trials = [preferring(recipe, **keys) for keys in ({}, *({key: value} for key, value in more.items()), more)]
    table = estimate_table(table_of(trials, {name: architecture(name) for name in BUILTIN_MODELS}))
    alone = [estimate(spec, architecture(spec.model)).peak_allocated_bytes for spec in trials]
    assert list(table.peak_allocated_bytes) == alone


SHORT = {**BUILTIN_MODELS["qwen2.5-0.5b"].config, "num_hidden_layers": 6}
"""A quarter of the layers: a quarter of the time, and bounds of half the width."""

SIMULATED: tuple[dict[str, Any], ...] = (
    {"recipe": Recipe.REWARD, "max_length": 512, "per_device_train_batch_size": 2},
    {"recipe": Recipe.REWARD, "tuning": Tuning.LORA, "gradient_checkpointing": False, "lengths": Lengths.FORCED},
    {"recipe": Recipe.KTO, "max_length": 512, "gradient_checkpointing": False},
    {"recipe": Recipe.KTO, "tuning": Tuning.QLORA, "precompute_ref_log_probs": True, "precompute_ref_batch_size": 16},
    {"max_length": 512, "per_device_train_batch_size": 2, "optim": Optimizer.ADAMW_8BIT},
    {"tuning": Tuning.LORA, "gradient_checkpointing": False, "lengths": Lengths.FORCED},
    {"max_length": 512, "tuning": Tuning.QLORA, "per_device_train_batch_size": 1},
    {"precompute_ref_log_probs": True, "precompute_ref_batch_size": 16},
)


REPLAYED = {Recipe.DPO: 0.03, Recipe.REWARD: 0.06, Recipe.KTO: 0.11}
"""How far a replay of reserved memory may be from the simulation: with few layers, one block is some percent."""


def errors(model_config: Mapping[str, Any], **keys: Any) -> tuple[dict[Phase, float], float]:
    """Return by which part the estimate of allocated memory of each phase differs from the simulation, and the replay
    of reserved memory."""
    spec = preferring(**{"recipe": Recipe.DPO, "gradient_accumulation_steps": 2, "steps": 2, **keys})
    trace = simulate(spec, model_config).trace
    replayed = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig())
    model = read_architecture(model_config, model="short")
    of_phases = {
        phase: int(instant.total_bytes) / replayed.phases[phase].peak_allocated_bytes - 1
        for phase, instant in phase_instants(spec, model).items()
    }
    return of_phases, (estimate_with_replay(spec, model).peak_reserved_bytes or 0) / replayed.peak_reserved_bytes - 1


@pytest.mark.slow
def test_the_estimate_of_each_phase_is_near_the_simulation() -> None:
    """Allocated memory, in every phase: a reference that was counted in another one would be found."""
    found = [errors(SHORT, **keys) for keys in SIMULATED]
    every = [abs(error) for of_phases, _ in found for error in of_phases.values()]
    assert max(every) <= 0.02, found
    assert statistics.median(every) <= 0.005
    recipes = [keys.get("recipe", Recipe.DPO) for keys in SIMULATED]
    for recipe, most in REPLAYED.items():
        assert max(abs(of) for its, (_, of) in zip(recipes, found, strict=True) if its is recipe) <= most, found


def _quantile(values: list[float], part: float) -> float:
    return sorted(values)[int(part * (len(values) - 1))]


def _error_text(estimates: Sequence[Estimate], recipe: str, metric: str) -> str:
    """Return the errors of the sample of a recipe in percent, in the words of the page."""
    sizes_bytes = [getattr(estimate, f"peak_{metric}_bytes") for estimate in estimates]
    errors = [100 * (size / there[metric] - 1) for size, there in zip(sizes_bytes, kept(recipe), strict=True)]
    sizes = [abs(error) for error in errors]
    middle = f"{statistics.median(sizes):.1f} % in the median, {_quantile(sizes, 0.95):.1f} % at the 95th percentile"
    return f"{middle}, from {min(errors):+.1f} to {max(errors):+.1f} %"


@pytest.mark.parametrize("recipe", SEEDS)
def test_the_trust_page_has_the_errors_of_the_sample(recipe: str) -> None:
    text = " ".join((ROOT / "docs" / "trust.md").read_text().split())
    estimates = [estimate_with_replay(spec, architecture(spec.model)) for spec in sample(recipe)]
    allocated, reserved = (_error_text(estimates, recipe, metric) for metric in ("allocated", "reserved"))
    assert f"With `recipe={recipe}`, the error of the peak is {allocated}; of reserved memory {reserved}" in text
    assert f"On {COUNT} simulated trials of each that a seed chose, of eleven models" in text
    assert len({spec.model for spec in sample(recipe)}) == 11
    assert len({spec.gpu for spec in sample(recipe)}) == 4


@pytest.mark.parametrize("recipe", SEEDS)
def test_no_phase_of_the_sample_is_far_from_its_simulation(recipe: str) -> None:
    for spec, there in zip(sample(recipe), kept(recipe), strict=True):
        assert spec.model == there["model"]
        for phase, instant in phase_instants(spec, architecture(spec.model)).items():
            assert abs(int(instant.total_bytes) / there["phases"][phase] - 1) <= 0.04, (spec, phase)


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "number"), [("dpo", 3), ("dpo", 6), ("kto", 3), ("reward", 6)])
def test_the_kept_simulation_of_the_sample_is_that_of_today(recipe: str, number: int) -> None:
    assert simulated(sample(recipe)[number]) == kept(recipe)[number]


def test_a_reward_model_by_hand() -> None:
    """A pair of 1,024 tokens of qwen2.5-0.5b: the decoder and 896 values; T = 2,048 hidden states that are scored."""
    spec = preferring(Recipe.REWARD, per_device_train_batch_size=1, gradient_accumulation_steps=1)
    batch = micro_batch(spec)
    assert (batch.rows, batch.width, batch.has_mask) == (2, 1024, True)
    instants = {each.name: each.sizes for each in trial_instants(spec, architecture(spec.model))}
    forward, backward = instants["the head's forward and loss"], instants["the head's backward"]
    assert forward[Category.WEIGHTS] == (494_032_768 + 896) * 2 + 256
    assert backward[Category.ACTIVATIONS] - forward[Category.ACTIVATIONS] == 2_048 * 896 * 2
    assert forward[Category.LOGITS] == forward[Category.REFERENCE] == 0
    # All that is trained: with adapters of rank 16 also a copy of the head.
    adapted = preferring(Recipe.REWARD, tuning=Tuning.LORA)
    step = trial_instants(adapted, architecture(spec.model))[-1]
    assert step.sizes[Category.ADAPTERS] == (8_798_208 + 896) * 4


def test_the_term_of_kto_runs_before_its_forward() -> None:
    """4 rows: nothing of them waits in the pass for the KL term, but the gradients of an earlier micro-batch."""
    spec = preferring(Recipe.KTO, tuning=Tuning.LORA, gradient_accumulation_steps=2, precompute_ref_log_probs=True)
    scores = [each for each in trial_instants(spec, architecture(spec.model)) if each.phase is Phase.SCORE]
    own = [each.sizes for each in scores if each.sizes.get(Category.GRADIENTS)]
    assert own
    assert all(each[Category.GRADIENTS] == 8_798_208 * 4 for each in own)
    # Six tensors of ids and masks of each of two micro-batches, two numbers of each row, and the labels.
    assert own[0][Category.INPUTS] >= 2 * (6 * 4 * 1024 * 8 + 2 * 4 * 4) + 4 * 1024 * 8


def test_the_command_of_trls_script_is_near_its_emulated_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A run of the script itself, with its data set, on torch's CUDA build: no part of the recipe made it."""
    with (ROOT / "results" / "reference" / "scripts" / "tried.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["script"], row["backend"]) == ("trl `dpo.py`", "emulated")]
    (row,) = rows
    assert main(["gpu=h100-80gb", "format=json", "--", "trl", "dpo", *row["arguments"].split()]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trial"]["recipe"] == "dpo"
    assert found["peak_phase"] == row["phase"]
    assert found["peak_allocated_bytes"] / int(row["allocated_bytes"]) == pytest.approx(1, abs=0.0035)
    assert found["peak_reserved_bytes"] / int(row["reserved_bytes"]) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize(
    ("model", "full", "lora"),
    [
        ("qwen2.5-0.5b", 6_534_113_672, 2_414_077_248),
        ("qwen2.5-1.5b", 18_023_701_832, 5_689_938_976),
        ("qwen2.5-3b", 34_461_622_984, 9_855_945_184),
        ("qwen2.5-7b", 81_734_442_316, 20_908_422_176),
        ("qwen2.5-14b", 157_199_240_460, 37_946_029_184),
    ],
)
def test_a_kept_peak_of_each_size(model: str, full: int, lora: int) -> None:
    found = [estimate(dpo(model=model, **keys), architecture(model)) for keys in ({}, {"tuning": Tuning.LORA})]
    assert [each.peak_allocated_bytes for each in found] == [full, lora]


def test_copied_adapters_are_cast_while_they_score():
    """Over 4-bit weights the copy is float32, and autocast keeps 40.4e6 x 2 B of it: peaks of a simulated trial."""
    shared = {"model": "qwen3-0.6b", "tuning": Tuning.QLORA, "lora_rank": 64, "ref_adapter": True}
    rows = {"max_length": 512, "max_prompt_length": 64, "lengths": Lengths.FORCED, "per_device_train_batch_size": 1}
    spec = replace(dpo(**shared, **rows, gradient_accumulation_steps=4, steps=2), gpu="a100-80gb")
    found = phase_instants(spec, architecture(spec.model))
    assert found[Phase.SCORE].total_bytes == pytest.approx(1_253_941_760, rel=0.006)
    assert found[Phase.FORWARD].total_bytes == pytest.approx(1_171_336_192, rel=0.006)
    # The copy is made when the LM head has been tied.
    assert found[Phase.LOAD].total_bytes == pytest.approx(853_250_048, rel=0.012)
