"""A replayed history as a table of 80 columns and as JSON, with the lines of code that hold its memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from profiler.allocator.alloc_conf import alloc_conf_text
from profiler.allocator.histories.course import BEFORE, Course, OutOfMemory, reduced
from profiler.allocator.histories.history import RecordedHistory
from profiler.allocator.histories.recorded import HeldLines, LineHolding
from profiler.allocator.histories.what_if import Answer, Scenario
from profiler.domain.memory import GIB, gib_text, mib_text
from profiler.rendering.document import Align, Cell, Column, Document, Row, Section, Table, Text, paragraphs
from profiler.rendering.layouts.plain_text import Lines, json_text, plain_text
from profiler.rendering.replay.words import (
    ANEW_NOTE,
    COMPARE_NOTE,
    MOST_SHOWN,
    NOTHING_TRIED_NOTE,
    ORIGIN_NOTE,
    departure_text,
    first_text,
    others_text,
    refusal_text,
    scenario_text,
    settings_text,
    verdict_text,
)

_MOST_LINES = 20
_WIDTH = 44
NO_STACK = "no stack, such as from before the recording"
NO_STACKS_NOTE = (
    "Which lines of code hold the memory is unknown: the snapshot has no stacks. "
    "torch.cuda.memory._record_memory_history() stores them unless it is called with context=None."
)
_COLUMNS = (
    Column(title="requested by", align=Align.LEFT),
    *(Column(title=each) for each in ("held", "share", "blocks")),
)


def held_section(held: HeldLines, size_text: Callable[[float], str]) -> Section:
    """Return the lines that hold most of the memory, largest first, with bytes, share and number of blocks."""
    if not held.has_stacks:
        return Section("", [Text(NO_STACKS_NOTE)] if held.allocated_bytes else [])
    shown = held.largest[:_MOST_LINES]
    rows = [_row(each, held.allocated_bytes, size_text) for each in shown]
    return Section("", [Text(_title(held, size_text)), Table(_COLUMNS, rows), *_after(held, shown, size_text)])


def _title(held: HeldLines, size_text: Callable[[float], str]) -> str:
    where = "the beginning" if held.entry == BEFORE else f"entry {held.entry:,}"
    when = f"at the peak, after {where}" if held.refused is None else f"when it ran out of memory first, at {where}"
    return f"Who holds the {size_text(held.allocated_bytes)} that are allocated {when}:"


def _row(each: LineHolding, allocated_bytes: int, size_text: Callable[[float], str]) -> Row:
    first, *others = wrap(_name(each), _WIDTH, break_on_hyphens=False)
    share = f"{100 * each.size_bytes / allocated_bytes:.1f} %"
    return (Cell(text=first, lines=others), size_text(each.size_bytes), share, f"{each.blocks:,}")


def _name(each: LineHolding) -> str:
    return NO_STACK if each.line is None else str(each.line)


def _after(held: HeldLines, shown: tuple[LineHolding, ...], size_text: Callable[[float], str]) -> list[Text]:
    others = len(held.lines) - len(shown)
    rest_bytes = held.allocated_bytes - sum(each.size_bytes for each in shown)
    texts = []
    if others:
        lines = "1 other line" if others == 1 else f"{others:,} other lines"
        texts.append(Text(f"{lines} and the rests of blocks hold {size_text(rest_bytes)}."))
    if held.refused is not None:
        texts.append(Text(f"Refused: {size_text(held.refused.size_bytes)}, requested by: {_name(held.refused)}."))
    return texts


def held_mapping(held: HeldLines) -> dict[str, object]:
    """Return the same as plain values, with all lines and whole paths."""
    return {
        "entry": held.entry,
        "is_out_of_memory": held.refused is not None,
        "allocated_bytes": held.allocated_bytes,
        "refused": None if held.refused is None else _holding(held.refused),
        "largest": len(held.largest),
        "lines": [_holding(each) for each in held.lines],
    }


def _holding(each: LineHolding) -> dict[str, object]:
    line = each.line
    return {
        "file": line.file if line else None,
        "line": line.line if line and line.file else None,
        "function": line.function if line else None,
        "text": _name(each),
        "size_bytes": each.size_bytes,
        "blocks": each.blocks,
    }


_LABEL_WIDTH, _COLUMN_WIDTH = 32, 16
MOST_POINTS = 300
"""Points of a curve as JSON."""

SizeText = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class _Column:
    title: str
    course: Course
    fits: str


def replay_table(name: str, found: Answer) -> str:
    """Return the paragraphs about one history: summary, comparison, table and out-of-memory errors."""
    about = [_table_title(name, found.history), others_text(found.history)]
    if found.comparison.is_consistent:
        about.append(first_text(found.comparison))
    sections = [paragraphs(*about, departure_text(found.comparison))]
    if found.comparison.is_consistent:
        sections += [
            Section("", [_table(_columns(found), _size_text(found))]),
            paragraphs(*_recorded_refusals(found)),
            *([held_section(found.held, _size_text(found))] if found.held else []),
            paragraphs(*_scenarios(found)),
            paragraphs(ORIGIN_NOTE),
        ]
    document = Document(title=name, blocks=[section for section in sections if section.blocks])
    # The path of a file may be longer than a line.
    return plain_text(document, Lines(in_words=True))


def _table_title(name: str, history: RecordedHistory) -> str:
    number = len(history.streams)
    streams = "1 stream" if number == 1 else f"{number} streams"
    settings = settings_text(history.config)
    return f"{name}: {len(history.entries):,} entries of device {history.device}, {streams}, settings: {settings}."


def _size_text(found: Answer) -> SizeText:
    """Return one unit for the whole table, so that its columns can be compared."""
    courses = [scenario.result.course for scenario in (found.anew, found.after) if scenario is not None]
    peak = max(course.peak.reserved_bytes for course in (found.comparison.course, *courses))
    return _in_gib if peak >= GIB else mib_text


def _in_gib(size_bytes: float) -> str:
    return gib_text(size_bytes, 2)


def _columns(found: Answer) -> list[_Column]:
    course = found.comparison.course
    fits = "yes" if not course.refusals else f"no, {len(course.refusals):,} refused"
    columns = [_Column(title="recorded", course=course, fits=fits)]
    if found.anew is not None:
        columns.append(_column("same settings, begun anew", found.anew))
    if found.after is not None:
        columns.append(_column("what if", found.after))
    return columns


def _column(title: str, scenario: Scenario) -> _Column:
    fits = "yes" if scenario.result.fits else "open" if scenario.might_fit else "no"
    fits = "no limit" if scenario.capacity.size_bytes is None else fits
    return _Column(title=title, course=scenario.result.course, fits=fits)


def _table(columns: Sequence[_Column], size_text: SizeText) -> Table:
    courses = [column.course for column in columns]
    peaks = [course.peak for course in courses]
    shares = [100 * peak.free_bytes / peak.reserved_bytes if peak.reserved_bytes else 0.0 for peak in peaks]
    rows: list[Row] = [
        ("peak of reserved memory", *(size_text(peak.reserved_bytes) for peak in peaks)),
        (_part("after entry"), *("the beginning" if peak.entry == BEFORE else f"{peak.entry:,}" for peak in peaks)),
        (_part("allocated then"), *(size_text(peak.allocated_bytes) for peak in peaks)),
        (_part("fragmentation: not allocated"), *(size_text(peak.free_bytes) for peak in peaks)),
        (_part("share of reserved"), *(f"{share:.1f} %" for share in shares)),
        (_part("largest free block"), *(size_text(peak.largest_free_bytes) for peak in peaks)),
        (_part("segments"), *(f"{peak.segments:,}" for peak in peaks)),
        ("peak of allocated memory", *(size_text(course.peak_allocated_bytes) for course in courses)),
        ("peak of unreleasable memory", *(size_text(course.peak_unreleasable_bytes) for course in courses)),
        ("retries: full, cache given back", *(f"{course.num_alloc_retries:,}" for course in courses)),
        ("fits", *(column.fits for column in columns)),
    ]
    label = Column(title="", align=Align.LEFT, width=_LABEL_WIDTH)
    return Table([label, *(Column(title=column.title, width=_COLUMN_WIDTH) for column in columns)], rows)


def _part(label: str) -> Cell:
    return Cell(text=label, is_part=True)


def _recorded_refusals(found: Answer) -> list[str]:
    refusals = found.comparison.course.refusals
    lines = [f"Recorded: out of memory {refusal_text(refusal)}" for refusal in refusals[:MOST_SHOWN]]
    more = len(refusals) - MOST_SHOWN
    return [*lines, f"And {more:,} more times."] if more > 0 else lines


def _scenarios(found: Answer) -> list[str]:
    lines = []
    if found.after is not None:
        lines.append(f"What if: {scenario_text(found.question, found.after)}")
        lines.append(verdict_text(found.after))
    else:
        lines.append(NOTHING_TRIED_NOTE)
    if found.anew is not None:
        lines.append(ANEW_NOTE if found.after is None else f"{ANEW_NOTE} {COMPARE_NOTE}")
        # The recording already shows that it fits.
        lines.append("" if found.anew.result.fits else verdict_text(found.anew))
    return lines


def replay_json(answers: Sequence[Mapping[str, object]], unreadable: Mapping[str, str]) -> str:
    """Return one JSON object: every history as `answer_mapping` returns it, and unreadable files with the reason."""
    return json_text({"snapshots": list(answers), "unreadable": dict(unreadable)})


def answer_mapping(name: str, found: Answer) -> dict[str, object]:
    """Return one history as plain values."""
    comparison, history = found.comparison, found.history
    return {
        "file": name,
        "device": history.device,
        "other_devices": [
            {"device": each.device, "entries": each.entries, "first_out_of_memory_entry": each.first_oom}
            for each in history.others
        ],
        "entries": len(history.entries),
        "streams": len(history.streams),
        "alloc_conf": alloc_conf_text(history.config),
        "first_reserved_bytes": comparison.first.reserved_bytes if comparison.is_consistent else None,
        "unverified_entries": comparison.unverified_entries,
        "replayed_entries": comparison.replayed_entries,
        "is_equal": None if comparison.is_empty and not comparison.departure else comparison.is_equal,
        "departure": comparison.departure,
        "recorded": {"origin": "recorded"} | _course(comparison.course) if comparison.is_consistent else None,
        "held": held_mapping(found.held) if found.held and found.held.has_stacks else None,
        "begun_anew": _scenario(found.anew) if found.anew else None,
        "what_if": _scenario(found.after) if found.after else None,
    }


def _scenario(scenario: Scenario) -> dict[str, object]:
    result = scenario.result
    return {
        "origin": "replayed",
        "alloc_conf": alloc_conf_text(scenario.config),
        "gpu": scenario.gpu.name if scenario.gpu else None,
        "capacity_bytes": scenario.capacity.size_bytes,
        "capacity_source": scenario.capacity.source.value,
        "capacity_at_most_bytes": scenario.capacity.most_bytes,
        "fits": result.fits,
        "might_fit": scenario.might_fit,
        "refused": _refusal(result.refused) if result.refused else None,
        "served_entries": list(result.served),
        **_course(result.course),
    }


def _course(course: Course) -> dict[str, object]:
    peak = course.peak
    return {
        "peak_reserved_bytes": peak.reserved_bytes,
        "peak_reserved_entry": peak.entry,
        "allocated_at_peak_bytes": peak.allocated_bytes,
        "fragmentation_at_peak_bytes": peak.free_bytes,
        "largest_free_at_peak_bytes": peak.largest_free_bytes,
        "segments_at_peak": peak.segments,
        "peak_allocated_bytes": course.peak_allocated_bytes,
        "peak_unreleasable_bytes": course.peak_unreleasable_bytes,
        "num_alloc_retries": course.num_alloc_retries,
        "curve": _curve(course),
        "out_of_memory": [_refusal(refusal) for refusal in course.refusals],
    }


def _curve(course: Course) -> dict[str, object]:
    """Return the course in few points, each the highest level of its part; entry 0 is before the first."""
    entries, allocated = reduced(course.allocated_bytes, MOST_POINTS)
    return {
        "entries": entries,
        "allocated_bytes": allocated,
        "reserved_bytes": reduced(course.reserved_bytes, MOST_POINTS)[1],
    }


def _refusal(refusal: OutOfMemory) -> dict[str, object]:
    return {
        "entry": refusal.entry,
        "requested_bytes": refusal.requested_bytes,
        "driver_free_bytes": refusal.driver_free_bytes,
        "allocated_bytes": refusal.allocated_bytes,
        "reserved_bytes": refusal.reserved_bytes,
        "largest_free_bytes": refusal.largest_free_bytes,
    }
