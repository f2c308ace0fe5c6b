"""How settings, cells and errors read, wherever they are shown: one wording for terminal, page and figures."""

from collections.abc import Mapping, Sequence

from profiler.analysis.acceptance import Threshold
from profiler.analysis.accuracy import Accuracy
from profiler.analysis.answers import Limit, Reach, Saving, limits, reaches, savings, spans
from profiler.analysis.cards import headroom_bytes
from profiler.analysis.cells import Cell, Setting
from profiler.analysis.comparison import Section
from profiler.analysis.matrix import Matrix
from profiler.analysis.peaks import LargestGroup
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.memory import Origin
from profiler.domain.outcome import Status
from profiler.domain.units import as_gib, gib_text
from profiler.rendering.memory_words import CATEGORY_TITLES as CATEGORY_TITLES
from profiler.rendering.memory_words import gib_number as gib_number

_ORIGIN_VERBS = {Origin.MEASURED: "Measured on", Origin.SIMULATED: "Simulated on"}

_MODEL_CHARACTERS = 24


def setting_title(setting: Setting) -> str:
    """``"Simulated on NVIDIA H100 80GB HBM3 (79.1 GiB)"``."""
    if setting.origin is None:
        return "Run on the CPU (no GPU figures)"
    memory = f" ({gib_text(setting.memory_bytes)})" if setting.memory_bytes is not None else ""
    return f"{_ORIGIN_VERBS[setting.origin]} {setting.card or 'a card that was never read'}{memory}"


def origin_word(setting: Setting) -> str:
    """``"simulated"``, ``"measured"``, or ``"run on the CPU"``."""
    return setting.origin.value if setting.origin else "run on the CPU"


def versions_text(setting: Setting) -> str:
    """``"torch 2.13.0, trl 1.16.0, …"``."""
    return ", ".join(f"{package} {version}" for package, version in setting.versions)


def short_model(model: str) -> str:
    """A model's name for a narrow column: the last part of a path or hub id, cut at its end if it is long."""
    name = model.rstrip("/").rsplit("/", maxsplit=1)[-1]
    return name if len(name) <= _MODEL_CHARACTERS else name[: _MODEL_CHARACTERS - 1] + "…"


def short_models(models: tuple[str, ...]) -> dict[str, str]:
    """The name of each model for a narrow column; whole where two would read the same."""
    short = [short_model(model) for model in models]
    return {model: name if short.count(name) == 1 else model for model, name in zip(models, short, strict=True)}


def column_names(table: Matrix) -> dict[str, str]:
    """What stands above each column: the model's short name, or the value of the key across."""
    if table.key is None:
        return short_models(table.columns)
    return {value: value for value in table.columns}


def corner(table: Matrix) -> str:
    """What stands above the rows: ``"method"``, or ``"method; across: max_completion_length"``."""
    return "method" if table.key is None else f"method; across: {table.key}"


def result_text(cell: Cell) -> str:
    """``"38.2"``, ``"OOM 109.3"`` (what it needs), ``"OOM"``, ``"ok (CPU)"``, or the word of another status."""
    if cell.status is Status.OK:
        if cell.peak_allocated_bytes is not None:
            return gib_number(cell.peak_allocated_bytes)
        return "ok (CPU)" if cell.setting.origin is None else "ok"
    if cell.status is Status.OOM:
        return "OOM" if cell.result_bytes is None else f"OOM {gib_number(cell.result_bytes)}"
    return cell.status.value.replace("_", " ")


def needs_text(cell: Cell) -> str:
    """What a cell that ran out of memory needs.

    ``"needs 109.3 GiB, 110.9 with fragmentation and context, 31.8 more than there is"``; fragmentation are the free
    parts of segments that are in use.

    Empty if it is not known.
    """
    if cell.status is not Status.OOM or cell.result_bytes is None:
        return ""
    needs = f"needs {gib_text(cell.result_bytes)}"
    if cell.required_device_bytes is not None:
        needs += f", {gib_number(cell.required_device_bytes)} with fragmentation and context"
    return needs + (f", {gib_number(cell.missing_bytes)} more than there is" if cell.missing_bytes is not None else "")


def estimate_text(cell: Cell, prefix: str) -> str:
    """``"est 37.0 -3%"``: the estimate in GiB and its error; empty without one."""
    if cell.estimated_bytes is None or cell.setting.origin is None:
        return ""
    error = cell.estimate_error_ratio
    return f"{prefix}{gib_number(cell.estimated_bytes)}" + (f" {signed_percent(error)}" if error is not None else "")


def published_text(cell: Cell) -> str:
    """``"38 GB"`` as printed by its source, ``"OOM"``, or empty."""
    figure = cell.published
    if figure is None:
        return ""
    return "OOM" if figure.is_out_of_memory else f"{figure.printed} {figure.unit}"


def signed_percent(ratio: float) -> str:
    """0.031 as ``"+3%"``; what rounds to nothing as ``"0%"``."""
    text = f"{ratio:+.0%}"
    return "0%" if text in ("+0%", "-0%") else text


def percent(ratio: float) -> str:
    """0.031 as ``"3.1 %"``."""
    return f"{100 * ratio:.1f} %"


def accuracy_text(accuracy: Accuracy) -> str:
    """``"estimate: median error 3.1 %, 95th percentile 9.0 %, worst +12% (LoRA, qwen2.5-7b)"``."""
    worst = f"{signed_percent(accuracy.worst_error_ratio)} ({cell_name(accuracy.worst)})"
    return (
        f"{accuracy.of}: median error {percent(accuracy.median_ratio)}, "
        f"95th percentile {percent(accuracy.p95_ratio)}, worst {worst}"
    )


