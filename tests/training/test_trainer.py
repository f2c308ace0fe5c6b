"""The GRPO trainer on the CPU: training, phases, and equal gradients with every value of `logprobs`."""

import json
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from huggingface_hub.utils import _telemetry
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from profiler.domain.errors import UsageError
from profiler.domain.memory import Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import Backend, Dtype, Lengths, Logprobs, Rollout, TrialSpec, Tuning, Weights
from profiler.substitutes.active import substitutes
from profiler.training.data.source_data import build_tokenizer
from profiler.training.recipes.grpo.recipe import build_prompts
from profiler.training.recipes.grpo.trainer import full_logprobs, selective_logprobs
from profiler.training.run import PlainSession, build_trainer, run_training

LORA: dict[str, Any] = {"tuning": Tuning.LORA, "lora_rank": 4, "lora_alpha": 8, "lora_target_modules": ("q_proj",)}


class Phases:
    """An observer that keeps the phases in order, without repeats."""

    def __init__(self) -> None:
        self.seen: list[Phase] = []

    def enter(self, phase: Phase) -> None:
        if not self.seen or self.seen[-1] is not phase:
            self.seen.append(phase)

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """Do nothing."""


def spec(**keys: Any) -> TrialSpec:
    defaults: dict[str, Any] = {
        "backend": Backend.CPU,
        "gpu": None,
        "model": "tiny",
        "max_prompt_length": 6,
        "max_completion_length": 8,
        "steps": 1,
    }
    return TrialSpec(**(defaults | keys))


def trainer_of(trial: TrialSpec, phases: Phases | None = None) -> Any:
    session = PlainSession(device=torch.device("cpu"), observer=phases or Phases())
    return build_trainer(trial, BUILTIN_MODELS["tiny"].config, session, output_dir=Path(tempfile.mkdtemp()))


def micro_batch_phases(accumulation: int) -> list[Phase]:
    return [Phase.FORWARD, Phase.BACKWARD] * accumulation


def test_phases_of_one_step() -> None:
    phases = Phases()
    trainer_of(spec(), phases).train()
    step = [Phase.ROLLOUT, Phase.REWARD, *micro_batch_phases(4), Phase.OPTIMIZER]
    assert phases.seen == [Phase.LOAD, *step]


def test_a_reference_is_scored_after_the_rollout() -> None:
    phases = Phases()
    trainer_of(spec(beta=0.04), phases).train()
    assert phases.seen[1:4] == [Phase.ROLLOUT, Phase.SCORE, Phase.REWARD]


def test_old_log_probs_are_scored_where_trl_needs_them() -> None:
    phases = Phases()
    trainer_of(spec(steps_per_generation=8, steps=2), phases).train()
    assert Phase.SCORE in phases.seen
    assert phases.seen.count(Phase.ROLLOUT) == 1


@pytest.mark.parametrize("rollout", list(Rollout))
@pytest.mark.parametrize("keys", [{}, LORA])
def test_training_changes_what_is_trained_and_nothing_else(rollout: Rollout, keys: dict[str, Any]) -> None:
    trainer = trainer_of(spec(rollout=rollout, dtype=Dtype.FLOAT32, bf16=False, **keys))
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.args.learning_rate = 1.0
    trainer.train()
    changed = {name for name, value in trainer.model.named_parameters() if not torch.equal(value, before[name])}
    trainable = {name for name, value in trainer.model.named_parameters() if value.requires_grad}
    assert changed
    assert changed <= trainable


@pytest.mark.parametrize("lengths", list(Lengths))
@pytest.mark.parametrize("rollout", list(Rollout))
def test_completions_have_the_lengths_of_the_key(lengths: Lengths, rollout: Rollout) -> None:
    trainer = trainer_of(spec(lengths=lengths, rollout=rollout))
    trainer.train()
    found = torch.cat([batch["completion_mask"] for batch in trainer._buffered_inputs]).sum(dim=1)
    # Four groups of four; trl shuffles the rows of a generation batch.
    assert sorted(found.tolist()) == ([8] * 16 if lengths is Lengths.FORCED else [5] * 4 + [6] * 4 + [7] * 4 + [8] * 4)


@pytest.mark.parametrize("rollout", list(Rollout))
def test_a_sampled_end_of_sequence_does_not_shorten_a_row(rollout: Rollout) -> None:
    trainer = trainer_of(spec(lengths=Lengths.FORCED, rollout=rollout))
    trainer.eos_token_ids = list(range(512))  # every token of the model ends a sequence
    trainer.train()
    assert torch.cat([batch["completion_mask"] for batch in trainer._buffered_inputs]).sum().item() == 16 * 8


