"""Whether a whole run survives, as a document for text and pages, and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path

from profiler.analysis.forecast.lengths import Sampled, StepWidths
from profiler.analysis.forecast.outlook import Cause, MemoryGrowth, Outlook, Share, died_by, full_at, measured_points
from profiler.analysis.forecast.training_log import TrainingLog, Trend, trend
from profiler.analytical.explanation.explained import CardVerdict, Fit
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.cards.gpu import Gpu
from profiler.domain.errors import shortened
from profiler.domain.memory import Origin, Phase, as_gib, gib_text
from profiler.domain.runs.forecast import Learnt
from profiler.domain.trials.trial import TrialSpec
from profiler.rendering.document import (
    Block,
    Document,
    Figure,
    Medium,
    RenderedFigure,
    Section,
    Table,
    Text,
    number_columns,
    paragraphs,
)
from profiler.rendering.estimate.table import method_text
from profiler.rendering.layouts.plain_text import json_text, plain_text
from profiler.rendering.memory_words import gib_number, growth_text, mib_text, percent


@dataclass(frozen=True, kw_only=True)
class LeverForecast:
    """One change, by its own forecast with the same draws."""

    name: str
    """As a user writes it: ``"max_completion_length=590"``."""
    outlook: Outlook


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast of a run, with what it was made of."""

    spec: TrialSpec
    gpu: Gpu
    context_bytes: int
    """Of CUDA, assumed: what the card has beyond it is torch's."""
    outlook: Outlook
    sampled: tuple[Sampled, ...]
    learnt: Learnt | None
    estimate: CardVerdict | None
    """The worst case; None if the trial has no closed form."""
    levers: tuple[LeverForecast, ...]
    growth: MemoryGrowth | None
    """Of the memory that a log measured; None without such a log."""
    notes: tuple[str, ...]

    @property
    def dies(self) -> bool:
        """Whether a seed runs out of memory."""
        return bool(self.outlook.deaths)


def forecast_text(forecast: Forecast, folder: Path) -> str:
    """Return the answer as text of 80 columns; `folder` has its page."""
    blocks = [*forecast_blocks(forecast), paragraphs(f"Page, figure and every step: {folder}.")]
    return plain_text(Document(title="Forecast", blocks=blocks))


def forecast_page(forecast: Forecast, figures: Sequence[RenderedFigure]) -> Document:
    """Return the page, with its figures."""
    shown = [Figure(figure, alt=figure.title, caption=figure.title) for figure in figures]
    first, *others = forecast_blocks(forecast)
    return Document(
        title=f"{forecast.spec.model} on {forecast.gpu.name}: {forecast.outlook.steps:,} steps",
        lead=Text("Does the whole run survive?", only=(Medium.HTML,)),
        blocks=[first, Section("", shown), *others],
    )


def forecast_blocks(forecast: Forecast) -> list[Block]:
    """Return the answer: the verdict, what kills, peaks, what the allocator keeps, growth, and the levers."""
    outlook = forecast.outlook
    blocks: list[Block] = [paragraphs(*forecast.notes, *_headline(forecast), *_killer(forecast))]
    if outlook.deaths:
        rows = [(f"{step:,}", *_share_cells(died_by(outlook.runs, step))) for step in outlook.checkpoints]
        columns = number_columns("by step", ("out of memory", "probability", "95 % interval"))
        blocks.append(Section("", [Table(columns, rows)]))
    blocks.append(paragraphs(*_peaks(forecast)))
    kept = outlook.kept()
    if kept:
        blocks.append(
            Section(
                "",
                [
                    Text(
                        "What torch takes up to a step, holds after it, and could not return; GiB, median of the seeds:"
                    ),
                    _kept_table(outlook),
                ],
            )
        )
    if forecast.growth is not None:
        blocks.append(paragraphs(*growth_lines(forecast.growth)))
    if forecast.levers:
        blocks.append(
            Section("", [Text("Each change by itself, with the same draws; peaks in GiB:"), _levers_table(forecast)])
        )
    return [*blocks, paragraphs(*_method(forecast))]


