"""The accuracy of the closed form as a page of Markdown."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from maintenance.accuracy.errors import ErrorSummary, GroupErrors, WorstRow
from maintenance.accuracy.rows import MESSAGE, REFUSAL, STATUS
from maintenance.accuracy.sampling import MOST_DECODED_LAYERS
from maintenance.pages.kept_page import kept_page
from maintenance.samples.judgement import Judgement, Judgements
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import escaped, markdown_table
from profiler.rendering.sweep.words import percent, signed_percent

_NAMED_KEYS = (
    "recipe",
    "model",
    "tuning",
    "optim",
    "logprobs",
    "attn_implementation",
    "dtype",
    "bf16",
    "gradient_checkpointing",
    "lora_target_modules",
    "max_prompt_length",
    "max_completion_length",
    "per_device_train_batch_size",
    "steps_per_generation",
)


def accuracy_page(
    both: Judgements,
    *,
    simulated: pd.DataFrame,
    frame: pd.DataFrame,
    predictors: Sequence[ErrorSummary],
    groups: Mapping[str, Sequence[GroupErrors]],
    phases: Sequence[ErrorSummary],
    worst: Sequence[WorstRow],
    figure: str,
) -> str:
    """Return the tables and the figure.

    Args:
        both: The judgements of the sample.
        simulated: Rows of all trials that ended.
        frame: Rows of those whose memory is simulated.
        predictors: Errors of each predictor.
        groups: Errors of the closed form by values of keys.
        phases: Errors by phase.
        worst: The largest errors.
        figure: File name of the figure.
    """
    of_keys = [
        part for key, each in groups.items() for part in (f"## By {_NAMES.get(key, key)}", _group_table(key, each))
    ]
    return kept_page(
        "How far the estimate is from the simulation",
        f"{both.last.sampled:,} trials were sampled by seed {both.last.seed} from the "
        "[axes](../../../maintenance/accuracy/sampling.py), and written down before any was simulated. "
        f"{len(simulated):,} of them have run, in the order "
        f"of the sample, and the memory of {len(frame):,} is simulated. Errors are relative to the simulated peak of "
        "allocated memory on a card of unlimited memory (reserved where it says so). Simulated, not measured.",
        "Left out of the sample by a rule on the trial, before it was drawn: trials whose generated rollouts run more "
        f"than {MOST_DECODED_LAYERS:,} layers, one per token (each takes half a minute or more), and trials of a "
        "critic for which there is no closed form.",
        _judged_by(both.last, both.first),
        _table("predictor", predictors),
        f"![Predicted against simulated]({figure})",
        *_missing(simulated, frame),
        *of_keys,
        "## By phase",
        "Trials that ran to their end on their card.",
        _table("phase", phases),
        "## The worst",
        markdown_table(
            ("error", "largest difference", "trial"),
            [(signed_percent(row.error_ratio), row.reason or "not known", _named(row.trial)) for row in worst],
            align=(Align.RIGHT, Align.LEFT, Align.LEFT),
        ),
        command="python -m maintenance.accuracy simulate=false judge=true results_dir=results/reference",
    )


_NAMES = {"model_type": "family"}
"""Names of columns in headings, where they are not those of keys."""


def _judged_by(now: Judgement, first: Judgement) -> str:
    """Return by which code the estimates were computed, and what the first judgement showed."""
    if now == first:
        return f"Estimates are those of commit {now.commit}, which judged the sample for the first time."
    return (
        f"Estimates are those of commit {now.commit}. Commit {first.commit} judged the sample for the first time, on "
        f"{first.trials:,} trials: 95th percentile {percent(first.p95_ratio)}, reserved "
        f"{percent(first.reserved_p95_ratio)}. Formulas that changed since then know its trials."
    )


def _missing(simulated: pd.DataFrame, frame: pd.DataFrame) -> tuple[str, ...]:
    """Return how many trials have no simulated memory or no estimate, and why."""
    ends = simulated[simulated["required_allocated_bytes"].isna()]
    counts = Counter(
        [
            *((f"simulation: {status}", message) for status, message in zip(ends[STATUS], ends[MESSAGE], strict=True)),
            *(("no closed form", reason) for reason in frame[REFUSAL] if reason),
        ]
    )
    if not counts:
        return ()
    rows = [(what, str(count), escaped(why)) for (what, why), count in counts.most_common()]
    return (
        "## Not compared",
        markdown_table(("what is missing", "trials", "why"), rows, align=(Align.LEFT, Align.RIGHT, Align.LEFT)),
    )


def _group_table(key: str, groups: Sequence[GroupErrors]) -> str:
    rows = [
        (each.value or "torch's defaults", str(each.allocated.rows), *_cells(each.allocated), *_cells(each.reserved))
        for each in groups
    ]
    heads = [f"{memory}{cell}" for memory in ("", "reserved: ") for cell in ("median", "95th percentile", "worst")]
    return markdown_table((key, "trials", *heads), rows)


def _cells(summary: ErrorSummary) -> tuple[str, str, str]:
    return percent(summary.median_ratio), percent(summary.p95_ratio), signed_percent(summary.worst_ratio)


def _table(head: str, summaries: Sequence[ErrorSummary]) -> str:
    rows = [(each.of, str(each.rows), *_cells(each)) for each in summaries]
    return markdown_table((head, "trials", "median error", "95th percentile", "worst"), rows)


def _named(trial: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={trial[key]}" for key in _NAMED_KEYS if trial.get(key) is not None)
