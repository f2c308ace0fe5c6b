"""`python -m maintenance.pages.sharding_page`: what each GPU of the kept trials of `+grid=fsdp` holds at its peak.

Peaks are emulated; their parts are those of the closed form. Writes `sharding.md` and its figure next to the tables.

Exit codes: docs/exit_codes.md.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from maintenance.pages.kept_page import kept_page
from maintenance.samples.kept_estimates import specs_of
from maintenance.samples.sampling import architecture_of
from maintenance.words import asks_for_help
from profiler.analytical.estimate import phase_instants
from profiler.command_line import as_command, print_line
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_OK
from profiler.domain.memory import GIB, Category
from profiler.domain.trials.trial import DistributedType, TrialSpec
from profiler.rendering.figures.theme import CATEGORY_COLOURS, INK, SOFT_INK, as_png, in_theme
from profiler.rendering.layouts.markdown import markdown_table
from profiler.storage.files.atomic import write_atomically

_CARD = KNOWN_GPUS["h100-80gb"]
_PANELS_IN_A_ROW = 2
_PANEL_IN = (5.2, 3.1)

_PARTS = (
    ("weights, gradients, states", "kept_bytes", CATEGORY_COLOURS[Category.OPTIMIZER_STATE]),
    ("gathered and communicated", "moved_bytes", CATEGORY_COLOURS[Category.COMMUNICATION]),
    ("the rest", "rest_bytes", CATEGORY_COLOURS[Category.ACTIVATIONS]),
)


@dataclass(frozen=True, kw_only=True)
class Held:
    """What one GPU of a trial holds at its peak: emulated as a whole, estimated in parts."""

    model: str
    gpus: int
    way: str
    """How the GPUs train together: ``"ZeRO-3"``."""
    status: str
    emulated_bytes: int | None
    """On a card without limit if it ran out of memory; None if the trial has no peak."""
    kept_bytes: int
    moved_bytes: int
    """Gathered and communicated."""
    moved: str
    """What that is, in words."""
    rest_bytes: int

    @property
    def estimated_bytes(self) -> int:
        """The sum of the parts."""
        return self.kept_bytes + self.moved_bytes + self.rest_bytes


def sharding_figure(found: Sequence[Held]) -> Figure:
    """Draw stacked bars of the parts, with a point for the emulated peak."""
    models = list(dict.fromkeys(each.model for each in found))
    rows = -(-len(models) // _PANELS_IN_A_ROW)
    with in_theme():
        figure = Figure(figsize=(_PANEL_IN[0] * _PANELS_IN_A_ROW, _PANEL_IN[1] * rows + 0.8))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
        panels = figure.subplots(rows, _PANELS_IN_A_ROW, squeeze=False).flat
        for axes, model in zip(panels, models, strict=False):
            _draw(axes, [each for each in found if each.model == model])
            axes.set_title(model)
        for axes in list(panels)[len(models) :]:
            axes.set_axis_off()
        handles, labels = next(iter(figure.axes)).get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        figure.suptitle(
            "What one GPU holds at its peak, GiB. Bars are estimated, points are emulated.", x=0.01, ha="left"
        )
        return figure


def _draw(axes: Axes, trials: Sequence[Held]) -> None:
    places = list(range(len(trials)))
    below = [0.0] * len(trials)
    for name, field, colour in _PARTS:
        sizes = [getattr(each, field) / GIB for each in trials]
        axes.bar(places, sizes, bottom=below, color=colour, width=0.75, label=name)
        below = [low + size for low, size in zip(below, sizes, strict=True)]
    emulated = [float("nan") if each.emulated_bytes is None else each.emulated_bytes / GIB for each in trials]
    axes.plot(places, emulated, "o", color=INK, markersize=4, label="emulated")
    capacity = _CARD.memory_bytes / GIB
    highest = max([*below, *(size for size in emulated if not isnan(size))])
    if capacity < 2 * highest:
        axes.axhline(capacity, color=SOFT_INK, linestyle=(0, (4, 2)), linewidth=1.2)
        axes.annotate(
            f"the card: {capacity:.1f}",
            (len(trials) - 0.5, capacity),
            ha="right",
            va="bottom",
            size=8.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    axes.set_ylim(0, 1.12 * max(highest, capacity if capacity < 2 * highest else 0))
    axes.set_xticks(places, [f"{each.gpus} x {each.way}" if each.gpus > 1 else each.way for each in trials])
    axes.tick_params(axis="x", labelrotation=60, labelsize=8)
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("right")
        label.set_rotation_mode("anchor")
    axes.grid(axis="y")


GRID, PAGE, FIGURE = "fsdp", "sharding.md", "sharding"
FOLDER = Path("results") / "reference" / GRID

_KEPT = (Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER_STATE)

_NAMES: Mapping[DistributedType, str] = {
    DistributedType.NO: "one GPU",
    DistributedType.MULTI_GPU: "DDP",
    DistributedType.FSDP: "FSDP 2",
    DistributedType.DEEPSPEED: "ZeRO-{stage}",
}

_COLUMNS = (
    "model",
    "GPUs",
    "how",
    "emulated",
    "estimated",
    "weights, gradients, states",
    "gathered and communicated",
    "namely",
    "the rest",
)


_USAGE = f"""\
python -m maintenance.pages.sharding_page