def _headline(forecast: Forecast) -> Iterator[str]:
    spec, outlook = forecast.spec, forecast.outlook
    conf = f", {outlook.alloc_conf}" if outlook.alloc_conf else ""
    job = f"{spec.model}, {method_text(spec)}, on {forecast.gpu.name}{conf}"
    low, high = outlook.died.interval
    if not outlook.deaths:
        yield (
            f"{job}: survives {outlook.steps:,} steps with each of {outlook.died.of} seeds; "
            f"the probability to run out of memory is at most {_percent(high)} (95 %, Wilson)."
        )
        return
    yield (
        f"{job}: runs out of memory within {outlook.steps:,} steps with {outlook.died.count} of {outlook.died.of} "
        f"seeds ({_percent(low)} to {_percent(high)}, 95 %, Wilson)."
    )


def _killer(forecast: Forecast) -> Iterator[str]:
    deaths = forecast.outlook.deaths
    if not deaths:
        return
    first, middle = deaths[0], deaths[(len(deaths) - 1) // 2]
    when = (
        f"step {first.step:,}"
        if len(deaths) == 1
        else f"step {first.step:,} at the earliest, {middle.step:,} in the middle"
    )
    batch = "batch" if first.phase is Phase.EVALUATION else "micro-batch"
    gpu = f", GPU {first.process + 1} of {forecast.spec.num_processes}" * (forecast.spec.num_processes > 1)
    yield (
        f"It dies in {when}. The first (seed {first.seed}{gpu}): a {batch} of {first.rows:,} rows padded to the "
        f"longest, {first.row_tokens:,} tokens, asks for {gib_text(first.requested_bytes, 2)} in phase {first.phase}, "
        f"with {gib_text(first.free_bytes, 2)} free on the card, {gib_text(first.allocated_bytes)} allocated and "
        f"{gib_text(first.reserved_bytes - first.allocated_bytes)} reserved but not allocated."
    )


def _share_cells(share: Share) -> tuple[str, str, str]:
    low, high = share.interval
    return f"{share.count} of {share.of}", f"{_percent(share.count / share.of)}", f"{_percent(low)} to {_percent(high)}"


def _peaks(forecast: Forecast) -> Iterator[str]:
    outlook, worst, usable = forecast.outlook, forecast.estimate, forecast.gpu.usable_bytes
    yield (
        f"Peaks over all steps and seeds: {gib_text(outlook.allocated_bytes)} allocated, "
        f"{gib_text(outlook.reserved_bytes)} reserved, of {gib_text(usable)} that the card has beyond CUDA's context."
    )
    if outlook.trained_bytes is not None:
        yield (
            f"The largest peak is that of an evaluation; steps of training take {gib_text(outlook.trained_bytes)} at "
            "most. A smaller per_device_eval_batch_size lowers it."
        )
    if worst is not None:
        verdict = "fits" if worst.left_bytes >= 0 else "is tight" if worst.fit is Fit.TIGHT else "does not fit"
        is_above = worst.peak_reserved_bytes > usable and verdict != "does not fit"
        returned = " where a card is never full" if is_above else ""
        more = outlook.reserved_bytes - worst.peak_reserved_bytes
        fragments = f" Fragments that steps of other lengths leave take {gib_text(more)} more." if more > 0 else ""
        yield (
            f"The estimate's worst case, one step of the longest rows on an empty card: "
            f"{gib_text(worst.peak_allocated_bytes)} allocated, {gib_text(worst.peak_reserved_bytes)} reserved"
            f"{returned}; it {verdict}.{fragments}"
        )


def _kept_table(outlook: Outlook) -> Table:
    sizes = attrgetter("allocated_bytes", "reserved_bytes", "reserved_after_bytes", "inactive_split_bytes")
    rows = [(f"{each.step:,}", *map(gib_number, sizes(each))) for each in outlook.kept()]
    titles = ("allocated", "reserved", "held after it", "not returnable")
    return Table(number_columns("step", titles), rows)


def _levers_table(forecast: Forecast) -> Table:
    every = (LeverForecast(name="nothing", outlook=forecast.outlook), *forecast.levers)
    rows = [
        (
            each.name,
            f"{each.outlook.died.count} of {each.outlook.died.of}",
            f"{each.outlook.deaths[0].step:,}" if each.outlook.deaths else "never",
            gib_number(each.outlook.allocated_bytes),
            gib_number(each.outlook.reserved_bytes),
        )
        for each in every
    ]
    return Table(number_columns("change", ("die", "first at step", "allocated", "reserved")), rows)


def growth_lines(growth: MemoryGrowth) -> Iterator[str]:
    """Yield whether lengths explain the growth of memory that a log measured."""
    own, rest = growth.measured, growth.unexplained
    where = f", in phase {growth.phase}" if growth.phase is not None else ""
    compared = f"{growth.steps:,} logged steps against the forecast with their lengths"
    if growth.cause is Cause.NONE:
        yield f"Leak or longer rows? Memory does not grow over {growth.span:,} steps ({compared})."
        return
    grown = f"It grows by {mib_text(own.slope)} per step"
    unexplained = f"{mib_text(rest.slope)} per step ({mib_text(rest.low)} to {mib_text(rest.high)}, 99.9 %)"
    if growth.cause is Cause.LEAK:
        yield f"Leak or longer rows? A leak: {unexplained} that no length explains{where}. {grown}; {compared}."
        return
    parts = growth.explained
    share = (
        ""
        if parts is None
        else f"Growth explained by lengths: {_percent(parts[0])} ({_percent(parts[1])} to {_percent(parts[2])}, 99.9 %)"
    )
    verdict = "Longer rows" if growth.cause is Cause.LENGTHS else "Undecided"
    yield f"Leak or longer rows? {verdict}. {share}. {grown}; {compared}."


NeedByLengths = Mapping[float, tuple[StepWidths, CardVerdict]]
"""Part of the steps -> the widths that they do not exceed, and the estimate of these."""


def lengths_sentence(found: NeedByLengths, path: str, spec: TrialSpec) -> str:
    """Return what parts of the steps need with the lengths of a file."""
    needs = [
        f"{100 * part:g} % of the steps need at most {gib_text(card.needed_bytes)} "
        f"(rows of {f'{each.prompt:,} + ' if each.prompt else ''}{each.completion:,} tokens)"
        for part, (each, card) in found.items()
    ]
    by_file = f"With the lengths of {shortened(path, 60)}, {', '.join(needs)}, with fragments and context."
    return f"{by_file} The answer above is for the longest rows, of {spec.row_tokens:,} tokens."


def lengths_object(found: NeedByLengths) -> list[dict[str, object]]:
    """Return the same as values of JSON."""
    return [
        {"part_of_steps": part, "needed_bytes": card.needed_bytes, "verdict": card.word, **asdict(widths)}
        for part, (widths, card) in found.items()
    ]


def log_text(log: TrainingLog, limit_bytes: int | None) -> str:
    """Return what a log says by itself, without the job: how lengths and memory grow, and when the card is full."""
    memory = growth_text(measured_points(log), limit_bytes) or "It has no memory, or too few steps of it."
    found = [*_lengths_of_log(log), memory]
    hint = "Name the job (config=FILE or model=NAME) to see whether lengths explain the memory, and when the run dies."
    return plain_text(Document(title="Log", blocks=[paragraphs(*found, hint)]))


def _lengths_of_log(log: TrainingLog) -> Iterator[str]:
    steps = log.with_lengths
    if not steps:
        return
    means, line = [each.mean or 0.0 for each in steps], trend([(each.step, each.mean or 0.0) for each in steps])
    change = "" if line is None else f", {line.slope:+.2f} per step ({line.low:+.2f} to {line.high:+.2f}, 95 %)"
    span = f"{steps[0].step:,} to {steps[-1].step:,}"
    yield (
        f"Steps {span} of a log of {log.trainer}: completions have {min(means):,.0f} to "
        f"{max(means):,.0f} tokens on average{change}; the longest has {max(each.longest or 0 for each in steps):,.0f}."
    )


def log_object(log: TrainingLog, limit_bytes: int | None) -> dict[str, object]:
    """Return the same as values of JSON; trends are per step, with their 95 % interval."""
    lengths = trend([(each.step, each.mean or 0.0) for each in log.with_lengths])
    memory = trend(measured_points(log))
    full = full_at(memory, limit_bytes) if memory is not None and limit_bytes is not None else None
    return {
        "origin": Origin.MEASURED.value,
        "trainer": log.trainer.value,
        "last_step": log.steps[-1].step,
        "mean_length_per_step": _trend_object(lengths),
        "memory_bytes_per_step": _trend_object(memory),
        "full_at_step": None if full is None else list(full),
    }


def _trend_object(line: Trend | None) -> list[float] | None:
    return None if line is None else [line.slope, line.low, line.high]


def _percent(part: float) -> str:
    """Return 0.28 as ``"28 %"``."""
    return f"{100 * part:.0f} %"


def _method(forecast: Forecast) -> Iterator[str]:
    longest = max(max(each.draw.completions) for each in forecast.sampled)
    rows = sum(len(each.draw.completions) for each in forecast.sampled)
    cut = sum(each.cut_completions for each in forecast.sampled)
    mean = sum(sum(each.draw.completions) for each in forecast.sampled) / rows
    yield (
        f"Sampled: {rows:,} rows over {len(forecast.sampled)} seeds, {mean:,.0f} tokens on average, {longest:,} at "
        f"most; {percent(cut / rows)} were cut to the longest allowed."
    )
    learnt = forecast.learnt
    how = ""
    if learnt is not None:
        layers = "" if learnt.layers_run is None else f", with {learnt.layers_run} layers that stand for all"
        how = (
            f" The trace of a step, {learnt.events_per_step:,} events, was learnt from {learnt.shapes} shapes{layers}."
        )
        how = how if learnt.whole is None else f" Each step was simulated whole: {learnt.whole}"
    what = "trl's trainer on a simulated card, every step replayed through a model of torch's allocator"
    yield f"Simulated: {what}.{how}"


def forecast_json(forecast: Forecast) -> str:
    """Return the same as one object. Sizes are integers of bytes."""
    return json_text(forecast_object(forecast))


def forecast_object(forecast: Forecast) -> dict[str, object]:
    """Return the forecast as values of JSON."""
    worst, growth = forecast.estimate, forecast.growth
    return {
        "origin": Origin.SIMULATED.value,
        "notes": list(forecast.notes),
        "trial": spec_to_mapping(forecast.spec),
        "gpu": forecast.gpu.name,
        "card_bytes": forecast.gpu.memory_bytes,
        "context_bytes": forecast.context_bytes,
        **_outlook_object(forecast.outlook),
        "estimate": None
        if worst is None
        else {
            "peak_allocated_bytes": worst.peak_allocated_bytes,
            "peak_reserved_bytes": worst.peak_reserved_bytes,
            "verdict": worst.word,
        },
        "learnt": None if forecast.learnt is None else asdict(forecast.learnt),
        "lengths": [
            {
                "seed": each.draw.seed,
                "rows": len(each.draw.completions),
                "mean": sum(each.draw.completions) / len(each.draw.completions),
                "longest": max(each.draw.completions),
                "cut": each.cut_completions,
                "growth": each.growth,
            }
            for each in forecast.sampled
        ],
        "levers": [{"change": each.name, **_outlook_object(each.outlook)} for each in forecast.levers],
        "growth": None if growth is None else growth_object(growth),
    }


def growth_object(growth: MemoryGrowth) -> dict[str, object]:
    """Return the growth of measured memory as values of JSON; intervals are of 99.9 %."""
    explained = growth.explained
    return {
        "cause": growth.cause.name.lower(),
        "steps": growth.steps,
        "measured_bytes_per_step": [growth.measured.slope, growth.measured.low, growth.measured.high],
        "unexplained_bytes_per_step": [growth.unexplained.slope, growth.unexplained.low, growth.unexplained.high],
        "explained_by_lengths": None if explained is None else list(explained),
        "phase": growth.phase,
    }


def _outlook_object(outlook: Outlook) -> dict[str, object]:
    low, high = outlook.died.interval
    return {
        "alloc_conf": outlook.alloc_conf,
        "steps": outlook.steps,
        "seeds": outlook.died.of,
        "died": outlook.died.count,
        "probability": outlook.died.count / outlook.died.of,
        "probability_interval": [low, high],
        "died_by_step": [[step, died_by(outlook.runs, step).count] for step in outlook.checkpoints],
        "deaths": [asdict(each) for each in outlook.deaths],
        "peak_allocated_bytes": outlook.allocated_bytes,
        "peak_reserved_bytes": outlook.reserved_bytes,
        "kept": [asdict(each) for each in outlook.kept()],
    }


def figure_subtitle(forecast: Forecast) -> str:
    """Return what a figure is of, with the origin of its numbers."""
    return (
        f"{forecast.spec.model}, {method_text(forecast.spec)}, on {forecast.gpu.name}; simulated, "
        f"{forecast.outlook.died.of} seeds"
    )


def card_line(forecast: Forecast) -> tuple[float, str]:
    """Return the height of the card's line in GiB, and its words."""
    usable = forecast.gpu.usable_bytes
    return as_gib(usable), f"the card without CUDA's context: {gib_text(usable)}"
