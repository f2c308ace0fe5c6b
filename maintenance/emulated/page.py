"""The comparison as a page of Markdown."""

from collections.abc import Mapping, Sequence

from maintenance.emulated.differences import Difference, OppositeEnd, of_whole_trials
from maintenance.pages.kept_page import kept_page
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import escaped, markdown_table

OPEN = "open"
"""In the place of a cause that is not known."""


def comparison_page(
    *,
    sampled: int,
    ends: Mapping[tuple[str, str], int],
    differences: Sequence[Difference],
    opposite: Sequence[OppositeEnd],
    versions: str,
) -> str:
    """Return the page.

    Args:
        sampled: Number of trials that were written down.
        ends: Trials by how they end, emulated and simulated.
        differences: Of whole trials and by phase.
        opposite: Trials that do not end alike.
        versions: Of the packages on both sides.
    """
    whole = of_whole_trials(differences)
    return kept_page(
        "Emulated and simulated trials",
        f"{sum(ends.values())} of {sampled} sampled trials have run on both sides: in torch's CUDA build on an "
        "emulated driver, and on torch's meta device with the model of the allocator. "
        f"{versions}. Nothing here is measured.",
        markdown_table(
            ("emulated", "simulated", "trials"),
            [(emulated, simulated, str(count)) for (emulated, simulated), count in ends.items()],
            align=(Align.LEFT, Align.LEFT, Align.RIGHT),
        ),
        "## Peaks of whole trials",
        "Errors of the simulation, relative to the emulated bytes. `all`: trials that end well on both sides; "
        "`required`: trials that run out of memory on both sides, on a card of unlimited memory.",
        _table(whole),
        " ".join(each.verdict for each in whole),
        "## By phase",
        _table([each for each in differences if each not in whole]),
        "## Trials that end differently",
        _opposite(opposite),
        command="python -m maintenance.emulated results_dir=results/reference",
    )


def small_percent(ratio: float) -> str:
    """Return a small ratio as text: ``"0.0012 %"``."""
    return f"{ratio * 100:.4f} %" if ratio else "0 %"


def _table(differences: Sequence[Difference]) -> str:
    header = ("phase", "metric", "trials", "equal to the byte", "median error", "95th percentile", "worst")
    return markdown_table(
        header,
        [
            (
                each.phase,
                each.metric,
                str(each.errors.rows),
                str(each.equal),
                small_percent(each.errors.median_ratio),
                small_percent(each.errors.p95_ratio),
                small_percent(each.errors.worst_ratio),
            )
            for each in differences
        ],
        align=(Align.LEFT, Align.LEFT, *(Align.RIGHT,) * 5),
    )


def _opposite(opposite: Sequence[OppositeEnd]) -> str:
    if not opposite:
        return "None."
    return markdown_table(
        ("trial", "emulated", "simulated", "cause"),
        [(str(each.trial), each.emulated, each.simulated, escaped(each.cause or OPEN)) for each in opposite],
        align=Align.LEFT,
    )
