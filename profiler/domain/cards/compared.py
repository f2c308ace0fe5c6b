"""Real cards on which trials were measured, and how far each method was from them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Within:
    """95th percentile of the absolute errors of one method; 0.01 is 1 %."""

    allocated_p95_ratio: float
    reserved_p95_ratio: float


@dataclass(frozen=True, kw_only=True)
class ComparedCard:
    """One card, and the trials that ended well on it: trl's GRPO on one GPU, without vLLM."""

    card: str
    trials: int
    simulated: Within
    """By the code before the card was met."""
    estimated: Within


COMPARED_CARDS = (
    ComparedCard(
        card="NVIDIA H200",
        trials=59,
        simulated=Within(allocated_p95_ratio=0.00057, reserved_p95_ratio=0.02132),
        estimated=Within(allocated_p95_ratio=0.01158, reserved_p95_ratio=0.11709),
    ),
)
"""Kept rows: `results/reference/h200/rows.csv`."""
