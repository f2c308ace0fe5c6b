"""A public report's own accounting of verl's memory, as a named rival. Its numbers, its units (GB of 10^9 bytes).

The report counts a bfloat16 model: an actor of weights, gradients as large, and optimizer state twice as large; a
reference as large as the weights; for PPO a critic as large as the actor. Activations and KV cache of its table are
constants that it states for each model, and 2 GB of overhead; sharding divides the models and nothing else. Where a
total that it prints does not follow from its parts, both are kept here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.domain.architecture import Architecture

GB = 1_000_000_000

_WEIGHT_BYTES = 2
_ACTOR_MULTIPLE = 4
"""Weights, gradients as large, optimizer state twice as large."""
_CHECKPOINTING_DIVISOR = 4
_OFFLOADING_RATIO = (3, 10)
REPORT_OVERHEAD_BYTES = 2 * GB


@dataclass(frozen=True, kw_only=True)
class ReportRow:
    """One model of the report's tables, with what it prints."""

    model: str
    parameters: int
    """Its round number: 7B is 7 x 10^9."""
    printed_total_gb: float
    """In all, on one GPU, with activations, KV cache and overhead."""
    gpus: int
    printed_sharded_gb: float
    """A GPU, with FSDP over `gpus`."""


REPORT_ROWS = (
    ReportRow(model="3B", parameters=3 * GB, printed_total_gb=50.7, gpus=4, printed_sharded_gb=24.2),
    ReportRow(model="7B", parameters=7 * GB, printed_total_gb=109.0, gpus=8, printed_sharded_gb=32.8),
    ReportRow(model="32B", parameters=32 * GB, printed_total_gb=414.8, gpus=16, printed_sharded_gb=71.2),
)
"""The counts of GPUs are those with which its own parts give round rows; the report's table names the models only."""

CLAIMED_GB: Mapping[str, int] = {"basic": 35, "optimised": 16, "extreme": 8}
"""What the report claims a GPU needs for 7B on 8 GPUs, by its three configurations."""


def report_models_bytes(parameters: int, *, has_reference: bool, has_critic: bool) -> int:
    """Actor, reference and critic by the report, in all.

    By hand, 7 x 10^9 parameters: GRPO (4 + 1) x 14 GB = 70 GB; PPO (4 + 1 + 4) x 14 GB = 126 GB; the saving is 44 %.
    """
    multiples = _ACTOR_MULTIPLE + has_reference + _ACTOR_MULTIPLE * has_critic
    return multiples * parameters * _WEIGHT_BYTES


def report_activation_bytes(
    architecture: Architecture, *, batch: int, tokens: int, checkpointing: bool, offloading: bool
) -> int:
    """Activations by the report: batch x length x hidden x layers x 2, a quarter with checkpointing, x 0.3 offloaded.

    By hand, 1 x 1,000 tokens, hidden 3,584, 28 layers: 200,704,000 B; checkpointed 50,176,000 B; offloaded too
    15,052,800 B.
    """
    size = batch * tokens * architecture.hidden_size * architecture.num_hidden_layers * _WEIGHT_BYTES
    size = size // _CHECKPOINTING_DIVISOR if checkpointing else size
    return size * _OFFLOADING_RATIO[0] // _OFFLOADING_RATIO[1] if offloading else size


def report_sharded_gb(row: ReportRow) -> float:
    """What the report's own parts give a GPU: the models divided by the GPUs, and everything else whole.

    By hand, 7B on 8: 70 / 8 + (109 - 70) = 47.75 GB, where 32.8 is printed.
    """
    models = report_models_bytes(row.parameters, has_reference=True, has_critic=False) / GB
    return models / row.gpus + (row.printed_total_gb - models)
