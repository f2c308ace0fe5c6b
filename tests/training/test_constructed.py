"""What trl's trainer gets from the harness: a critic, and micro-batches by tokens. Real training on the CPU."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_recipes import GRPO

from profiler.config.claims.settings import spec_of
from profiler.domain.claims import Pair
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Dtype, completion_lengths
from profiler.storage.foreign.published import read_published_claims
from profiler.training.models.model import build_config
from profiler.training.placement import RealDevice
from profiler.training.recipes.grpo.critic import Critic, value_loss
from profiler.training.recipes.grpo.trainer import rows_by_tokens, split_by_tokens
from profiler.training.run import PlainSession, run_training

CPU = torch.device("cpu")
PLAIN = replace(GRPO, gradient_checkpointing=False)


class Phases:
    """An observer that keeps the phases."""

    def __init__(self) -> None:
        self.seen: list[Phase] = []

    def enter(self, phase: Phase) -> None:
        self.seen.append(phase)

    def model_built(self, *, parameters: int, trainable: int) -> None:
        pass


def trained(**keys: Any) -> tuple[Any, list[Phase]]:
    """Train `tiny` on the CPU in float32, and return its trainer and phases."""
    observer = Phases()
    spec = replace(GRPO, beta=0.0, dtype=Dtype.FLOAT32, bf16=False, optim=Optimizer.ADAMW_TORCH, **keys)
    session = PlainSession(device=CPU, observer=observer)
    return run_training(spec, BUILTIN_MODELS["tiny"].config, session).trainer, observer.seen


def gradients_of(trainer: Any) -> torch.Tensor:
    """Return the first moments of AdamW after one step, which are a tenth of the gradients."""
    states = trainer.optimizer.state
    return torch.cat([states[parameter]["exp_avg"].flatten() for parameter in trainer.model.parameters()])


@pytest.fixture(scope="module")
def by_rows() -> Any:
    return trained()[0]


def test_parts_by_tokens_have_the_gradient_of_the_whole_batch(by_rows: Any) -> None:
    by_tokens, phases = trained(use_dynamic_bsz=True, ppo_max_token_len_per_gpu=40)
    # Four rows each of 14, 13, 12 and 11 tokens: 2 x 14, 2 x 14, 3 x 13, 3 x 13, 3 x 12 and 3 x 11 of at most 40.
    assert by_tokens.micro_batches_run == phases.count(Phase.BACKWARD) == 6
    assert by_tokens.state.global_step == by_rows.state.global_step == 1
    one, other = (gradients_of(trainer) for trainer in (by_rows, by_tokens))
    assert float(one.norm()) > 0
    torch.testing.assert_close(other, one, rtol=0, atol=1e-5 * float(one.norm()))


def test_a_critic_is_updated_once_before_the_policy() -> None:
    trainer, phases = trained(critic=True)
    assert phases.index(Phase.REWARD) < phases.index(Phase.SCORE) < phases.index(Phase.CRITIC)
    assert phases.index(Phase.CRITIC) < phases.index(Phase.FORWARD)
    assert (phases.count(Phase.CRITIC), phases.count(Phase.OPTIMIZER)) == (1, 1)
    critic = trainer.critic
    assert critic.model.score.weight.shape == (1, BUILTIN_MODELS["tiny"].config["hidden_size"])
    assert type(critic.optimizer) is torch.optim.AdamW
    assert all(parameter.grad is None for parameter in critic.model.parameters())
    # The bias of a new head is 0, so that the step is all that it has.
    assert critic.model.score.bias.item() != 0


def test_values_replace_the_advantages_of_a_generation() -> None:
    critic = Critic(PLAIN, config(), RealDevice(device=CPU), None)
    batch = {
        "prompt_ids": torch.ones(4, 3, dtype=torch.long),
        "prompt_mask": torch.ones(4, 3, dtype=torch.long),
        "completion_ids": torch.ones(4, 5, dtype=torch.long),
        "completion_mask": torch.tensor([[1] * 5, [1] * 4 + [0], [1] * 5, [1, 0, 0, 0, 0]]),
        "advantages": torch.tensor([1.0, -1.0, 0.5, 0.0]),
    }
    critic.score(batch, lambda: torch.autocast("cpu", enabled=False))
    mask = batch["completion_mask"]
    assert batch["values"].shape == batch["advantages"].shape == (4, 5)
    assert bool((batch["values"] * (1 - mask) == 0).all())
    returns = torch.tensor([[1.0], [-1.0], [0.5], [0.0]]) * mask
    torch.testing.assert_close(batch["advantages"] + batch["values"], returns)
    # The value of the first token of a completion is read at the last one of its prompt.
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)[:1]
    with torch.no_grad():
        logits = critic.model(input_ids=ids).logits
    assert batch["values"][0, 0].item() == pytest.approx(logits[0, 2, 0].item(), abs=1e-6)


def test_the_loss_of_a_value_is_clipped() -> None:
    batch = {
        "values": torch.zeros(1, 3),
        "advantages": torch.tensor([[3.0, 3.0, 3.0]]),
        "completion_mask": torch.tensor([[1, 1, 0]]),
    }
    # (3 - 0.5)^2 / 2 for a value of 1, and 9 / 2 for one of -0.5, which may move as far.
    assert value_loss(torch.tensor([[1.0, 0.0, 7.0]]), batch).item() == pytest.approx(3.125 + 4.5)


def test_a_family_without_a_value_per_token_is_unsupported() -> None:
    gemma = build_config(BUILTIN_MODELS["gemma-3-1b"].config, name="gemma-3-1b")
    with pytest.raises(UnsupportedTrialError, match="token classification"):
        Critic(PLAIN, gemma, RealDevice(device=torch.device("meta")), None)


def test_rows_share_a_part_while_its_padded_tokens_fit() -> None:
    lengths = [(2, 8), (2, 5), (2, 7), (2, 6)]
    assert rows_by_tokens(lengths, 20) == [[0, 2], [3, 1]]
    assert rows_by_tokens(lengths, 19) == [[0], [2, 3], [1]]
    assert rows_by_tokens(lengths, 40) == [[0, 2, 3, 1]]
    # The longest prompt and the longest completion need not be in one row.
    assert rows_by_tokens([(1, 9), (8, 2)], 20) == [[0], [1]]
    # A row that is longer than the limit is alone.
    assert rows_by_tokens([(2, 9), (2, 1)], 5) == [[0], [1]]


def test_the_share_of_padding_is_that_of_the_claim() -> None:
    claims = {claim.id: claim for claim in read_published_claims()}
    setting = claims["report-dynamic-batch-trial"].settings[0]
    assert isinstance(setting, Pair)
    spec = spec_of(setting.after)
    longest, limit = spec.max_completion_length, spec.ppo_max_token_len_per_gpu
    assert limit is not None
    completions = completion_lengths(
        lengths=spec.lengths, rows=spec.generation_batch_size, max_completion_length=longest
    )
    lengths = [(spec.max_prompt_length, tokens) for tokens in completions]
    scored, rows = sum(map(sum, lengths)), len(lengths)
    parts = rows_by_tokens(lengths, limit)
    by_tokens = sum(len(part) * max(sum(lengths[row]) for row in part) for part in parts)
    fixed, split = (f"{100 * scored / size:.0f} %" for size in (rows * (spec.max_prompt_length + longest), by_tokens))
    text = claims["utilisation-dynamic"].because
    assert f"{fixed} are no padding with fixed batches and {split} with batches by tokens" in text


def test_a_part_is_cut_to_its_longest_prompt_and_completion() -> None:
    prompts, completions = torch.arange(12).reshape(3, 4), torch.arange(15).reshape(3, 5)
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]]),
        "completion_ids": completions,
        "completion_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]),
        "advantages": torch.tensor([1.0, 2.0, 3.0]),
        "num_items_in_batch": torch.tensor(10),
        "nothing": None,
    }
    first, second = split_by_tokens(inputs, 12)
    assert first["prompt_ids"].tolist() == prompts[:1].tolist()
    assert second["prompt_ids"].tolist() == prompts[1:, 1:].tolist()
    assert second["completion_ids"].tolist() == completions[1:, :3].tolist()
    assert second["advantages"].tolist() == [2.0, 3.0]
    assert second["num_items_in_batch"] is inputs["num_items_in_batch"]
    assert second["nothing"] is None


def config() -> Any:
    return build_config(BUILTIN_MODELS["tiny"].config, name="tiny")