def gradients(logprobs: Logprobs, **keys: Any) -> dict[str, torch.Tensor]:
    trainer = trainer_of(
        spec(logprobs=logprobs, dtype=Dtype.FLOAT32, bf16=False, lengths=Lengths.FORCED, beta=0.0, **keys)
    )
    found: dict[str, torch.Tensor] = {}
    clip = trainer._clip_grad_norm

    def look(model: Any) -> Any:
        found.update({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        return clip(model)

    trainer._clip_grad_norm = look
    trainer.train()
    return found


@cache
def todays_gradients() -> dict[str, torch.Tensor]:
    return gradients(Logprobs.FUSED)


@pytest.mark.parametrize("logprobs", [Logprobs.FULL, Logprobs.SLICED, Logprobs.MINIBATCH, Logprobs.SELECTIVE_IN_PLACE])
def test_every_value_of_logprobs_has_the_gradients_of_trl_today(logprobs: Logprobs) -> None:
    today, other = todays_gradients(), gradients(logprobs)
    assert today.keys() == other.keys()
    assert any(value.abs().max() > 0 for value in today.values())
    for name, value in today.items():
        torch.testing.assert_close(other[name], value, rtol=1e-3, atol=1e-6)


def test_log_probs_of_trl_0_14_by_hand() -> None:
    class Fixed:
        """A model with fixed logits of two tokens, the second three times as likely."""

        def __call__(self, *, input_ids: torch.Tensor, logits_to_keep: int) -> Any:
            logits = torch.tensor([1.0, 3.0]).log().expand(*input_ids.shape, 2)[:, -logits_to_keep:]
            return type("Output", (), {"logits": logits})

    found = full_logprobs(Fixed(), torch.tensor([[0, 0, 1, 0]]), 2)
    torch.testing.assert_close(found, torch.tensor([[0.75, 0.25]]).log())


class Learned:
    """A model with one learned tensor of logits, of which it returns a copy."""

    def __init__(self, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.logits = torch.randn(3, 6, 5).to(dtype).requires_grad_()

    def __call__(self, *, input_ids: torch.Tensor, logits_to_keep: int, **_: Any) -> Any:
        return type("Output", (), {"logits": self.logits[:, -logits_to_keep:].clone()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("logprobs", [each for each in Logprobs if each.selection is not None])
def test_selective_log_probs_and_their_gradients_are_those_of_a_log_softmax(
    logprobs: Logprobs, dtype: torch.dtype
) -> None:
    selection, ids = logprobs.selection, torch.tensor([[0, 1, 2, 3, 4, 0], [1, 1, 0, 2, 2, 4], [4, 3, 2, 1, 0, 0]])
    assert selection is not None
    model, plain = Learned(dtype), Learned(dtype)
    found = selective_logprobs(model, ids, torch.ones_like(ids), 4, selection=selection, temperature=0.5)
    expected = (plain.logits[:, 1:-1] / 0.5).log_softmax(-1).gather(-1, ids[:, -4:, None]).squeeze(-1)
    torch.testing.assert_close(found, expected)
    for logps in (found, expected):
        (logps * torch.arange(1, 5)).sum().backward()
    torch.testing.assert_close(model.logits.grad, plain.logits.grad)


def byte_level_tokenizer() -> Any:
    """Return a tokenizer like that of Qwen's checkpoints, over bytes and without merges."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=258, special_tokens=["<pad>", "<eos>"], initial_alphabet=ByteLevel.alphabet())
    tokenizer.train_from_iterator([], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def test_pretrained_weights_and_a_data_set_from_local_files(tmp_path: Path) -> None:
    random = trainer_of(spec())
    folder = tmp_path / "model"
    random.model.save_pretrained(folder)
    byte_level_tokenizer().save_pretrained(folder)
    data = tmp_path / "questions.jsonl"
    data.write_text(
        "\n".join(json.dumps({"question": f"w{row} w2 w3 w4 w5 w6 w7 w8 w9", "answer": "1"}) for row in range(3))
    )
    trial = spec(model=str(folder), weights=Weights.PRETRAINED, dataset=str(data), beta=0.04)
    trainer = trainer_of(trial)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, random.model.state_dict()[name]), name
    trainer.train()
    assert trainer.state.global_step == 1
    assert trainer.ref_model is not None


def test_prompts_have_the_length_of_the_key_and_differ() -> None:
    tokenizer = build_tokenizer()
    prompts = build_prompts(spec(max_prompt_length=50), tokenizer)["prompt"]
    assert {len(tokenizer(prompt)["input_ids"]) for prompt in prompts} == {50}
    assert len(set(prompts)) == len(prompts)


def test_a_long_prompt_of_a_data_set_is_cut_to_its_end(tmp_path: Path) -> None:
    Dataset.from_dict({"prompt": [" ".join(f"w{i}" for i in range(20))]}).to_json(tmp_path / "p.jsonl")
    prompts = build_prompts(spec(dataset=str(tmp_path / "p.jsonl"), max_prompt_length=3), build_tokenizer())["prompt"]
    assert set(prompts) == {"w17 w18 w19"}


def test_a_data_set_without_prompts_is_refused(tmp_path: Path) -> None:
    Dataset.from_dict({"text": ["a"]}).to_json(tmp_path / "p.jsonl")
    with pytest.raises(UsageError, match="needs a column prompt or question; it has text"):
        build_prompts(spec(dataset=str(tmp_path / "p.jsonl")), build_tokenizer())


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What trl's trainers report to the hub, as far as nothing switches that off; runs of CI never do."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr(_telemetry, "_start_telemetry_thread", lambda: None)
    sent: list[object] = []
    monkeypatch.setattr(_telemetry, "_TELEMETRY_QUEUE", SimpleNamespace(put=sent.append))
    return sent


def test_a_trial_reports_no_trainer(reported: list[object]) -> None:
    run_training(spec(), BUILTIN_MODELS["tiny"].config, PlainSession(device=torch.device("cpu"), observer=Phases()))
    assert reported == []


def test_a_script_with_substitutes_reports_no_trainer(reported: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiler.substitutes.active.hub_problem", lambda: "")
    with substitutes():
        trainer_of(spec())
    assert reported == []
    trainer_of(spec())
    assert len(reported) == 1
