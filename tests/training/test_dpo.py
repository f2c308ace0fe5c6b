"""The recipe `dpo` on the CPU and on the simulated GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from measured_on_cpu import MODEL, ROWS, TRIAL, measure_on_cpu, steps_of, stretches
from recipe_specs import dpo_spec
from simulating import LORA
from trl import DPOConfig

from profiler.allocator import AllocatorConfig, Trace, replay_on_card
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category, Phase, as_gib
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import Backend, Dtype, Lengths, Tuning
from profiler.simulation.device.cpu_choices import Choices
from profiler.simulation.session import Extrapolation, Simulation
from profiler.training.data.source_data import build_tokenizer
from profiler.training.recipes.dpo import build_pairs
from profiler.training.run import PlainSession, Trained, run_training
from profiler.worker.simulated import simulate

TINY = BUILTIN_MODELS["tiny"].config
IN_FLOAT32: dict[str, Any] = {"dtype": Dtype.FLOAT32, "bf16": False, "gradient_accumulation_steps": 1}
BEFORE: dict[str, Any] = {"precompute_ref_log_probs": True, "precompute_ref_batch_size": 4}


class Noting:
    """An observer that keeps the phases."""

    def __init__(self) -> None:
        self.seen: list[Phase] = []

    def enter(self, phase: Phase) -> None:
        """Keep `phase`."""
        self.seen.append(phase)

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """Do nothing."""


def on_the_cpu(**keys: Any) -> tuple[Trained, list[Phase]]:
    notes = Noting()
    trained = run_training(dpo_spec(**keys), TINY, PlainSession(device=torch.device("cpu"), observer=notes))
    return trained, notes.seen


def simulated(
    *, model_config: Any = TINY, choices: Choices = Choices.CUDA, steps_extrapolated: bool = True, **keys: Any
) -> tuple[Trained, Trace]:
    extrapolation = Extrapolation(steps=steps_extrapolated)
    simulation = Simulation(KNOWN_GPUS["h100-80gb"], choices=choices, extrapolation=extrapolation)
    spec = dpo_spec(backend=Backend.SIMULATED, gpu="h100-80gb", **keys)
    trained = run_training(spec, model_config, simulation)
    return trained, simulation.recorder.finished()


# ---- pairs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "chosen", "rejected"),
    [(Lengths.FORCED, [16, 16], [16, 16]), (Lengths.RAGGED, [16, 12], [14, 10])],
)
def test_the_first_completion_of_a_batch_has_the_full_length(
    lengths: Lengths, chosen: list[int], rejected: list[int]
) -> None:
    pairs = build_pairs(dpo_spec(lengths=lengths, per_device_train_batch_size=2, steps=3), build_tokenizer())
    assert [len(ids) for ids in pairs["prompt_ids"]] == [8] * 12
    assert [len(ids) for ids in pairs["chosen_ids"]] == chosen * 6
    assert [len(ids) for ids in pairs["rejected_ids"]] == rejected * 6


def test_there_are_pairs_for_a_whole_batch_before_training() -> None:
    keys = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    pairs = build_pairs(dpo_spec(precompute_ref_log_probs=True, precompute_ref_batch_size=16, **keys), None)
    assert len(pairs) == 16


def test_pairs_of_a_data_set_end_with_the_token_of_the_end(tmp_path: Path) -> None:
    rows = {"prompt": ["w0 w1", "w0 w1 w2 w3"], "chosen": ["w4", "w7"], "rejected": ["w5 w6", "w8"]}
    Dataset.from_dict(rows).to_json(tmp_path / "pairs.jsonl")
    pairs = build_pairs(dpo_spec(dataset=str(tmp_path / "pairs.jsonl"), max_length=4), build_tokenizer())
    assert pairs[:] == {"prompt_ids": [[2, 3]] * 8, "chosen_ids": [[6, 1]] * 8, "rejected_ids": [[7, 8, 1]] * 8}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": ["w0"]}, "needs a column prompt with chosen with rejected; it has prompt"),
        ({"prompt": ["w0 w1"], "chosen": ["w2"], "rejected": ["w3"]}, "no prompt of less than max_length=2 tokens"),
    ],
)
def test_a_data_set_that_cannot_be_used_is_refused(tmp_path: Path, columns: dict[str, list[str]], message: str) -> None:
    Dataset.from_dict(columns).to_json(tmp_path / "rows.jsonl")
    with pytest.raises(UsageError, match=message):
        build_pairs(dpo_spec(dataset=str(tmp_path / "rows.jsonl"), max_length=2), build_tokenizer())


# ---- on the CPU ------------------------------------------------------------------------------------------------------


def _of_completions(model: Any, batch: Any) -> torch.Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    found = logits.log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None]).squeeze(-1)
    return (found * batch["completion_mask"][:, 1:]).sum(1)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"tuning": Tuning.LORA, **LORA}], ids=["full", "LoRA"])
def test_the_loss_is_that_of_the_paper(keys: dict[str, Any]) -> None:
    """Equation 7 of https://arxiv.org/abs/2305.18290, after a step, so that policy and reference differ."""
    trainer: Any = on_the_cpu(**IN_FLOAT32, **keys)[0].trainer
    batch = trainer.data_collator([trainer.train_dataset[row] for row in range(4)])
    for value in trainer.model.parameters():
        if value.requires_grad:
            value.data.add_(0.01)
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, dict(batch))
        policy = _of_completions(trainer.model, batch)
        if trainer.ref_model is None:
            with trainer.model.disable_adapter():
                reference = _of_completions(trainer.model, batch)
        else:
            reference = _of_completions(trainer.ref_model, batch)
    chosen, rejected = (policy - reference).chunk(2)
    expected = -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()
    torch.testing.assert_close(loss, expected)
    assert abs(float(expected) - 0.6931) > 1e-4
    assert (trainer.ref_model is None) is bool(keys)


