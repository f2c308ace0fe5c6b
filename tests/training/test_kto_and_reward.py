"""The recipes `kto` and `reward` on the CPU and on the simulated GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from matrix import with_further
from recipe_specs import kto_spec, reward_spec
from simulating import LORA
from test_dpo import IN_FLOAT32, TINY, Noting, _of_completions

from profiler.allocator import AllocatorConfig, Trace, replay_on_card
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UnsupportedTrialError, UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import Backend, Lengths, TrialSpec, Tuning
from profiler.simulation.session import Extrapolation, Simulation
from profiler.training.data.source_data import build_tokenizer
from profiler.training.recipes.dpo import build_judged_rows
from profiler.training.recipes.sft import build_compared_rows
from profiler.training.run import PlainSession, Trained, run_training
from profiler.worker.simulated import simulate

ON_A_CARD: dict[str, Any] = {"backend": Backend.SIMULATED, "gpu": "h100-80gb"}


def on_the_cpu(spec: TrialSpec) -> tuple[Trained, list[Phase]]:
    notes = Noting()
    return run_training(spec, TINY, PlainSession(device=torch.device("cpu"), observer=notes)), notes.seen


def simulated(spec: TrialSpec, *, steps_extrapolated: bool = True) -> Trace:
    simulation = Simulation(KNOWN_GPUS["h100-80gb"], extrapolation=Extrapolation(steps=steps_extrapolated))
    run_training(spec, TINY, simulation)
    return simulation.recorder.finished()


# ---- rows ------------------------------------------------------------------------------------------------------------


def test_rows_of_kto_have_the_completion_of_a_neighbour() -> None:
    rows = build_judged_rows(kto_spec(per_device_train_batch_size=2, lengths=Lengths.RAGGED), build_tokenizer())
    assert [len(ids) for ids in rows["prompt_ids"]] == [8] * 4
    assert [len(ids) for ids in rows["completion_ids"]] == [16, 14, 16, 14]
    assert rows["label"] == [True, False, True, False]
    own = list(rows["completion_ids"])
    assert list(rows["KL_completion_ids"]) == [own[1], own[0], own[3], own[2]]


def test_pairs_of_a_data_set_are_two_rows_of_kto(tmp_path: Path) -> None:
    pairs = {"prompt": ["w0 w1", "w2 w3"], "chosen": ["w4", "w7"], "rejected": ["w5 w6", "w8"]}
    Dataset.from_dict(pairs).to_json(tmp_path / "pairs.jsonl")
    spec = kto_spec(dataset=str(tmp_path / "pairs.jsonl"), per_device_train_batch_size=2)
    rows = build_judged_rows(spec, build_tokenizer())
    assert rows["prompt_ids"][:4] == [[2, 3], [2, 3], [4, 5], [4, 5]]
    assert rows["completion_ids"][:4] == [[6, 1], [7, 8, 1], [9, 1], [10, 1]]
    assert rows["label"][:4] == [True, False, True, False]


@pytest.mark.parametrize(("lengths", "sides"), [(Lengths.FORCED, [24, 24]), (Lengths.RAGGED, [24, 21, 18, 15])])
def test_the_first_row_of_a_batch_of_pairs_has_the_full_length(lengths: Lengths, sides: list[int]) -> None:
    rows = build_compared_rows(reward_spec(lengths=lengths, per_device_train_batch_size=2), build_tokenizer())
    found = [len(ids) for pair in zip(rows["chosen_ids"], rows["rejected_ids"], strict=True) for ids in pair]
    assert found == sides * (8 // len(sides))


def test_pairs_with_a_row_that_is_too_long_are_left_out(tmp_path: Path) -> None:
    pairs = {"prompt": ["w0 ", "w0 "], "chosen": ["w1", "w1 w2 w3 w4"], "rejected": ["w2", "w5"]}
    Dataset.from_dict(pairs).to_json(tmp_path / "pairs.jsonl")
    rows = build_compared_rows(reward_spec(dataset=str(tmp_path / "pairs.jsonl"), max_length=4), build_tokenizer())
    assert rows["chosen_ids"] == [[2, 3, 1]] * 8
    with pytest.raises(UsageError, match="no pair of rows of at most max_length=2 tokens"):
        build_compared_rows(reward_spec(dataset=str(tmp_path / "pairs.jsonl"), max_length=2), build_tokenizer())
    Dataset.from_dict({"text": ["w0"]}).to_json(tmp_path / "texts.jsonl")
    with pytest.raises(UsageError, match="needs a column chosen with rejected; it has text"):
        build_compared_rows(reward_spec(dataset=str(tmp_path / "texts.jsonl")), build_tokenizer())


# ---- on the CPU ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"tuning": Tuning.LORA, **LORA}], ids=["full", "LoRA"])
def test_the_loss_of_pairs_is_that_of_bradley_and_terry(keys: dict[str, Any]) -> None:
    """Minus the logarithm of the sigmoid of the difference of the scores of the last tokens (arXiv:2203.02155, 1)."""
    trainer: Any = on_the_cpu(reward_spec(**IN_FLOAT32, **keys))[0].trainer
    batch = trainer.data_collator([trainer.train_dataset[row] for row in range(4)])
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, dict(batch))
        last = batch["attention_mask"].sum(1) - 1
        base = trainer.model.get_base_model() if keys else trainer.model
        hidden = base.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        scores = base.score(hidden[torch.arange(8), last]).squeeze(-1)
    chosen, rejected = scores.chunk(2)
    torch.testing.assert_close(loss, -torch.nn.functional.logsigmoid(chosen - rejected).mean())
    # All of it is trained, or the adapters and a copy of the head.
    trained = {name for name, value in trainer.model.named_parameters() if value.requires_grad}
    assert not any("lm_head" in name for name, _ in trainer.model.named_parameters())
    assert {"score" in name for name in trained if "lora_" not in name} == ({True} if keys else {True, False})


@pytest.mark.slow
def test_the_loss_of_kto_is_that_of_the_paper() -> None:
    """Equation 8 of https://arxiv.org/abs/2402.01306, after a step, so that policy and reference differ."""
    trainer: Any = on_the_cpu(kto_spec(**IN_FLOAT32))[0].trainer
    batch = trainer.data_collator([trainer.train_dataset[row] for row in range(4)])
    for value in trainer.model.parameters():
        value.data.add_(0.01)
    shifted = {key: batch[f"KL_{key}"] for key in ("input_ids", "attention_mask", "completion_mask")}
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, dict(batch))
        ratios, terms = (
            _of_completions(trainer.model, rows) - _of_completions(trainer.ref_model, rows) for rows in (batch, shifted)
        )
    good, baseline = batch["label"], terms.mean().clamp(min=0)
    values = torch.where(good, ratios - baseline, baseline - ratios)
    torch.testing.assert_close(loss, (1 - torch.sigmoid(0.1 * values)).mean())


