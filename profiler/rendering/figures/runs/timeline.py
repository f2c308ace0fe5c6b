"""Memory over the time of a monitored run: on the GPUs and on the host, and the peaks of its optimizer steps."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiler.analysis.monitored import Course, MonitoredLines
from profiler.domain.memory import Origin
from profiler.domain.units import as_gib, gib_text
from profiler.rendering.figures.theme import (
    LINE_COLOURS,
    NOT_FITTING,
    ORIGIN_COLOURS,
    SOFT_INK,
    in_theme,
    new_figure,
    title,
)

_FAR_RATIO = 3
"""The line of a card this many times larger than the highest point would leave no height for the curves."""

_UNITS = ((7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""Longest time from which a unit is used, its seconds, and its name."""


def gpu_timeline_figure(run: MonitoredLines, subtitle: str) -> Figure:
    """Draw the memory of the GPUs of a run, which has at least one curve, with its estimate and the card."""
    figure, axes = _courses(run.gpus, "Memory on the GPU, measured by the driver", subtitle)
    estimate = run.record.estimate
    if estimate is not None:
        size = estimate.device_bytes or estimate.peak_bytes
        colour = ORIGIN_COLOURS[Origin.ESTIMATED]
        axes.axhline(as_gib(size), color=colour, linestyle=":", linewidth=1.6, label="estimated")
    _card(axes, run)
    return _finished(figure)


def host_timeline_figure(run: MonitoredLines, subtitle: str) -> Figure:
    """Draw the memory of the host during a run, which has at least one curve."""
    figure, _ = _courses(run.host, "Memory on the host", subtitle)
    return _finished(figure)


def steps_figure(run: MonitoredLines, subtitle: str) -> Figure:
    """Draw the peak of each phase in each optimizer step of a run, which has at least two steps."""
    with in_theme():
        figure, axes = new_figure(8.2, 3.8)
        for number, line in enumerate(line for line in run.phases if any(line.steps_bytes)):
            points = [(step, size) for step, size in enumerate(line.steps_bytes, start=1) if size is not None]
            axes.plot(
                [step for step, _ in points],
                [as_gib(size) for _, size in points],
                color=LINE_COLOURS[number % len(LINE_COLOURS)],
                linewidth=1.4,
                label=line.phase.value,
            )
        _label(axes, "optimizer step", f"Peak allocated memory by step, {run.origin}", subtitle)
    return _finished(figure)


def _courses(courses: Sequence[Course], heading: str, subtitle: str) -> tuple[Figure, Axes]:
    with in_theme():
        figure, axes = new_figure(8.2, 3.8)
        longest = max(course.times_s[-1] for course in courses)
        seconds, unit = next((seconds, name) for least, seconds, name in _UNITS if longest >= least)
        for number, course in enumerate(courses):
            axes.plot(
                [time / seconds for time in course.times_s],
                [as_gib(size) for size in course.sizes_bytes],
                color=LINE_COLOURS[number % len(LINE_COLOURS)],
                linewidth=1.2,
                label=course.label,
            )
        _label(axes, unit, heading, subtitle)
        return figure, axes


def _label(axes: Axes, across: str, heading: str, subtitle: str) -> None:
    axes.set_ylim(bottom=0, top=float(axes.dataLim.y1) * 1.12 or 1.0)
    axes.set_xlabel(across, color=SOFT_INK)
    axes.set_ylabel("GiB (2^30 bytes)", color=SOFT_INK)
    axes.grid(axis="y")
    title(axes, heading, subtitle)


def _card(axes: Axes, run: MonitoredLines) -> None:
    sizes = {gpu.memory_bytes for gpu in run.record.gpus}
    highest = float(axes.dataLim.y1)
    axes.set_ylim(0, highest * 1.12 or 1.0)
    if len(sizes) != 1:
        return
    (memory_bytes,) = sizes
    if as_gib(memory_bytes) > _FAR_RATIO * highest:
        return
    axes.set_ylim(0, max(highest, as_gib(memory_bytes)) * 1.12)
    axes.axhline(as_gib(memory_bytes), color=NOT_FITTING, linewidth=1.2)
    axes.annotate(
        f"the card: {gib_text(memory_bytes)}",
        (0.01, as_gib(memory_bytes)),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        size=8.5,
        color=NOT_FITTING,
    )


def _finished(figure: Figure) -> Figure:
    with in_theme():
        figure.legend(loc="outside lower center", ncols=4, fontsize=8.5)
    return figure
