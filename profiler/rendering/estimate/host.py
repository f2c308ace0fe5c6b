"""The memory of a node's host: the verdict as a sentence, the phases as a table, and all of it as JSON."""

from profiler.analytical.explanation.explained import Fit, HostVerdict
from profiler.domain.memory import Origin, gib_text
from profiler.rendering.document import Align, Cell, Column, Row, Section, Table
from profiler.rendering.memory_words import CATEGORY_TITLES, gib_number

PHASE_COLUMNS = (
    Column(title="phase", align=Align.LEFT, width=18),
    Column(title="GiB", width=9),
    Column(title="instant, or what the category is made of", align=Align.LEFT),
)


HOST_NOTE = (
    "The host: libraries are as in 60 trials on one NVIDIA H200, what DeepSpeed offloads is as in its own buffers on a "
    "CPU; pages of files and NCCL's shared memory are left out."
)


def is_shown(host: HostVerdict | None) -> bool:
    """Return whether an answer has the host: a verdict was asked for, several processes share it, or it is used."""
    return host is not None and (host.fit is not None or host.processes > 1 or host.is_offloaded)


def host_text(host: HostVerdict | None) -> str:
    """Return the verdict for the host, or its memory if several processes share it or something is offloaded."""
    if host is None:
        return ""
    least, most = gib_text(host.least_bytes), gib_text(host.most_bytes)
    processes = "1 process" if host.processes == 1 else f"{host.processes} processes"
    whole = gib_text(host.memory_bytes or 0)
    where = f"{processes}, in {host.peak.phase}"
    match host.fit:
        case Fit.FITS:
            return f"Host memory: fits, {least} to {most} of {whole} for {where}."
        case Fit.TIGHT:
            return f"Host memory: tight, {least} to {most} of {whole} for {where}."
        case Fit.TOO_LARGE:
            missing = gib_text(host.least_bytes - (host.memory_bytes or 0))
            return f"Host memory: does not fit, at least {least}, {missing} more than {whole}, for {where}."
    return f"Host memory of a node: {least} to {most} for {where}." if is_shown(host) else ""


def host_table(host: HostVerdict) -> Section:
    """Return the memory of the host by phase and category, and what may be added."""
    rows: list[Row] = []
    for instant in host.instants:
        most = gib_text(instant.most_bytes)
        rows.append((instant.phase.value, gib_number(instant.least_bytes), f"{instant.name}; at most {most}"))
        for part in instant.parts:
            title = Cell(text=f"{'+ ' if part.may_be else ''}{CATEGORY_TITLES[part.category]}", is_part=True)
            times = "" if part.processes == 1 else f"{part.processes} x: "
            rows.append((title, gib_number(part.size_bytes), f"{times}{part.words}"))
    return Section("On the host, of one node (+: may be added):", [Table(PHASE_COLUMNS, rows, has_titles=False)])


def host_object(host: HostVerdict) -> dict[str, object]:
    """Return the verdict and the phases; sizes are integers of bytes."""
    return {
        "origin": Origin.ESTIMATED.value,
        "how_wrong": HOST_NOTE,
        "processes": host.processes,
        "memory_bytes": host.memory_bytes,
        "verdict": None if host.fit is None else host.fit.value,
        "least_bytes": host.least_bytes,
        "most_bytes": host.most_bytes,
        "phases": [
            {
                "phase": instant.phase.value,
                "moment": instant.name.value,
                "process_bytes": instant.process_bytes,
                "least_bytes": instant.least_bytes,
                "most_bytes": instant.most_bytes,
                "categories": [
                    {
                        "category": part.category.value,
                        "bytes": part.size_bytes,
                        "processes": part.processes,
                        "may_be_added": part.may_be,
                        "formula": part.words,
                    }
                    for part in instant.parts
                ],
            }
            for instant in host.instants
        ],
    }
