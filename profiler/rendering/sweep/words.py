"""The texts of settings, cells, errors and ranks, shared by terminal, pages and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from profiler.analysis.compared.axes import Matrix
from profiler.analysis.compared.cells import Cell, Setting
from profiler.analysis.compared.comparison import Section
from profiler.analysis.errors import Accuracy, Threshold
from profiler.analysis.findings.answers import CardTable, Limit, Place, Reach, Saving, headroom_bytes
from profiler.analysis.findings.peaks import LargestGroup, VllmPeaks
from profiler.analysis.sweep_report import SectionReport
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import NOT_EMULATED, Origin, as_gib, gib_text
from profiler.domain.runs.outcome import Status, TrialRecord
from profiler.domain.trials.labels import value_text
from profiler.rendering.document import MOST_ROWS
from profiler.rendering.memory_words import CATEGORY_TITLES as CATEGORY_TITLES
from profiler.rendering.memory_words import compared_text as compared_text
from profiler.rendering.memory_words import gib_number as gib_number
from profiler.rendering.memory_words import percent as percent
from profiler.rendering.memory_words import short_model as short_model

_MOST_ANSWERS = 12
"""Methods in one sentence; more are not read."""
_ENGINES_LISTED = 12
"""Trials with vLLM in a list of sentences."""


def more_rows(rows: int, where: str) -> str:
    """Return the sentence below a table of which only the first `MOST_ROWS` of `rows` are shown; empty if all are."""
    more = rows - MOST_ROWS
    return f"and {more:,} more {'row' if more == 1 else 'rows'}: {where}." if more > 0 else ""


def setting_title(setting: Setting) -> str:
    """Return ``"Simulated on NVIDIA H100 80GB HBM3 (79.1 GiB)"``."""
    if setting.origin is None:
        return "Run on the CPU (no GPU figures)"
    memory = f" ({gib_text(setting.memory_bytes)})" if setting.memory_bytes is not None else ""
    return f"{setting.origin.capitalize()} on {setting.card or 'an unknown card'}{memory}"


def origin_word(setting: Setting) -> str:
    """Return ``"measured"``, ``"emulated"``, ``"simulated"``, or ``"run on the CPU"``."""
    return setting.origin.value if setting.origin else "run on the CPU"


def versions_text(setting: Setting) -> str:
    """Return ``"torch 2.13.0, trl 1.16.0, …"``."""
    return ", ".join(f"{package} {version}" for package, version in setting.versions)


def short_models(models: tuple[str, ...]) -> dict[str, str]:
    """Return each model's name for a narrow column; the whole name if two short ones are equal."""
    short = [short_model(model) for model in models]
    return {model: name if short.count(name) == 1 else model for model, name in zip(models, short, strict=True)}


def place_names(table: CardTable) -> dict[Place, str]:
    """Return the name of each row of a table of cards: method and model."""
    names = short_models(tuple(dict.fromkeys(model for _, model in table.places)))
    return {(label, model): f"{label}, {names[model]}" for label, model in table.places}


def column_names(table: Matrix) -> dict[str, str]:
    """Return the header of each column: the model's short name, or the value of the key across."""
    if table.key is None:
        return short_models(table.columns)
    return {value: value for value in table.columns}


def corner(table: Matrix) -> str:
    """Return the header of the rows: ``"method"``, or ``"method; across: max_completion_length"``."""
    return "method" if table.key is None else f"method; across: {table.key}"


def result_text(cell: Cell) -> str:
    """Return ``"38.2"``, ``"OOM 109.3"`` (what it needs), ``"OOM"``, ``"ok (CPU)"``, or another status."""
    if cell.status is Status.OK:
        if cell.peak_allocated_bytes is not None:
            return gib_number(cell.peak_allocated_bytes)
        return "ok (CPU)" if cell.setting.origin is None else "ok"
    if cell.status is Status.OOM:
        return "OOM" if cell.result_bytes is None else f"OOM {gib_number(cell.result_bytes)}"
    return cell.status.value.replace("_", " ")