@pytest.mark.slow
def test_the_passes_without_gradient_are_a_phase() -> None:
    """That of the policy for the KL term, and two of the reference; before training only the first is left."""
    within, early = (on_the_cpu(kto_spec(**IN_FLOAT32, **keys))[1] for keys in ({}, BEFORE))
    end = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    scored = [Phase.SCORE, Phase.FORWARD]
    assert within == [Phase.LOAD, Phase.FORWARD, Phase.FORWARD, *scored, *scored, Phase.SCORE, *end]
    assert early == [Phase.LOAD, Phase.SCORE, Phase.LOAD, Phase.FORWARD, Phase.FORWARD, Phase.SCORE, *end]
    assert on_the_cpu(reward_spec(**IN_FLOAT32))[1] == [Phase.LOAD, Phase.FORWARD, *end]


def test_a_family_without_a_head_of_scores_is_refused_by_name() -> None:
    config = {**TINY, "model_type": "granite"}
    with pytest.raises(UnsupportedTrialError, match="no model of type granite that scores a row"):
        run_training(reward_spec(), config, PlainSession(device=torch.device("cpu"), observer=Noting()))


# ---- on the simulated GPU --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tuning", Tuning)
@pytest.mark.parametrize("made", [kto_spec, reward_spec], ids=["kto", "reward"])
def test_every_byte_of_a_simulated_run_has_its_category(made: Any, tuning: Tuning) -> None:
    adapters = {} if tuning is Tuning.FULL else LORA
    trace = simulated(made(**ON_A_CARD, tuning=tuning, steps=2, **adapters))
    replayed = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig())
    assert sum(replayed.breakdown.values()) == replayed.peak_allocated_bytes
    assert Category.OTHER not in replayed.breakdown
    assert (Phase.SCORE in replayed.phases) is (made is kto_spec)
    wide = [site.shape for site in trace.sites if len(site.shape) == 3 and site.shape[-1] == TINY["vocab_size"]]
    assert wide == []


@pytest.mark.slow
@pytest.mark.parametrize("made", [kto_spec, reward_spec], ids=["kto", "reward"])
def test_a_simulated_run_that_ends_early_has_the_whole_trace(made: Any) -> None:
    short, whole = (simulated(made(**ON_A_CARD, steps=6), steps_extrapolated=each) for each in (True, False))
    assert short == whole


BEFORE: dict[str, Any] = {"precompute_ref_log_probs": True, "precompute_ref_batch_size": 4}
EMULATED: dict[str, tuple[dict[str, Any], int, int]] = {
    "kto, full": ({}, 5_957_627_904, 6_222_249_984),
    "kto, the reference before": (BEFORE, 4_961_438_720, 5_232_394_240),
    "kto, LoRA": ({"tuning": Tuning.LORA}, 1_360_306_176, 1_405_091_840),
    "reward, full": ({}, 4_331_312_640, 4_838_129_664),
    "reward, LoRA": ({"tuning": Tuning.LORA}, 1_510_000_128, 1_608_515_584),
    "reward, QLoRA": ({"tuning": Tuning.QLORA}, 854_194_688, 905_969_664),
}
"""Allocated and reserved bytes that torch 2.13.0+cu130 counted on an emulated H100: 2 steps of 2 x 2 rows or pairs."""


@pytest.mark.slow
@pytest.mark.parametrize("case", with_further(EMULATED, ("kto, LoRA", "reward, full")))
def test_the_simulation_has_the_bytes_of_torchs_cuda_build(case: str) -> None:
    keys, allocated, reserved = EMULATED[case]
    adapters = {"lora_rank": 16, "lora_alpha": 32, "lora_target_modules": ("all-linear",)} if "tuning" in keys else {}
    sizes = {"model": "qwen2.5-0.5b", "max_length": 512, "per_device_train_batch_size": 2, "steps": 2}
    made = kto_spec if case.startswith("kto") else reward_spec
    prompt = {"max_prompt_length": 256} if made is kto_spec else {}
    spec = made(**{**ON_A_CARD, **sizes, **prompt, **adapters, **keys})
    trace = simulate(spec, BUILTIN_MODELS["qwen2.5-0.5b"].config).trace
    found = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig())
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (allocated, reserved)
