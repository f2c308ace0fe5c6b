"""The GPUs of a machine for a terminal of 80 columns or more: memory, load, processes and advice."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from profiler.analysis.gpu_advice import FULL_SHARE, gpu_advice
from profiler.domain.gpu_state import GpuProcessState, GpuState, LiveCounters
from profiler.domain.units import as_gib, gib_text

_BAR_WIDTH = 24
_BLOCKS = "▁▂▃▄▅▆▇█"
_LONGEST_HISTORY = 24
_MODERATE_SHARE = 0.6
_STYLES = {"full": "bold red", "moderate": "yellow", "free": "green"}
_UNKNOWN = "?"
_INDENT = 4
_PID_WIDTH, _SIZE_WIDTH = 12, 7


def gpu_panel(gpus: Sequence[GpuState], history: Mapping[str, Sequence[float]] | None = None) -> RenderableType:
    """Return all GPUs; `history` has shares of used memory by UUID, the oldest first."""
    parts: list[RenderableType] = []
    for gpu in gpus:
        parts += [*_head(gpu, (history or {}).get(gpu.uuid, ())), *_processes(gpu)]
        parts += [Padding(Text(line, style="yellow"), (0, 0, 0, _INDENT)) for line in gpu_advice(gpu)]
    return Group(*parts)


def _head(gpu: GpuState, shares: Sequence[float]) -> list[RenderableType]:
    capability = "" if gpu.compute_capability is None else f", compute capability {_version(gpu.compute_capability)}"
    title = Text(f"{gpu.index:>2}  {gpu.name}{capability}", style="bold")
    if gpu.problem:
        return [title, Padding(Text(f"cannot be read: {gpu.problem}", style="bold red"), (0, 0, 0, _INDENT))]
    memory = Text(" " * _INDENT)
    memory.append_text(_bar(gpu.used_share))
    memory.append(f"  {_gib(gpu.used_bytes)} of {gib_text(gpu.total_bytes)} used")
    memory.append("" if gpu.used_share is None else f" ({100 * gpu.used_share:.0f} %)", style=_style(gpu.used_share))
    memory.append(f", {_gib(gpu.free_bytes)} free")
    load = Text(
        f"{' ' * _INDENT}utilisation {_unit(gpu.utilisation_percent, ' %')}, power {_unit(gpu.power_watts, ' W')}, "
        f"{_unit(gpu.temperature_celsius, ' °C')}"
    )
    if shares:
        load.append(f"  memory so far {sparkline(shares)}", style="dim")
    return [title, memory, load]


def _processes(gpu: GpuState) -> list[RenderableType]:
    if not gpu.processes:
        return []
    lines: list[RenderableType] = [Text(f"{'process':>{_PID_WIDTH}}{'GiB':>{_SIZE_WIDTH}}  command", style="dim")]
    for one in gpu.processes:
        size = _UNKNOWN if one.used_bytes is None else f"{as_gib(one.used_bytes):.1f}"
        command = one.command or "(not visible here)"
        line = f"{one.pid:>{_PID_WIDTH}}{size:>{_SIZE_WIDTH}}  {command}"
        lines.append(Text(line, no_wrap=True, overflow="ellipsis"))
        if one.counters is not None:
            text = Text(counters_text(one.counters), style="cyan")
            lines.append(Padding(text, (0, 0, 0, _PID_WIDTH + _SIZE_WIDTH + 2)))
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


def _bar(share: float | None) -> Text:
    filled = round((share or 0.0) * _BAR_WIDTH)
    bar = Text("█" * filled, style=_style(share))
    bar.append("░" * (_BAR_WIDTH - filled), style="dim")
    return bar


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
