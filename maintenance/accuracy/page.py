"""The accuracy of the closed form as a page of Markdown."""

from collections.abc import Mapping, Sequence

from maintenance.accuracy.errors import ErrorSummary, WorstRow
from maintenance.pages.kept_page import kept_page
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import markdown_table
from profiler.rendering.sweep.words import percent, signed_percent

_NAMED_KEYS = (
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
    *,
    sampled: int,
    predictors: Sequence[ErrorSummary],
    phases: Sequence[ErrorSummary],
    worst: Sequence[WorstRow],
    figure: str,
    command: str,
) -> str:
    """Return the tables and the figure; the `sampled` trials were stored before any was simulated."""
    rows = max((summary.rows for summary in predictors), default=0)
    return kept_page(
        "How far the estimate is from the simulation",
        f"{rows} of {sampled} sampled trials are simulated. Errors are relative to the simulated peak of allocated "
        "memory on a card of unlimited memory (reserved where it says so). Simulated, not measured.",
        _table("predictor", predictors),
        f"![Predicted against simulated]({figure})",
        "## By phase",
        "Trials that ran to their end on their card.",
        _table("phase", phases),
        "## The worst",
        markdown_table(
            ("error", "largest difference", "trial"),
            [(signed_percent(row.error_ratio), row.reason or "not known", _named(row.trial)) for row in worst],
            align=(Align.RIGHT, Align.LEFT, Align.LEFT),
        ),
        command=command,
    )


def _table(head: str, summaries: Sequence[ErrorSummary]) -> str:
    rows = [
        (
            each.of,
            str(each.rows),
            percent(each.median_ratio),
            percent(each.p95_ratio),
            signed_percent(each.worst_ratio),
        )
        for each in summaries
    ]
    return markdown_table((head, "trials", "median error", "95th percentile", "worst"), rows)


def _named(trial: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={trial[key]}" for key in _NAMED_KEYS if trial.get(key) is not None)
