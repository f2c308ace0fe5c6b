"""An explained estimate as JSON, for scripts. Sizes are integers of bytes."""

import json
from collections.abc import Sequence

from profiler.analytical.explanation.explained import ExplainedEstimate
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.memory import Origin


def estimate_json(explained: ExplainedEstimate, *, notes: Sequence[str] = ()) -> str:
    """Return one object: the trial, its peaks, the phases with their categories, the verdict for each card.

    Args:
        explained: The estimate.
        notes: What was assumed, and what is not counted.
    """
    found = explained.estimate
    content = {
        "origin": Origin.ESTIMATED.value,
        "trial": spec_to_mapping(explained.spec),
        "notes": list(notes),
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "peak_rule_bytes": found.peak_rule_bytes,
        "peak_phase": found.peak_phase.value,
        "phases": [
            {
                "phase": phase.phase.value,
                "moment": phase.instant.value,
                "peak_allocated_bytes": phase.peak_allocated_bytes,
                "categories": [
                    {"category": share.category.value, "bytes": share.size_bytes, "formula": share.short_form}
                    for share in phase.shares
                ],
            }
            for phase in explained.phases
        ],
        "gpus": [
            {
                "gpu": card.gpu.name,
                "verdict": card.fit.value,
                "reason": card.refusal_text,
                "memory_bytes": card.gpu.memory_bytes,
                "peak_allocated_bytes": card.peak_allocated_bytes,
                "peak_reserved_bytes": card.peak_reserved_bytes,
                "assumed_context_bytes": card.context_bytes,
                "least_bytes": card.least_bytes,
                "needed_bytes": card.needed_bytes,
                "left_bytes": card.left_bytes,
            }
            for card in explained.cards
        ],
    }
    return json.dumps(content, indent=2) + "\n"