def needs_text(cell: Cell) -> str:
    """Return what a cell that ran out of memory needs; empty if unknown.

    ``"needs 109.3 GiB, 110.9 with fragmentation and context, 31.8 more than there is"``. Fragmentation is the free
    memory in segments that are in use.
    """
    if cell.status is not Status.OOM or cell.result_bytes is None:
        return ""
    needs = f"needs {gib_text(cell.result_bytes)}"
    if cell.required_device_bytes is not None:
        needs += f", {gib_number(cell.required_device_bytes)} with fragmentation and context"
    return needs + (f", {gib_number(cell.missing_bytes)} more than there is" if cell.missing_bytes is not None else "")


def estimate_text(cell: Cell, prefix: str) -> str:
    """Return the estimate in GiB and its error, ``"est 37.0 -3%"``; empty without an estimate."""
    if cell.estimated_bytes is None or cell.setting.origin is None:
        return ""
    error = cell.estimate_error_ratio
    return f"{prefix}{gib_number(cell.estimated_bytes)}" + (f" {signed_percent(error)}" if error is not None else "")


def published_text(cell: Cell) -> str:
    """Return the published figure as printed, ``"38 GB"`` or ``"OOM"``; empty without one."""
    figure = cell.published
    if figure is None:
        return ""
    return "OOM" if figure.is_out_of_memory else f"{figure.printed} {figure.unit}"


def signed_percent(ratio: float) -> str:
    """Return 0.031 as ``"+3%"``, and a ratio that rounds to zero as ``"0%"``."""
    text = f"{ratio:+.0%}"
    return "0%" if text in ("+0%", "-0%") else text


def errors_text(accuracy: Accuracy) -> str:
    """Return ``"estimate: median error 3.1 %, 95th percentile 9.0 %"``."""
    return (
        f"{accuracy.of}: median error {percent(accuracy.median_ratio)}, 95th percentile {percent(accuracy.p95_ratio)}"
    )


def accuracy_text(accuracy: Accuracy) -> str:
    """Return `errors_text` and the worst trial: ``"…, worst +12% (LoRA, qwen2.5-7b)"``."""
    return f"{errors_text(accuracy)}, worst {signed_percent(accuracy.worst_error_ratio)} ({cell_name(accuracy.worst)})"


def short_card(card: str) -> str:
    """Return the name of a card as in `gpu=`; the vendor's name if it is unknown."""
    return next((gpu.name for gpu in KNOWN_GPUS.values() if gpu.title == card), card)


def card_names(table: CardTable) -> list[str]:
    """Return the header of each column of a table of cards; with the origin where a table has several."""
    origins = {column.origin for column in table.columns}
    return [short_card(column.card) + (f", {column.origin}" if len(origins) > 1 else "") for column in table.columns]


def headroom_legend(table: CardTable) -> str:
    """Return the legend of a table of cards, with the origin of its figures."""
    origins = " and ".join(dict.fromkeys(column.origin for column in table.columns))
    return f"GiB free (+) or missing (-), {origins}, after the CUDA context and what torch's allocator cannot release."


def headroom_text(cell: Cell | None) -> str:
    """Return the free memory of the card in GiB, ``"+14.5"``, or the missing, ``"-3.2"``; a word if it is unknown."""
    if cell is None:
        return "·"
    headroom = headroom_bytes(cell)
    if headroom is not None:
        return f"{as_gib(headroom):+.1f}"
    return {Status.OK: "fits", Status.OOM: "OOM"}.get(cell.status, cell.status.value)


def threshold_text(threshold: Threshold, value: float | None) -> str:
    """Return the allowed or found value of a threshold: ``"1.0 %"``, ``"0 trials"``, or ``"not measured"``."""
    if value is None:
        return "not measured"
    return f"{value:.0f} trials" if threshold.counts_trials else percent(value)


def thresholds_text(thresholds: Sequence[Threshold]) -> str:
    """Return one sentence about all thresholds; where nothing is measured, about the cards that were compared."""
    known = [threshold for threshold in thresholds if threshold.found is not None]
    if not known:
        return f"Simulation against a real card: not measured here. {compared_text(lambda found: found.simulated)}"
    broken = [
        f"{threshold.claim} {threshold_text(threshold, threshold.found)}" for threshold in known if not threshold.holds
    ]
    said = f"does not hold: {'; '.join(broken)}" if broken else f"all of {len(known)} acceptance thresholds hold"
    return f"Simulation against a real card: {said}."


