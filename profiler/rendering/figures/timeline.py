"""Memory over the time of a monitored run, the phases of a script, the stages of a command, the steps of a forecast."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiler.analysis.card_courses import CardCourse, Holder
from profiler.analysis.forecast.outlook import Band
from profiler.analysis.runs import Course, MonitoredLines, ShownRun
from profiler.domain.memory import Origin, as_gib, gib_text
from profiler.domain.runs.other_runs import JobRecord
from profiler.rendering.answers.forecast import Forecast, card_line, figure_subtitle
from profiler.rendering.figures.theme import (
    INK,
    LINE_COLOURS,
    NOT_FITTING,
    ORIGIN_COLOURS,
    SOFT_INK,
    in_theme,
    legend_below,
    new_figure,
    title,
)
from profiler.rendering.runs.page import card_names, holder_name, short_gib, verdict_text

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
        legend_below(figure, ncols=4)
    return figure


"""The line of a card this many times larger than the longest bar would leave no width for the bars."""


def script_phases_figure(run: ShownRun, subtitle: str) -> Figure:
    """Draw the peaks of each phase of a run, which has at least one; `subtitle` names the run."""
    with in_theme():
        figure, axes = new_figure(8.2, 1.3 + 0.45 * len(run.phases))
        names = [line.phase.value for line in run.phases]
        allocated = [as_gib(line.allocated_bytes or 0) for line in run.phases]
        reserved = [as_gib(line.reserved_bytes or 0) for line in run.phases]
        places = range(len(names))
        colour = ORIGIN_COLOURS[run.origin]
        axes.barh(places, reserved, height=0.7, facecolor="none", edgecolor=colour, label="reserved by torch")
        axes.barh(places, allocated, height=0.7, color=colour, alpha=0.75, label="allocated in tensors")
        for place, line in enumerate(run.phases):
            size = max(allocated[place], reserved[place])
            axes.annotate(
                short_gib(run, line.allocated_bytes),
                (size, place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                size=8.5,
            )
        longest = max((*allocated, *reserved))
        memory = run.outcome.card.memory_bytes
        if memory is not None and as_gib(memory) <= _FAR_RATIO * longest:
            axes.axvline(as_gib(memory), color=NOT_FITTING, linewidth=1.2)
            axes.annotate(
                f"the card: {gib_text(memory)}",
                (as_gib(memory), 1),
                xycoords=("data", "axes fraction"),
                xytext=(-4, -10),
                textcoords="offset points",
                ha="right",
                color=NOT_FITTING,
                size=8.5,
            )
        axes.set_yticks(list(places), labels=names)
        axes.invert_yaxis()
        axes.set_xlabel("GiB (2^30 bytes)", color=SOFT_INK)
        axes.grid(axis="x")
        ending = f", {verdict_text(run)}" if run.out_of_memory is not None else ""
        title(axes, f"Peak memory by phase, {run.origin}{ending}", subtitle)
        legend_below(figure, ncols=2)
        return figure


_MOST_POINTS = 500
"""Points of a band; of a longer run each is the extremes of its part."""


def forecast_figure(forecast: Forecast) -> Figure:
    """Draw reserved and allocated memory over the steps of a run, as bands over the seeds, with deaths and the card."""
    bands = _joined(forecast.outlook.bands())
    steps = [band.step for band in bands]
    colours = (("reserved by torch", LINE_COLOURS[0]), ("allocated in tensors", LINE_COLOURS[1]))
    with in_theme():
        figure, axes = new_figure(8.2, 4.2)
        for (name, colour), of in zip(colours, ("reserved", "allocated"), strict=True):
            least, middle, most = (
                [as_gib(sizes[place]) for sizes in (getattr(band, of) for band in bands)] for place in range(3)
            )
            axes.fill_between(steps, least, most, color=colour, alpha=0.25, linewidth=0)
            axes.plot(steps, middle, color=colour, linewidth=1.3, label=f"{name}: median and band of the seeds")
        _deaths(axes, forecast)
        deaths, every = forecast.outlook.deaths, forecast.outlook.steps
        all_die = len(deaths) == len(forecast.outlook.runs)
        last = max(each.step for each in deaths) if all_die else every
        across = (
            f"optimizer step, of {every:,} ({last:,} with the seed that comes furthest)"
            if all_die
            else "optimizer step"
        )
        _label(axes, across, "Memory of every step of the run", figure_subtitle(forecast))
        axes.set_xlim(0, min(every, last * 1.2 + 1))
        _line_of_card(axes, *card_line(forecast))
    return _finished(figure)


def _deaths(axes: Axes, forecast: Forecast) -> None:
    deaths = forecast.outlook.deaths
    if deaths:
        axes.plot(
            [each.step for each in deaths],
            [as_gib(each.reserved_bytes) for each in deaths],
            color=NOT_FITTING,
            marker="X",
            markersize=8,
            linestyle="none",
            zorder=6,
            clip_on=False,
            label="out of memory",
        )


def _line_of_card(axes: Axes, height: float, words: str) -> None:
    highest = float(axes.get_ylim()[1])
    if height > _FAR_RATIO * highest:
        return
    axes.set_ylim(0, max(highest, height * 1.12))
    axes.axhline(height, color=NOT_FITTING, linewidth=1.2)
    axes.annotate(
        words, (0.01, height), xycoords=("axes fraction", "data"), xytext=(0, 3), textcoords="offset points",
        size=8.5, color=NOT_FITTING,
    )  # fmt: skip


def _joined(bands: Sequence[Band]) -> Sequence[Band]:
    """Return at most `_MOST_POINTS` bands: of each part the least, the median of the middle step, and the most."""
    if len(bands) <= _MOST_POINTS:
        return bands
    ends = [round(len(bands) * part / _MOST_POINTS) for part in range(_MOST_POINTS + 1)]
    return [_of_part(bands[start:end]) for start, end in pairwise(ends)]


def _of_part(part: Sequence[Band]) -> Band:
    middle = part[len(part) // 2]
    return Band(
        step=middle.step,
        allocated=_extremes([each.allocated for each in part], middle.allocated[1]),
        reserved=_extremes([each.reserved for each in part], middle.reserved[1]),
    )


def _extremes(sizes: Sequence[tuple[int, int, int]], middle: int) -> tuple[int, int, int]:
    return min(each[0] for each in sizes), middle, max(each[2] for each in sizes)


_ROLE_COLOURS: Mapping[tuple[str, ...], str] = {
    ("trains",): LINE_COLOURS[0],
    ("generates",): LINE_COLOURS[1],
    ("scores",): LINE_COLOURS[2],
    ("trains", "generates"): LINE_COLOURS[3],
}
_OTHERS_COLOUR = "#b3b3b3"
_STRENGTHS = (0.85, 0.6, 0.4)
"""Of the colour of a role, for its processes on one card."""
_MOST_PANELS = 4
_MOST_STRIPS = 3
"""Processes of a card whose stages are shown: those with the most memory."""
_STRIP_SHARE = 0.16
"""Height of a strip of stages, of that of the curves."""
_LETTERS = 105
"""Of the names of stages, in the width of the axes."""
_LEAST_LETTERS = 1.6
"""Width of a block that has room for a name from bottom to top."""


def job_course_figure(courses: Sequence[CardCourse], record: JobRecord) -> Figure:
    """Draw who holds what of the cards of a command, at least one, over its stages; each card that looks alike once."""
    shown = courses[:_MOST_PANELS]
    with in_theme():
        figure, axes = new_figure(9.6, 0.9 + 3.4 * len(shown))
        axes.remove()
        panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
        for course, panel in zip(shown, panels, strict=True):
            _draw_course(panel, course, record.memory_bytes)
        left_out = "" if len(shown) == len(courses) else f"; {len(courses) - len(shown)} more are not shown"
        subtitle = f"Emulated, {record.cards} x {record.gpu}{left_out}"
        title(panels[0], "Who holds what of each card, with CUDA contexts", subtitle)
        panels[-1].set_xlabel("stages of the processes, each as long as any other: no times", color=SOFT_INK)
    return figure


def _draw_course(axes: Axes, course: CardCourse, memory_bytes: int) -> None:
    places = [*course.places, course.end]
    below = [0.0] * len(places)
    for number, holder in enumerate(course.holders):
        colour, strength = _look(course.holders[:number], holder)
        above = [low + as_gib(size) for low, size in zip(below, holder.sizes_bytes, strict=False)]
        above.append(above[-1])
        label = f"{holder_name(holder)}: {gib_text(max(holder.sizes_bytes), 1)}"
        axes.fill_between(places, below, above, step="post", color=colour, alpha=strength, linewidth=0, label=label)
        below = above
    axes.step(places, below, where="post", color=INK, linewidth=0.8)
    axes.set_xlim(0, course.end)
    axes.set_xticks([])
    axes.set_ylim(0, max(below) * 1.12)
    _line_of_card(axes, as_gib(memory_bytes), f"the card: {gib_text(memory_bytes)}")
    top = float(axes.get_ylim()[1])
    axes.axvline(course.worst_place, ymax=1 / 1.12, color=INK, linewidth=0.8, linestyle=":")
    axes.grid(axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8.5, title=card_names(course), alignment="left")
    busy = sorted((each for each in course.holders if each.stages), key=lambda each: -max(each.sizes_bytes))
    for number, holder in enumerate(busy[:_MOST_STRIPS]):
        look = _look(course.holders[: course.holders.index(holder)], holder)
        _draw_stages(axes, holder, course.end, look, -top * _STRIP_SHARE * (number + 1), top * _STRIP_SHARE)
    axes.set_ylim(-top * _STRIP_SHARE * min(len(busy), _MOST_STRIPS), top)
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= top])
    axes.axhline(0, color=SOFT_INK, linewidth=0.8)
    axes.set_ylabel("GiB (2^30 bytes)", color=SOFT_INK)


def _draw_stages(axes: Axes, holder: Holder, end: float, look: tuple[str, float], bottom: float, height: float) -> None:
    """Draw a row of blocks below the curves, with the names for which there is room."""
    colour, strength = look
    for stage in holder.stages:
        width = stage.end - stage.start
        axes.broken_barh([(stage.start, width)], (bottom, height), color=colour, alpha=strength / 2, edgecolor="white")
        letters = _LETTERS * width / end
        if letters < _LEAST_LETTERS:
            continue
        lies = letters >= len(stage.name)
        axes.text(
            stage.start + width / 2, bottom + height / 2, stage.name, size=7.5 if lies else 6.5, color=INK,
            ha="center", va="center", rotation=0 if lies else 90, clip_on=True,
        )  # fmt: skip


def _look(before: Sequence[Holder], holder: Holder) -> tuple[str, float]:
    if holder.process is None:
        return _OTHERS_COLOUR, 1.0
    roles = holder.process.roles
    same = sum(each.process is not None and each.process.roles == roles for each in before)
    return _ROLE_COLOURS.get(roles, LINE_COLOURS[4]), _STRENGTHS[same % len(_STRENGTHS)]
