"""The GPUs of a machine for a terminal of 80 columns or more: memory, load, processes and advice."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from profiler.analysis.gpu_advice import FULL_SHARE, gpu_advice
from profiler.domain.memory import as_gib, gib_text
from profiler.domain.runs.readings import GpuProcessState, GpuState, LiveCounters
from profiler.domain.text import plain

_BAR_WIDTH = 24
_BLOCKS = "▁▂▃▄▅▆▇█"
_LONGEST_HISTORY = 24
_MODERATE_SHARE = 0.6
_STYLES = {"full": "bold red", "moderate": "yellow", "free": "green"}
_UNKNOWN = "?"
_INDENT = 4
_PID_WIDTH, _SIZE_WIDTH = 12, 7


@dataclass(frozen=True, kw_only=True)
class Span:
    """A text with the style that rich has for it."""

    text: str
    style: str = ""


@dataclass(frozen=True, kw_only=True)
class PanelLine:
    """One line of the panel, which a terminal may have to break."""

    spans: tuple[Span, ...]
    indent: int = 0
    is_cut: bool = False
    """Whether the end is left out where the line is too long."""

    @property
    def text(self) -> str:
        """The line without styles and indent."""
        return "".join(span.text for span in self.spans)


def gpu_panel(gpus: Sequence[GpuState], history: Mapping[str, Sequence[float]] | None = None) -> tuple[PanelLine, ...]:
    """Return all GPUs; `history` has shares of used memory by UUID, the oldest first."""
    lines: list[PanelLine] = []
    for gpu in gpus:
        lines += [*_head(gpu, (history or {}).get(gpu.uuid, ())), *_processes(gpu)]
        lines += [_line(line, "yellow", indent=_INDENT) for line in gpu_advice(gpu)]
    return tuple(lines)


def plain_lines(panel: Sequence[PanelLine], width: int) -> Iterator[str]:
    """Yield the lines of a panel without styles, none longer than `width`."""
    for line in panel:
        columns = width - line.indent
        text = plain(line.text)
        if line.is_cut:
            shown = [text if len(text) <= columns else f"{text[: columns - 1]}…"]
        else:
            shown = wrap(text, columns, break_on_hyphens=False)
        yield from (f"{' ' * line.indent}{each}".rstrip() for each in shown)


def _line(text: str, style: str = "", *, indent: int = 0, is_cut: bool = False) -> PanelLine:
    return PanelLine(spans=(Span(text=text, style=style),), indent=indent, is_cut=is_cut)


def _head(gpu: GpuState, shares: Sequence[float]) -> list[PanelLine]:
    capability = "" if gpu.compute_capability is None else f", compute capability {_version(gpu.compute_capability)}"
    title = _line(f"{gpu.index:>2}  {gpu.name}{capability}", "bold")
    if gpu.problem:
        return [title, _line(f"cannot be read: {gpu.problem}", "bold red", indent=_INDENT)]
    percent = "" if gpu.used_share is None else f" ({100 * gpu.used_share:.0f} %)"
    memory = (
        Span(text=" " * _INDENT),
        *_bar(gpu.used_share),
        Span(text=f"  {_gib(gpu.used_bytes)} of {gib_text(gpu.total_bytes)} used"),
        Span(text=percent, style=_style(gpu.used_share)),
        Span(text=f", {_gib(gpu.free_bytes)} free"),
    )
    load = Span(
        text=f"{' ' * _INDENT}utilisation {_unit(gpu.utilisation_percent, ' %')}, power "
        f"{_unit(gpu.power_watts, ' W')}, {_unit(gpu.temperature_celsius, ' °C')}"
    )
    so_far = (Span(text=f"  memory so far {sparkline(shares)}", style="dim"),) if shares else ()
    return [title, PanelLine(spans=memory), PanelLine(spans=(load, *so_far))]


def _processes(gpu: GpuState) -> list[PanelLine]:
    if not gpu.processes:
        return []
    lines = [_line(f"{'process':>{_PID_WIDTH}}{'GiB':>{_SIZE_WIDTH}}  command", "dim")]
    for one in gpu.processes:
        size = _UNKNOWN if one.used_bytes is None else f"{as_gib(one.used_bytes):.1f}"
        command = one.command or "(not visible here)"
        lines.append(_line(f"{one.pid:>{_PID_WIDTH}}{size:>{_SIZE_WIDTH}}  {command}", is_cut=True))
        if one.counters is not None:
            lines.append(_line(counters_text(one.counters), "cyan", indent=_PID_WIDTH + _SIZE_WIDTH + 2))
    return lines


def counters_text(counters: LiveCounters) -> str:
    """Return what a profiled process has published, in one line."""
    where = "" if counters.phase is None else f"{counters.phase}, step {counters.step}; "
    return (
        f"{where}{gib_text(counters.allocated_bytes)} in tensors, {gib_text(counters.reserved_bytes)} "
        f"reserved; {counters.alloc_retries:,} retries, out of memory {counters.out_of_memory:,} times"
    )


def sparkline(shares: Sequence[float]) -> str:
    """Return the last values of `shares`, each from 0 to 1, as one character each."""
    last = shares[-_LONGEST_HISTORY:]
    highest = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(min(1.0, max(0.0, share)) * highest)] for share in last)


def _bar(share: float | None) -> tuple[Span, Span]:
    filled = round((share or 0.0) * _BAR_WIDTH)
    return Span(text="█" * filled, style=_style(share)), Span(
        text="░" * (_BAR_WIDTH - filled), style=f"dim {_style(share)}"
    )


def _style(share: float | None) -> str:
    if share is None or share <= _MODERATE_SHARE:
        return _STYLES["free"]
    return _STYLES["full"] if share > FULL_SHARE else _STYLES["moderate"]


def _gib(size_bytes: int | None) -> str:
    return _UNKNOWN if size_bytes is None else gib_text(size_bytes)


def _unit(value: float | None, unit: str) -> str:
    return _UNKNOWN if value is None else f"{value:.0f}{unit}"


def _version(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def gpus_content(gpus: Sequence[GpuState]) -> list[dict[str, object]]:
    """Return the GPUs as values of JSON. Sizes are integers of bytes; null means that the driver does not report it."""
    return [
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "name": gpu.name,
            "compute_capability": None if gpu.compute_capability is None else _version(gpu.compute_capability),
            "total_bytes": gpu.total_bytes,
            "used_bytes": gpu.used_bytes,
            "free_bytes": gpu.free_bytes,
            "utilisation_percent": gpu.utilisation_percent,
            "power_watts": gpu.power_watts,
            "temperature_celsius": gpu.temperature_celsius,
            "processes": [_process_content(one) for one in gpu.processes],
            "advice": list(gpu_advice(gpu)),
            "problem": gpu.problem,
        }
        for gpu in gpus
    ]


def _process_content(one: GpuProcessState) -> dict[str, object]:
    counters = one.counters
    return {
        "pid": one.pid,
        "command": one.command,
        "used_bytes": one.used_bytes,
        "profiled": None
        if counters is None
        else {
            "what": counters.what,
            "phase": counters.phase,
            "step": counters.step,
            "allocated_bytes": counters.allocated_bytes,
            "reserved_bytes": counters.reserved_bytes,
            "alloc_retries": counters.alloc_retries,
            "out_of_memory": counters.out_of_memory,
        },
    }