def answer_sentences(part: SectionReport) -> list[str]:
    """Return what a section says first: savings, how far each method goes, what a key costs."""
    section, found = part.section, part.answers
    origin, names = origin_word(section.setting), short_models(section.models)
    card = f"On {gib_text(section.setting.memory_bytes or 0)}"
    limited = [_limit_text(limit, names if limit.other_key is None else {}) for limit in found.limits]
    if part.matrix.key is not None and limited:
        return [f"{card}: {_joined(limited)}."]
    spans = [
        f"{span.method} of {names[span.model]}: {gib_number(span.least[1])} GiB with {span.key}={span.least[0]}, "
        f"{gib_number(span.most[1])} with {span.key}={span.most[0]}."
        for span in found.spans
    ]
    sentences = spans[:_MOST_ANSWERS]
    if len(spans) > _MOST_ANSWERS:
        sentences.append(f"And {len(spans) - _MOST_ANSWERS:,} more like these: the table has them.")
    if limited:
        sentences.append(f"{card}: {_joined(limited)}.")
    saved = [f"{saving.method} {_range(saving)}" for saving in found.savings]
    if saved:
        sentences.append(f"Against {section.rows[0]}, memory ({origin}) changes by: {_joined(saved)}.")
    reached = [text for reach in found.reaches if (text := _reach_text(reach, section, names))]
    if reached:
        sentences.append(f"{card}: {_joined(reached)}.")
    return sentences


def _joined(answers: Sequence[str]) -> str:
    """Return the answers as parts of one sentence, and how many more there are."""
    more = len(answers) - _MOST_ANSWERS
    return "; ".join(answers[:_MOST_ANSWERS]) + (f"; and {more:,} more: the table has them" if more > 0 else "")


def _limit_text(limit: Limit, names: Mapping[str, str]) -> str:
    which = f"{limit.method} of {names[limit.model]}" if limit.model in names else limit.method
    if limit.other_key is not None:
        which += f" with {limit.other_key}={', '.join(map(value_text, limit.other_values))}"
    if limit.fits is None:
        return f"{which} fits with no {limit.key}"
    return f"{which} fits up to {limit.key}={value_text(limit.fits)}" + (
        " (the highest tried)" if limit.reaches_end else ""
    )


def _range(saving: Saving) -> str:
    # A saving is a negative change.
    least, most = signed_percent(-saving.least_ratio), signed_percent(-saving.most_ratio)
    return least if least == most else f"{least} to {most}"


def _reach_text(reach: Reach, section: Section, names: Mapping[str, str]) -> str:
    if reach.fits is None:
        return f"{reach.method} fits with no model" if reach.fails else ""
    free = f", {gib_number(reach.headroom_bytes)} GiB free" if reach.headroom_bytes is not None else ""
    if reach.fails is None and reach.fits.model == section.models[-1]:
        return f"{reach.method} fits with every model ({names[reach.fits.model]}{free})"
    return f"{reach.method} fits up to {names[reach.fits.model]}{free}"


def cell_name(cell: Cell) -> str:
    """Return ``"LoRA + checkpointing, qwen2.5-7b"``."""
    return f"{cell.label}, {short_model(cell.model)}"


ENGINE_PEAKS = "vLLM on the GPU that trains: highest memory of the device in the rollout and in training"
"""What `engine_texts` lists."""


def engine_texts(peaks: VllmPeaks) -> tuple[str, str]:
    """Return the peak in the rollout and that in training: ``("25.9 GiB, 32.7 % of the card", ...)``."""
    sizes = (peaks.rollout_bytes, peaks.training_bytes)
    rollout, training = (f"{gib_number(size)} GiB, {percent(size / peaks.card_bytes)} of the card" for size in sizes)
    return rollout, training