@pytest.mark.slow
def test_a_reference_before_training_scores_completions() -> None:
    trainer: Any = on_the_cpu(**IN_FLOAT32, **BEFORE)[0].trainer
    batch = trainer.data_collator([trainer.train_dataset[row] for row in range(4)])
    with torch.no_grad():
        # One step at trl's learning rate of 1e-6 has changed the policy a little since.
        found = _of_completions(trainer.model, batch)
    torch.testing.assert_close(
        torch.cat([batch["ref_chosen_logps"], batch["ref_rejected_logps"]]), found, rtol=1e-3, atol=0
    )
    assert trainer.ref_model is None


@pytest.mark.slow
def test_the_reference_is_a_phase_in_the_loss_or_before() -> None:
    within, before = (on_the_cpu(**IN_FLOAT32, **keys)[1] for keys in ({}, BEFORE))
    end = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert within == [Phase.LOAD, Phase.FORWARD, Phase.FORWARD, Phase.SCORE, *end]
    assert before == [Phase.LOAD, Phase.SCORE, Phase.LOAD, Phase.FORWARD, *end]


def test_trl_switches_padding_free_off_and_dropout_too(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": []}
    assert DPOConfig(**arguments).disable_dropout is True
    trainer: Any = on_the_cpu(tuning=Tuning.LORA, **LORA, **IN_FLOAT32)[0].trainer
    assert trainer.args.disable_dropout is True
    dropping: Any = on_the_cpu(tuning=Tuning.LORA, **LORA, **IN_FLOAT32, lora_dropout=0.5)[0].trainer
    assert {each.p for each in dropping.model.modules() if isinstance(each, torch.nn.Dropout)} == {0.5}
    assert trainer.padding_free is False


# ---- on the simulated GPU --------------------------------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "LoRA": {"tuning": Tuning.LORA, **LORA},
    "QLoRA": {"tuning": Tuning.QLORA, **LORA},
    "the reference before": BEFORE,
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_byte_of_a_simulated_run_has_its_category(case: str) -> None:
    _, trace = simulated(**CASES[case], steps=2)
    replayed = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig())
    assert set(replayed.phases) == {Phase.LOAD, Phase.FORWARD, Phase.SCORE, Phase.BACKWARD, Phase.OPTIMIZER}
    assert sum(replayed.breakdown.values()) == replayed.peak_allocated_bytes
    assert Category.OTHER not in replayed.breakdown
    present = {category for category, size in replayed.breakdown.items() if size}
    assert {Category.WEIGHTS, Category.OPTIMIZER_STATE, Category.LOGITS, Category.INPUTS} <= present
    assert (Category.REFERENCE in present) is (case == "full")


@pytest.mark.slow
def test_a_simulated_run_that_ends_early_has_the_whole_trace() -> None:
    (short, trace), (whole, whole_trace) = (simulated(steps=6, steps_extrapolated=each) for each in (True, False))
    assert (short.steps_run, whole.steps_run) == (4, 6)
    assert trace == whole_trace


def test_the_fused_head_scores_completions_only() -> None:
    _, trace = simulated(lengths=Lengths.FORCED, dtype=Dtype.BFLOAT16, gradient_accumulation_steps=1)
    hidden_bytes, rows = 64 * 2, 8
    assert rows * 16 * hidden_bytes in trace.sizes_bytes
    of_tokens = [site.shape for site in trace.sites if len(site.shape) == 3 and site.shape[-1] == TINY["vocab_size"]]
    assert of_tokens == []


