"""The recipe `sft` on the CPU and on the simulated GPU."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from measured_on_cpu import MODEL, ROWS, TRIAL, measure_on_cpu, steps_of, stretches
from recipe_specs import sft_spec
from simulating import LORA
from torch.utils._python_dispatch import TorchDispatchMode
from trl import SFTConfig

from profiler.allocator import AllocatorConfig, Trace, replay_on_card
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import Backend, Dtype, Lengths, Logprobs, Tuning
from profiler.simulation.device.cpu_choices import Choices
from profiler.simulation.session import Extrapolation, Simulation
from profiler.training.data.source_data import build_tokenizer, sequence_length
from profiler.training.recipes.sft import build_rows, chunked_loss, log_metrics
from profiler.training.run import PlainSession, Trained, run_training

TINY = BUILTIN_MODELS["tiny"].config


class Quiet:
    """An observer that keeps nothing."""

    def enter(self, phase: Phase) -> None:
        """Do nothing."""

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """Do nothing."""


def on_the_cpu(**keys: Any) -> Trained:
    return run_training(sft_spec(**keys), TINY, PlainSession(device=torch.device("cpu"), observer=Quiet()))


def simulated(
    *, model_config: Any = TINY, choices: Choices = Choices.CUDA, steps_extrapolated: bool = True, **keys: Any
) -> tuple[Trained, Trace]:
    extrapolation = Extrapolation(steps=steps_extrapolated)
    simulation = Simulation(KNOWN_GPUS["h100-80gb"], choices=choices, extrapolation=extrapolation)
    spec = sft_spec(backend=Backend.SIMULATED, gpu="h100-80gb", **keys)
    trained = run_training(spec, model_config, simulation)
    return trained, simulation.recorder.finished()


# ---- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lengths", "found"), [(Lengths.FORCED, [24] * 4), (Lengths.RAGGED, [24, 21, 18, 15])])
def test_every_micro_batch_has_a_row_of_the_full_length_first(lengths: Lengths, found: list[int]) -> None:
    rows = build_rows(sft_spec(lengths=lengths, steps=3), build_tokenizer())
    assert [len(ids) for ids in rows["input_ids"]] == found * 6
    assert list(rows["labels"]) == list(rows["input_ids"])


def test_a_specification_without_max_length_is_refused() -> None:
    with pytest.raises(ValueError, match="max_length"):
        sequence_length(sft_spec(max_length=None))


def test_prompts_of_a_data_set_have_no_labels_and_rows_without_labels_are_left_out(tmp_path: Path) -> None:
    pairs = {"prompt": ["w0 w1", "w0 w1 w2 w3"], "completion": ["w4 w5 w6", "w7"]}
    Dataset.from_dict(pairs).to_json(tmp_path / "pairs.jsonl")
    rows = build_rows(sft_spec(dataset=str(tmp_path / "pairs.jsonl"), max_length=4), build_tokenizer())
    assert list(rows["input_ids"]) == [[2, 3, 6, 7]] * 8
    assert list(rows["labels"]) == [[-100, -100, 6, 7]] * 8


def test_texts_of_a_data_set_end_with_the_token_of_the_end(tmp_path: Path) -> None:
    Dataset.from_dict({"text": ["w0 w1"]}).to_json(tmp_path / "texts.jsonl")
    rows = build_rows(sft_spec(dataset=str(tmp_path / "texts.jsonl")), build_tokenizer())
    assert list(rows["input_ids"]) == list(rows["labels"]) == [[2, 3, 1]] * 8


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"answer": ["w0"]}, "needs a column text or prompt with completion or question with answer; it has answer"),
        ({"question": ["w0 w1 w2"], "answer": ["w3"]}, "no row whose completion begins within max_length=3 tokens"),
    ],
)
def test_a_data_set_that_cannot_be_used_is_refused(tmp_path: Path, columns: dict[str, list[str]], message: str) -> None:
    Dataset.from_dict(columns).to_json(tmp_path / "rows.jsonl")
    with pytest.raises(UsageError, match=message):
        build_rows(sft_spec(dataset=str(tmp_path / "rows.jsonl"), max_length=3), build_tokenizer())


# ---- on the CPU ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"tuning": Tuning.LORA, **LORA}], ids=["full", "LoRA"])
def test_the_loss_is_the_cross_entropy_of_the_labels(keys: dict[str, Any]) -> None:
    trained = on_the_cpu(dtype=Dtype.FLOAT32, bf16=False, gradient_accumulation_steps=1, **keys)
    trainer: Any = trained.trainer
    batch = trainer.data_collator([trainer.train_dataset[row] for row in range(4)])
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, dict(batch))
        logits = trainer.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
    torch.testing.assert_close(loss, expected)
    assert {name for name, value in trainer.model.named_parameters() if value.requires_grad}
    assert trainer.ref_model is None


@pytest.mark.slow
@pytest.mark.parametrize("logprobs", [each for each in Logprobs if not each.is_of_completions])
def test_every_loss_of_labels_is_that_of_trl_today(logprobs: Logprobs) -> None:
    keys: dict[str, Any] = {"dtype": Dtype.FLOAT32, "bf16": False, "gradient_accumulation_steps": 1}
    found = []
    for each in (logprobs, Logprobs.FUSED):
        trainer: Any = on_the_cpu(logprobs=each, **keys).trainer
        batch = trainer.data_collator([trainer.train_dataset[row] for row in range(4)])
        trainer.model.zero_grad()
        loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=torch.tensor(60))
        loss.backward()
        found.append((loss, *(value.grad for value in trainer.model.parameters())))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("logprobs", "rows", "copies"),
    [
        (Logprobs.NLL, 0, 0),
        (Logprobs.NLL_ACCURACY, 0, 1),
        (Logprobs.NLL_ROW_ENTROPY, 4, 1),
        (Logprobs.NLL_TWO_COPIES, 0, 2),
        (Logprobs.NLL_ENTROPY, 0, 1),
    ],
)
def test_what_trl_logs_of_logits(logprobs: Logprobs, rows: int, copies: int) -> None:
    """Rows of 400 tokens, of which the entropy is computed row by row or of 128 tokens."""
    made: list[tuple[int, ...]] = []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if function.overloadpacket in (torch.ops.aten.clone, torch.ops.aten._log_softmax):
                made.append(tuple(result.shape))
            return result

    label_loss = logprobs.label_loss
    assert label_loss is not None
    with Watched():
        log_metrics(torch.zeros(4, 400, 3), label_loss)
    assert made.count((4, 399, 3)) == copies
    assert made.count((400, 3)) == rows


CHUNKED = [each for each in Logprobs if each.chunked_loss is not None]


@pytest.mark.parametrize("logprobs", CHUNKED)
def test_a_loss_in_chunks_is_that_of_all_labels(logprobs: Logprobs) -> None:
    """Two rows of 301 tokens, of which 500 have a label: two chunks, the second not full."""
    torch.manual_seed(0)
    hidden, head = torch.randn(2, 301, 8, requires_grad=True), torch.randn(12, 8, requires_grad=True)
    labels = torch.randint(12, (2, 301))
    labels[:, 1:51] = -100
    assert logprobs.chunked_loss is not None
    loss, count = chunked_loss(hidden, head, labels, logprobs.chunked_loss)
    expected = torch.nn.functional.cross_entropy(
        (hidden @ head.t())[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
    )
    torch.testing.assert_close(loss, expected)
    assert count == 500
    found, wanted = (torch.autograd.grad(each, (hidden, head)) for each in (loss, expected))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("logprobs", "products", "longest"),
    [(Logprobs.CHUNKED_NLL, 0, 500), (Logprobs.CHUNKED_NLL_MASKED, 2, 600), (Logprobs.CHUNKED_NLL_CAST, 2, 600)],
)
def test_what_backward_makes_again_of_a_chunk(logprobs: Logprobs, products: int, longest: int) -> None:
    """The product of the entropy, [256, 12], and in float32 two factors or their product."""
    hidden = torch.zeros(2, 301, 8, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.zeros(2, 301, dtype=torch.int64)
    labels[:, 1:51] = -100
    assert logprobs.chunked_loss is not None
    made = []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            made.append((function.overloadpacket, tuple(getattr(result, "shape", ())), getattr(result, "dtype", None)))
            return result

    with Watched():
        loss, _ = chunked_loss(hidden, torch.zeros(12, 8, dtype=torch.bfloat16), labels, logprobs.chunked_loss)
    assert (torch.ops.aten.index, (longest, 8), torch.bfloat16) in made
    made.clear()
    with Watched():
        loss.backward()
    shapes = [shape for function, shape, _ in made if function is torch.ops.aten.mul]
    assert len([shape for shape in shapes if shape[1:] == (12,)]) == products
    widened = (torch.ops.aten._to_copy, (12, 8), torch.float32)
    assert made.count(widened) == (2 if logprobs.chunked_loss.widens_inputs else 0)


def test_the_default_loss_of_trl_is_the_fused_one_and_chunked_is_its_alias(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        assert SFTConfig(**arguments).loss_type == SFTConfig(**arguments, loss_type="chunked_nll").loss_type == "nll"


# ---- on the simulated GPU --------------------------------------------------------------------------------------------

MIXTURE = dict(TINY) | {
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "LoRA": {"tuning": Tuning.LORA, **LORA},
    "QLoRA": {"tuning": Tuning.QLORA, **LORA},
    "mixture of experts": {"model_config": MIXTURE},
    "all logits": {"logprobs": Logprobs.NLL_TWO_COPIES},
    "chunks": {"logprobs": Logprobs.CHUNKED_NLL_MASKED},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_byte_of_a_simulated_run_has_its_category(case: str) -> None:
    _, trace = simulated(**CASES[case], steps=2)
    replayed = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig())
    assert list(replayed.phases) == [Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert sum(replayed.breakdown.values()) == replayed.peak_allocated_bytes
    assert Category.OTHER not in replayed.breakdown
    present = {Category.WEIGHTS, Category.OPTIMIZER_STATE, Category.LOGITS, Category.INPUTS}
    assert present <= {category for category, size in replayed.breakdown.items() if size}


@pytest.mark.slow
def test_a_simulated_run_ends_when_its_steps_repeat_with_the_trace_of_the_whole_run() -> None:
    (short, trace), (whole, whole_trace) = (simulated(steps=6, steps_extrapolated=each) for each in (True, False))
    assert (short.steps_run, whole.steps_run) == (4, 6)
    assert trace == whole_trace


def test_the_fused_head_scores_the_positions_with_a_label(tmp_path: Path) -> None:
    Dataset.from_dict({"prompt": ["w0 w1 w2 w3"], "completion": ["w4 w5"]}).to_json(tmp_path / "pairs.jsonl")
    keys = {"dtype": Dtype.BFLOAT16, "gradient_accumulation_steps": 1}
    _, all_labels = simulated(lengths=Lengths.FORCED, **keys)
    _, completions = simulated(dataset=str(tmp_path / "pairs.jsonl"), **keys)
    hidden_bytes, rows = 64 * 2, 4
    assert rows * (24 - 1) * hidden_bytes in all_labels.sizes_bytes
    # Two words and the end of each row.
    assert rows * 3 * hidden_bytes in completions.sizes_bytes


@pytest.mark.slow
def test_the_simulation_with_the_choices_of_the_cpu_has_the_peaks_of_a_run_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `tests/simulation/test_trial_on_the_cpu.py` does for GRPO: to the byte, but for memory of the host."""
    keys = {**TRIAL, "max_length": 48, "per_device_train_batch_size": ROWS}
    monkeypatch.setattr("measured_on_cpu.small_spec", lambda **given: sft_spec(**given))
    real = measure_on_cpu(model_config=MODEL, **keys).stretches
    _, trace = simulated(model_config=MODEL, choices=Choices.CPU, steps_extrapolated=False, **keys)
    found = stretches(steps_of(trace))
    assert [one.phase for one in real] == [one.phase for one in found]
    assert len(found) == 11
    # In the first of two steps accelerate has the next batch on the host: ids, labels and mask, 8 bytes each.
    next_batch = 3 * ROWS * 48 * 8
    for number, (one, other) in enumerate(zip(real, found, strict=True)):
        on_the_host = next_batch if 1 <= number <= 5 else 0
        # Numbers on the host, such as the step counts of the optimizer and the count of labels.
        numbers = 12 if one.phase is Phase.OPTIMIZER else 0
        assert 0 <= one.peak_bytes - other.peak_bytes - on_the_host <= numbers, (number, one)
