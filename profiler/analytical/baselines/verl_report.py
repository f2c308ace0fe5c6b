"""Memory of verl by the rule of a public report, as a baseline. Its numbers, and its units (GB of 10^9 bytes).

The report counts, for a bfloat16 model: an actor of weights, gradients of the same size and optimizer state of twice
the size; a reference of the size of the weights; for PPO a critic of the size of the actor. Activations and KV cache
are constants per model, and overhead is 2 GB. Sharding divides only the models. If a printed total does not follow from
its parts, both are given here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.domain.architectures.architecture import Architecture

GB = 1_000_000_000

_WEIGHT_BYTES = 2
_ACTOR_MULTIPLE = 4
"""Weights, gradients of the same size, optimizer state of twice the size."""
_CHECKPOINTING_DIVISOR = 4
_OFFLOADING_RATIO = (3, 10)
REPORT_OVERHEAD_BYTES = 2 * GB


@dataclass(frozen=True, kw_only=True)
class ReportRow:
    """One model of the report's tables, with the printed totals."""

    model: str
    parameters: int
    """The rounded number: 7B is 7 x 10^9."""
    printed_total_gb: float
    """The total on one GPU, with activations, KV cache and overhead."""
    gpus: int
    printed_sharded_gb: float
    """The total per GPU, with FSDP over `gpus`."""


REPORT_ROWS = (
    ReportRow(model="3B", parameters=3 * GB, printed_total_gb=50.7, gpus=4, printed_sharded_gb=24.2),
    ReportRow(model="7B", parameters=7 * GB, printed_total_gb=109.0, gpus=8, printed_sharded_gb=32.8),
    ReportRow(model="32B", parameters=32 * GB, printed_total_gb=414.8, gpus=16, printed_sharded_gb=71.2),
)
"""The report's table names only the models. We chose the numbers of GPUs for which its parts give round totals."""

CLAIMED_GB: Mapping[str, int] = {"basic": 35, "optimised": 16, "extreme": 8}
"""The claimed memory per GPU for 7B on 8 GPUs, by the report's three configurations."""


def report_models_bytes(parameters: int, *, has_reference: bool, has_critic: bool) -> int:
    """Return the bytes of actor, reference and critic by the report.

    By hand, 7 x 10^9 parameters: GRPO (4 + 1) x 14 GB = 70 GB; PPO (4 + 1 + 4) x 14 GB = 126 GB; the saving is 44 %.
    """
    multiples = _ACTOR_MULTIPLE + has_reference + _ACTOR_MULTIPLE * has_critic
    return multiples * parameters * _WEIGHT_BYTES


def report_activation_bytes(
    architecture: Architecture, *, batch: int, tokens: int, checkpointing: bool, offloading: bool
) -> int:
    """Return the bytes of activations by the report: batch x length x hidden x layers x 2.

    A quarter of that with checkpointing, and 0.3 of it with offloading. By hand, 1 x 1,000 tokens, hidden size 3,584,
    28 layers: 200,704,000 B; with checkpointing 50,176,000 B; with both 15,052,800 B.
    """
    size = batch * tokens * architecture.hidden_size * architecture.num_hidden_layers * _WEIGHT_BYTES
    size = size // _CHECKPOINTING_DIVISOR if checkpointing else size
    return size * _OFFLOADING_RATIO[0] // _OFFLOADING_RATIO[1] if offloading else size


def report_sharded_gb(row: ReportRow) -> float:
    """Return the GB per GPU by the report's own parts: the models divided by the GPUs, everything else undivided.

    By hand, 7B on 8: 70 / 8 + (109 - 70) = 47.75 GB, where 32.8 is printed.
    """
    models = report_models_bytes(row.parameters, has_reference=True, has_critic=False) / GB
    return models / row.gpus + (row.printed_total_gb - models)