@pytest.mark.slow
def test_random_weights_are_not_hashed_on_the_host() -> None:
    """Nor does it take any time in a simulation: random weights have no values to tell apart."""
    found, _ = simulated(**BEFORE)
    trainer: Any = found.trainer
    assert trainer._precompute_model_hash == ""
    assert {"ref_chosen_logps", "ref_rejected_logps"} <= set(trainer.train_dataset.column_names)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, BEFORE], ids=["within the loss", "before training"])
def test_the_choices_of_the_cpu_have_the_peaks_of_the_cpu(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `test_sft.py` does: to the byte, but for memory of the host."""
    keys = {**TRIAL, "max_length": 48, "max_prompt_length": 16, "per_device_train_batch_size": ROWS // 2, **keys}
    monkeypatch.setattr("measured_on_cpu.small_spec", lambda **given: dpo_spec(**given))
    real = measure_on_cpu(model_config=MODEL, **keys).stretches
    _, trace = simulated(model_config=MODEL, choices=Choices.CPU, steps_extrapolated=False, **keys)
    found = stretches(steps_of(trace))
    assert [one.phase for one in real] == [one.phase for one in found]
    # In the first of two steps accelerate has the next batch on the host: ids and two masks, 8 bytes each, and numbers.
    next_batch, numbers = 3 * ROWS * 48 * 8, 600
    for number, (one, other) in enumerate(zip(real, found, strict=True)):
        assert 0 <= one.peak_bytes - other.peak_bytes <= next_batch + numbers, (number, one, other)
    second = range([one.phase for one in real].index(Phase.OPTIMIZER) + 1, len(real))
    for number in second:
        allowed = numbers if real[number].phase is Phase.FORWARD else 0
        assert 0 <= real[number].peak_bytes - found[number].peak_bytes <= allowed, (number, real[number], found[number])


EMULATED: dict[str, tuple[dict[str, Any], int, int]] = {
    "full": ({}, 6_242_719_232, 6_601_834_496),
    "the reference before": (BEFORE | {"precompute_ref_batch_size": 2}, 5_250_101_760, 5_423_235_072),
    "LoRA": ({"tuning": Tuning.LORA}, 1_813_883_904, 1_927_282_688),
    "QLoRA": ({"tuning": Tuning.QLORA}, 1_105_584_128, 1_214_251_008),
}
"""Allocated and reserved bytes that torch 2.13.0+cu130 counted on an emulated H100: 2 steps of 2 x 2 pairs."""


@pytest.mark.slow
@pytest.mark.parametrize("case", EMULATED)
def test_the_simulation_has_the_bytes_of_torchs_cuda_build(case: str) -> None:
    keys, allocated, reserved = EMULATED[case]
    adapters = {"lora_rank": 16, "lora_alpha": 32, "lora_target_modules": ("all-linear",)} if "tuning" in keys else {}
    sizes = {"model": "qwen2.5-0.5b", "max_length": 1024, "max_prompt_length": 256, "per_device_train_batch_size": 2}
    spec = dpo_spec(backend=Backend.SIMULATED, gpu="h100-80gb", steps=2, **sizes, **adapters, **keys)
    trace = simulate(spec, BUILTIN_MODELS["qwen2.5-0.5b"].config).trace
    found = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig())
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (allocated, reserved)


@pytest.mark.slow
def test_surprises_quote_a_reference_in_float32() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "surprises.md").read_text().split())
    keys: dict[str, Any] = {
        "model": "qwen2.5-1.5b",
        "dtype": Dtype.FLOAT32,
        "max_length": 1024,
        "max_prompt_length": 256,
    }
    peaks = []
    for more in ({}, BEFORE):
        spec = dpo_spec(backend=Backend.SIMULATED, gpu="h100-80gb", steps=2, **keys, **more)
        trace = simulate(spec, BUILTIN_MODELS["qwen2.5-1.5b"].config).trace
        replayed = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig())
        peaks.append({phase: as_gib(peak.peak_allocated_bytes) for phase, peak in replayed.phases.items()})
    within, before = peaks
    assert max(within, key=lambda phase: within[phase]) is Phase.SCORE
    assert f"peaks at {within[Phase.SCORE]:.1f} GiB in the forward of the reference" in text
    assert f"no backward needs more than {within[Phase.BACKWARD]:.1f} GiB" in text
    assert f"`precompute_ref_log_probs: true` takes {max(before.values()):.1f} GiB" in text
