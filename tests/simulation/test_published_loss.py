"""The loss of Liger's benchmark on the simulated card, compared with measurements on a real one.

The published rows are the plain-torch side of that benchmark: GRPO's loss over an LM head of hidden size 4,096 and
vocabulary 128,256 in bfloat16, 1,024 tokens a row, with the hidden states of a reference; `max_memory_allocated` of
forward and backward, in MiB. The process holds four LM heads (policy and reference of both sides) and, from the second
round on, the gradients of the first.

Bytes per token and vocabulary entry at the peak, which is in the forward of the reference:

| published steps | bytes | `logprobs=full` over the same heads | bytes |
|---|---:|---|---:|
| policy: logits in bfloat16, held by their name | 2 | gone when the function returns | 0 |
| policy: log-softmax in float32, kept for backward | 4 | the same, row by row | 4 |
| reference: logits in bfloat16 | 2 | the same | 2 |
| reference: the same in float32 | 4 | the same (accelerate makes it) | 4 |
| reference: log-softmax in float32 | 4 | one row at a time, after the bfloat16 is gone | 0 |
| hidden states, reference's, and gradient: 6 x 4,096 / 128,256 | 0.19 | the same | 0.19 |
| sum | 16.19 | sum | 10.19 |

So the published slope comes out to its last digit, and so do the peaks. `logprobs=full` is 6 bytes below it: it is the
loss of trl 0.14.0, which took the log-softmax row by row because of just this. (It also scores one position more than
there are tokens: another 0.06 % of the 6 bytes of the reference's logits.)
"""

import csv
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiler.allocator.traces.replay import replay
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import MIB, Phase
from profiler.simulation.session import Simulation
from profiler.training.recipes.grpo.trainer import full_logprobs

TOKENS, HIDDEN, VOCABULARY = 1024, 4096, 128_256
ROWS = (2, 4, 8)
BETA, EPSILON = 0.1, 0.2

Scores = Callable[[torch.nn.Linear, torch.Tensor, torch.Tensor], tuple[torch.Tensor, Any]]
"""From head, hidden states and ids to log-probabilities, and what the caller holds on to."""


def all_at_once(head: torch.nn.Linear, hidden: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """The published steps."""
    logits = head(hidden)
    every = logits.float().log_softmax(dim=-1)
    return every.gather(-1, ids.unsqueeze(-1)).squeeze(-1), (logits, every)


def as_trl_did(head: torch.nn.Linear, hidden: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """`logprobs=full`; its model answers with logits in float32, as accelerate has it."""

    def model(*, input_ids: torch.Tensor, logits_to_keep: int) -> Any:
        return SimpleNamespace(logits=head(hidden[:, -logits_to_keep:]).float())

    return full_logprobs(model, ids, TOKENS), None


def loss_of(scores: Scores, heads: Any, hidden: Any, reference_hidden: Any, ids: Any, advantages: Any) -> torch.Tensor:
    mask = torch.ones(ids.shape)
    logprobs, held = scores(heads[0], hidden, ids)
    with torch.no_grad():
        reference, held_too = scores(heads[1], reference_hidden, ids)
    ratio = torch.exp(logprobs - logprobs.detach())
    gain = torch.min(ratio * advantages, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantages)
    difference = reference - logprobs
    divergence = torch.exp(difference) - difference - 1.0
    del held, held_too
    return ((BETA * divergence - gain) * mask).sum() / mask.sum()


@cache
def peak_bytes(scores: Scores, rows: int, positions: int = TOKENS) -> int:
    """Peak of the second round, in which gradients are there already."""
    simulation = Simulation(KNOWN_GPUS["a100-80gb"])
    with simulation.running(), torch.device("meta"):
        simulation.enter(Phase.LOAD)
        heads = [torch.nn.Linear(HIDDEN, VOCABULARY, bias=False, dtype=torch.bfloat16) for _ in range(4)]
        hidden = torch.randn(rows, positions, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
        reference_hidden = torch.randn(rows, positions, HIDDEN, dtype=torch.bfloat16)
        ids = torch.randint(0, VOCABULARY, (rows, TOKENS))
        advantages = torch.randn(rows, 1, dtype=torch.bfloat16)
        simulation.enter(Phase.ROLLOUT)
        for _ in range(2):
            simulation.enter(Phase.FORWARD)
            loss = loss_of(scores, heads, hidden, reference_hidden, ids, advantages)
            simulation.enter(Phase.BACKWARD)
            loss.backward()
    return replay(simulation.recorder.finished()).peak_allocated_bytes


def published_mib() -> dict[int, float]:
    with (files("profiler") / "published" / "measurements.csv").open(encoding="utf-8") as file:
        rows = {row["id"]: row["published"] for row in csv.DictReader(file)}
    return {batch: float(rows[f"liger-grpo-torch-b{batch}"]) for batch in ROWS}


def slope(peaks: dict[int, float]) -> float:
    """Bytes per token and vocabulary entry, from the smallest batch to the largest."""
    return (peaks[ROWS[-1]] - peaks[ROWS[0]]) / ((ROWS[-1] - ROWS[0]) * TOKENS * VOCABULARY)


def test_the_published_peaks_are_reproduced() -> None:
    for rows, published in published_mib().items():
        # The figures are printed in whole MiB.
        assert peak_bytes(all_at_once, rows) / MIB == pytest.approx(published, abs=1)


def test_the_published_slope_is_reproduced() -> None:
    own = slope({rows: float(peak_bytes(all_at_once, rows)) for rows in ROWS})
    logits, log_softmax, reference = 2, 4, 2 + 4 + 4
    hidden = 3 * 2 * HIDDEN
    ids, mask, scored = 8, 4, 4
    assert own == pytest.approx(
        logits + log_softmax + reference + (hidden + ids + mask + scored) / VOCABULARY, abs=1e-5
    )
    assert own == pytest.approx(slope({rows: mib * MIB for rows, mib in published_mib().items()}), abs=0.005)
    assert round(own, 2) == 16.19


def test_full_logprobs_are_six_bytes_below_the_published_slope() -> None:
    own = slope({rows: float(peak_bytes(as_trl_did, rows, TOKENS + 1)) for rows in ROWS})
    positions = (TOKENS + 1) / TOKENS
    log_softmax, reference = 4, (2 + 4) * positions
    hidden = 3 * 2 * HIDDEN * positions
    ids, scored = 8, 4
    assert own == pytest.approx(log_softmax + reference + (hidden + ids + scored) / VOCABULARY, abs=1e-3)
    assert 16.19 - own == pytest.approx(6, abs=0.01)