Writes {FOLDER / PAGE} and its figure
from the tables in that folder.

Examples:
  python -m maintenance.pages.sharding_page
"""


@as_command("sharding_page")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if asks_for_help(words, _USAGE):
        return EXIT_OK
    found = held_by_trials(pd.read_parquet(FOLDER / "runs.parquet"))
    contents = {PAGE: page(found).encode(), f"{FIGURE}.png": as_png(sharding_figure(found))}
    for name, content in contents.items():
        write_atomically(FOLDER / name, content)
        print_line(f"{FOLDER / name}")
    return EXIT_OK


def held_by_trials(runs: pd.DataFrame) -> tuple[Held, ...]:
    """Return what a GPU of each trial of the grid holds; `runs` may lack trials."""
    rows = {_key(row): row for row in _rows_of(runs)}
    return tuple(_held(spec, rows.get(_key(_plain(spec)))) for spec in specs_of(GRID))


def page(found: Sequence[Held]) -> str:
    """Return the page of Markdown."""
    lacking = [each for each in found if each.emulated_bytes is None]
    left_out = ", ".join(f"{each.model} on {each.gpus} by {each.way} ({each.status})" for each in lacking)
    return kept_page(
        "What is sharded, gathered and communicated",
        "Peak of allocated memory on one GPU, in GiB (2^30 bytes), of full fine-tuning with checkpointing, AdamW and "
        "the lengths of `sweeps/config.yaml`. `emulated` is read from torch's counters on an emulated H100 of 80 GB; a "
        "trial that ran out of memory there has the peak that it needs on a card without limit. The other columns are "
        "the closed form's parts of `estimated`: what this GPU keeps, which is sharded under FSDP 2 and ZeRO; gathered "
        "weights and buckets of gradients; and activations, logits, caches and workspaces. Nothing here is measured, "
        "and NCCL's own buffers are left out.",
        f"![Stacked bars of what each GPU holds at its peak, by model and by way to train]({FIGURE}.png)",
        markdown_table(_COLUMNS, [_row(each) for each in found]),
        f"Without an emulated peak: {left_out}." if lacking else "",
        command="python -m maintenance.pages.sharding_page",
    )


def _rows_of(runs: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in runs.to_dict("records")]


def _plain(spec: TrialSpec) -> dict[str, Any]:
    return {key: getattr(spec, key) for key in ("model", "num_processes", "distributed_type", "zero_stage")}


def _key(row: Mapping[str, Any]) -> tuple[object, ...]:
    stage = row["zero_stage"]
    return (
        row["model"],
        row["num_processes"],
        str(row["distributed_type"]),
        None if pd.isna(stage) else float(str(stage)),
    )


def _held(spec: TrialSpec, row: Mapping[str, Any] | None) -> Held:
    architecture = architecture_of(spec.model)
    peak = max(phase_instants(spec, architecture).values(), key=lambda instant: int(instant.total_bytes))
    sizes = {category: int(size) for category, size in peak.sizes.items() if int(size)}
    words = peak.words()
    return Held(
        model=spec.model,
        gpus=spec.num_processes,
        way=_NAMES[spec.distributed_type].format(stage=spec.zero_stage),
        status="not run" if row is None else str(row["status"]),
        emulated_bytes=None if row is None else _emulated_bytes(row),
        kept_bytes=sum(sizes.get(category, 0) for category in _KEPT),
        moved_bytes=sizes.get(Category.COMMUNICATION, 0),
        moved=words[Category.COMMUNICATION] if Category.COMMUNICATION in sizes else "",
        rest_bytes=sum(size for category, size in sizes.items() if category not in (*_KEPT, Category.COMMUNICATION)),
    )


def _emulated_bytes(row: Mapping[str, Any]) -> int | None:
    found = row["peak_allocated_bytes" if row["status"] == "ok" else "required_allocated_bytes"]
    return None if pd.isna(found) else int(found)


def _row(held: Held) -> tuple[str, ...]:
    emulated = held.status if held.emulated_bytes is None else _gib(held.emulated_bytes)
    if held.status == "oom" and held.emulated_bytes is not None:
        emulated = f"{emulated} (out of memory)"
    return (
        held.model,
        str(held.gpus),
        held.way,
        emulated,
        _gib(held.estimated_bytes),
        _gib(held.kept_bytes),
        _gib(held.moved_bytes),
        held.moved,
        _gib(held.rest_bytes),
    )


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"


if __name__ == "__main__":
    sys.exit(main())