def engine_lines(engines: Sequence[VllmPeaks]) -> list[str]:
    """Return a sentence per trial with vLLM, after one that says what they are; none without such a trial."""
    lines = []
    for peaks in engines[:_ENGINES_LISTED]:
        rollout, training = engine_texts(peaks)
        lines.append(f"{cell_name(peaks.cell)}: rollout {rollout}; training {training}.")
    more = len(engines) - _ENGINES_LISTED
    if more > 0:
        lines.append(f"and {more} more: phases.parquet has them.")
    return [f"{ENGINE_PEAKS}.", *lines] if lines else []


def group_text(group: LargestGroup) -> str:
    """Return ``"2.0 GiB: gradients, float32 128256x4096, gradient of lm_head.weight, made in backward by aten.mm"``."""
    count = f"{group.tensors} x " if group.tensors > 1 else ""
    tensor = " ".join(part for part in (f"{count}{group.dtype}", group.shape) if part)
    maker = f" by {group.operation}" if group.operation else ""
    parts = [group.category.replace("_", " "), tensor, group.what, f"made in {group.phase}{maker}"]
    return f"{gib_number(group.size_bytes)} GiB: " + ", ".join(part for part in parts if part.strip())


def legend(section: Section, *, mark: str, published_mark: str) -> list[str]:
    """Return one sentence per mark that occurs in a comparison.

    Args:
        section: The comparison.
        mark: The mark of an estimate, ``"~"``.
        published_mark: The mark of a published figure.
    """
    if section.setting.origin is None:
        return ["ok (CPU): the job ran on the CPU to its end; GPU memory is unknown there."]
    origin = origin_word(section.setting)
    lines = [f"GiB (2^30 bytes) of peak allocated memory, {origin}."]
    if section.setting.origin is Origin.EMULATED:
        lines.append(f"emulated: read from torch's counters on an emulated driver. Not included: {NOT_EMULATED}.")
    ran_out = [cell for cell in section.cells.values() if cell.status is Status.OOM]
    if any(cell.result_bytes is not None for cell in ran_out):
        lines.append(f"OOM n: out of memory; it needs n GiB ({origin} with unlimited memory).")
    elif ran_out:
        lines.append("OOM: out of memory; what it needs is unknown.")
    if section.has_estimates:
        lines.append(f"{mark}n e%: estimated in closed form, with the error relative to the {origin} value.")
    if section.published:
        where = section.published[0].where
        lines.append(f"{published_mark}n: published, unit as printed (GB or GiB is not stated). {where}.")
    return lines


RankedTrials: TypeAlias = Sequence[tuple[TrialRecord, Sequence[int | None]]]
"""The record of each trial, and the peaks of its ranks; None where a rank has no record or no peak."""

RANKS = "Ranks"
"""Title of the table."""

RANKS_NOTE = "Peak of allocated memory of each GPU, by rank"

_MOST_LINES = 20


@dataclass(frozen=True, kw_only=True)
class RankTable:
    """The peaks of ranks, as the texts of a table."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: str
    """The sentence about rows that are not shown; empty if all are."""


def rank_table(trials: RankedTrials) -> RankTable | None:
    """Return a row per trial with the peak of each rank, in order; None if no trial has records of ranks."""
    if not trials:
        return None
    ranks = max(len(sizes) for _, sizes in trials)
    return RankTable(
        header=("trial", *(f"rank {rank}" for rank in range(ranks))),
        rows=tuple(
            (_trial_name(record), *map(_size, sizes), *[""] * (ranks - len(sizes)))
            for record, sizes in trials[:MOST_ROWS]
        ),
        more=more_rows(len(trials), "their records are in ranks/"),
    )


def rank_lines(trials: RankedTrials) -> list[str]:
    """Return a line per trial with the peak of allocated memory of each rank, in order; the last counts the others."""
    lines = [f"  {_trial_name(record)}: {', '.join(map(_size, sizes))}" for record, sizes in trials[:_MOST_LINES]]
    if len(trials) > _MOST_LINES:
        lines.append(f"  {len(trials) - _MOST_LINES} more trials have records of ranks.")
    return [f"{RANKS_NOTE}:", *lines] if lines else []


def _trial_name(record: TrialRecord) -> str:
    return f"{short_model(record.spec.model)}, {record.label}"


def _size(size: int | None) -> str:
    return gib_text(size) if size is not None else "no record"