def short_card(card: str) -> str:
    """Our name of a card, as in `gpu=`; the maker's if it has none."""
    return next((gpu.name for gpu in KNOWN_GPUS.values() if gpu.title == card), card)


def headroom_text(cell: Cell | None) -> str:
    """What the card has to spare in GiB, ``"+14.5"``, or lacks, ``"-3.2"``; a word where it is not known."""
    if cell is None:
        return "·"
    room = headroom_bytes(cell)
    if room is not None:
        return f"{as_gib(room):+.1f}"
    return {Status.OK: "fits", Status.OOM: "OOM"}.get(cell.status, cell.status.value)


HEADROOM_LEGEND = "GiB to spare (+) or lacking (-), beside CUDA's context and what torch's allocator cannot give back."
"""What the numbers of a table of cards mean."""


def threshold_text(threshold: Threshold, value: float | None) -> str:
    """What a threshold allows or what was found: ``"1.0 %"``, ``"0 trials"``, or ``"not yet measured"``."""
    if value is None:
        return "not yet measured"
    return f"{value:.0f} trials" if threshold.counts_trials else percent(value)


def thresholds_text(thresholds: Sequence[Threshold]) -> str:
    """All thresholds in a line: ``"Simulation against a real card: not yet measured."``, or those that do not hold."""
    known = [threshold for threshold in thresholds if threshold.found is not None]
    if not known:
        return "Simulation against a real card: not yet measured."
    broken = [
        f"{threshold.claim} {threshold_text(threshold, threshold.found)}" for threshold in known if not threshold.holds
    ]
    said = f"does not hold: {'; '.join(broken)}" if broken else f"all of {len(known)} acceptance thresholds hold"
    return f"Simulation against a real card: {said}."


def answer_sentences(section: Section) -> list[str]:
    """What the section says, in a few sentences: savings, how far each method goes, what a key costs."""
    origin, names = origin_word(section.setting), short_models(section.models)
    limited = limits(section)
    if limited:
        return [f"On {gib_text(section.setting.memory_bytes or 0)}: {'; '.join(map(_limit_text, limited))}."]
    found = [
        f"{span.method} of {names[span.model]}: {gib_number(span.least[1])} GiB with {span.key}={span.least[0]}, "
        f"{gib_number(span.most[1])} with {span.key}={span.most[0]}."
        for span in spans(section)
    ]
    saved = [f"{saving.method} {_range(saving)}" for saving in savings(section)]
    if saved:
        found.append(f"Against {section.rows[0]}, memory ({origin}) changes by: {'; '.join(saved)}.")
    reached = [text for reach in reaches(section) if (text := _reach_text(reach, section, names))]
    if reached:
        found.append(f"On {gib_text(section.setting.memory_bytes or 0)}: {'; '.join(reached)}.")
    return found


def _limit_text(limit: Limit) -> str:
    which = f"{limit.method} with {limit.keys[0]}={', '.join(limit.values)}"
    if limit.fits is None:
        return f"{which} fits with no {limit.keys[1]}"
    return f"{which} fits up to {limit.keys[1]}={limit.fits}" + (" (the highest tried)" if limit.reaches_end else "")


def _range(saving: Saving) -> str:
    # What is saved comes off, so the most saved is the lowest number.
    least, most = signed_percent(-saving.least), signed_percent(-saving.most)
    return least if least == most else f"{least} to {most}"


def _reach_text(reach: Reach, section: Section, names: Mapping[str, str]) -> str:
    if reach.fits is None:
        return f"{reach.method} fits with no model" if reach.fails else ""
    room = f", {gib_number(reach.headroom_bytes)} GiB to spare" if reach.headroom_bytes is not None else ""
    if reach.fails is None and reach.fits.model == section.models[-1]:
        return f"{reach.method} fits with every model ({names[reach.fits.model]}{room})"
    return f"{reach.method} fits up to {names[reach.fits.model]}{room}"


def cell_name(cell: Cell) -> str:
    """``"LoRA + checkpointing, qwen2.5-7b"``."""
    return f"{cell.label}, {short_model(cell.model)}"


def group_text(group: LargestGroup) -> str:
    """``"2.0 GiB: gradients, float32 128256x4096, gradient of lm_head.weight, made in backward by aten.mm"``."""
    count = f"{group.tensors} x " if group.tensors > 1 else ""
    tensor = " ".join(part for part in (f"{count}{group.dtype}", group.shape) if part)
    maker = f" by {group.operation}" if group.operation else ""
    parts = [group.category.replace("_", " "), tensor, group.what, f"made in {group.phase}{maker}"]
    return f"{gib_number(group.size_bytes)} GiB: " + ", ".join(part for part in parts if part.strip())


def legend(section: Section, *, mark: str, published_mark: str) -> list[str]:
    """What the marks in a comparison mean, only those that occur in it, a sentence each.

    Args:
        section: The comparison.
        mark: How an estimate is marked, ``"~"``.
        published_mark: How a published figure is marked.
    """
    if section.setting.origin is None:
        return ["ok (CPU): the job ran on the CPU to its end; GPU memory is not known there."]
    origin = origin_word(section.setting)
    lines = [f"GiB (2^30 bytes) of peak allocated memory, {origin}."]
    ran_out = [cell for cell in section.cells.values() if cell.status is Status.OOM]
    if any(cell.result_bytes is not None for cell in ran_out):
        lines.append(f"OOM n: out of memory; it needs n GiB ({origin} with unlimited memory).")
    elif ran_out:
        lines.append("OOM: out of memory; what it would need is not known.")
    if section.has_estimates:
        lines.append(f"{mark}n e%: estimated in closed form, and its error against what is {origin}.")
    if section.published:
        where = section.published[0].where
        lines.append(f"{published_mark}n: published, unit as printed (GB or GiB is not said). {where}.")
    return lines
