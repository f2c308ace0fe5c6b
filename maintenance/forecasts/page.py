"""The comparison as a page of Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from maintenance.emulated.page import small_percent
from maintenance.forecasts.compared import METRICS, Compared, End
from maintenance.pages.kept_page import kept_page
from profiler.domain.memory import MIB
from profiler.rendering.layouts.markdown import escaped, markdown_table


@dataclass(frozen=True, kw_only=True)
class _Side:
    """What the page says of the trainer's side."""

    where: str
    origin: str
    small: str
    """What a small card is."""
    command: str
    """Words of the command."""


_SIDES = {
    "emulated": _Side(
        where="in torch's CUDA build on an emulated driver",
        origin="Nothing here is measured.",
        small="the smallest card on which the first two thirds of the steps run, by the forecast",
        command="",
    ),
    "measured": _Side(
        where="on a real card",
        origin="Sizes are torch's own counters of each process; the runs shared their card, an NVIDIA H200, and an "
        "NVIDIA H100 for those with a limit.",
        small="the allocator is limited to the middle between what the first two thirds of the steps had allocated "
        "and what was reserved for them on the whole card",
        command="backend=cuda at_most=0 ",
    ),
}


def comparison_page(found: Sequence[Compared], causes: Mapping[str, str], *, versions: str, figure: str) -> str:
    """Return the page of the runs that have ended on both sides.

    Args:
        found: The runs.
        causes: Why they differ, by the name of the run.
        versions: Of the packages.
        figure: Its name, next to the page.
    """
    side = found[0].run.job.side
    own = _SIDES[side]
    steps = sum(len(each.rows) for each in found)
    equal = {metric: sum(each.equal[metric] for each in found) for metric in METRICS}
    problems = [
        f"{problem} {causes.get(each.run.name, 'The cause is open.')}" for each in found for problem in each.problems
    ]
    return kept_page(
        f"{side.capitalize()} and forecast runs",
        f"{steps:,} steps of {len(found)} runs of drawn lengths: each step ran {own.where}, and was written out by "
        f"`profiler.forecast` for the same draws. {versions}. {own.origin}",
        f"Equal to the byte: allocated memory in {equal['allocated']:,} steps, reserved memory in "
        f"{equal['reserved']:,}. The largest error of reserved memory in a step: "
        f"{small_percent(max((each.worst['reserved'] for each in found), default=0.0))}.",
        f"![Memory of every step]({figure})",
        markdown_table(
            ("run", "card", "steps", "peak", "allocated equal", "reserved equal", "worst reserved", "ends"),
            [_row(each) for each in found],
        ),
        f"`small`: {own.small}. `peak`: the largest reserved memory that was {side}. Two ends: {side}, then forecast.",
        "## Requirements that do not hold",
        "\n".join(f"- {escaped(problem)}" for problem in problems) or "None.",
        command=f"python -m maintenance.forecasts {own.command}results_dir=results/reference",
    )


def _row(each: Compared) -> tuple[str, ...]:
    run = each.run
    return (
        f"{run.job.name}, {run.alloc_conf or 'default'}",
        "small" if run.is_small else "whole",
        str(len(each.rows)),
        f"{each.rows.trained_reserved_bytes.max() / MIB:,.0f} MiB",
        str(each.equal["allocated"]),
        str(each.equal["reserved"]),
        small_percent(each.worst["reserved"]),
        f"stopped by {escaped(each.stopped)}" if each.stopped else _ends(each.trained, each.forecast),
    )


def _ends(trained: End | None, forecast: End | None) -> str:
    words = [str(end or "survives") for end in (trained, forecast)]
    return words[0] + ", both" if words[0] == words[1] else "; ".join(words)
