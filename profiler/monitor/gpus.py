"""The GPUs on the terminal: once, or again and again until the user ends it."""

import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from profiler.command_line import Interrupted, readable
from profiler.config.options.option import OutputFormat
from profiler.domain.errors import Fault, UsageError
from profiler.domain.machines.extras import missing
from profiler.domain.runs.readings import GpuState
from profiler.measurement.driver.nvml import Nvml
from profiler.measurement.driver.pynvml_driver import PynvmlDriver
from profiler.measurement.driver.visible import GpuReader, VisibleGpus, visible_gpus
from profiler.monitor.command import MonitorOptions
from profiler.rendering.layouts.plain_text import json_text
from profiler.rendering.live.gpu_panel import PanelLine, gpu_panel, gpus_content, plain_lines
from profiler.storage.files.live_counters import live_folder, published

if TYPE_CHECKING:  # The bare distribution has no rich.
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

_MOST_SHARES = 1000


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The driver of this machine, and the time between two readings."""

    visible: Callable[[], VisibleGpus] = visible_gpus
    nvml: Callable[[], Nvml] = PynvmlDriver
    wait: Callable[[float], None] = time.sleep


def show_gpus(options: MonitorOptions, machine: Machine) -> None:
    """Show the GPUs once, or with `watch` until the user interrupts it or nobody reads it.

    Raises:
        UsageError: There is no GPU.
    """
    visible = machine.visible()
    if not visible.gpus:
        hint = "A GPU with NVIDIA's driver is needed; python -m profiler.estimate needs none."
        raise UsageError([Fault(key="gpu", found="none", problem=visible.note, hint=hint)])
    reader = GpuReader(visible.gpus, machine.nvml())
    shows = (
        _Json(one_line=options.watch_s is not None)
        if options.output_format is OutputFormat.JSON
        else _Panel(shown=_shown())
    )
    try:
        with shows.session(again=options.watch_s is not None):
            while shows.show(reader.read(published(live_folder()))) and options.watch_s is not None:
                machine.wait(options.watch_s)
    except Interrupted as end:
        if options.watch_s is None or end.number is not signal.SIGINT:
            raise


class _Json:
    """The GPUs as JSON."""

    def __init__(self, *, one_line: bool) -> None:
        self._is_one_line = one_line

    def session(self, *, again: bool) -> AbstractContextManager[object]:  # noqa: ARG002
        """Return a context in which the GPUs are shown."""
        return nullcontext()

    def show(self, gpus: Sequence[GpuState]) -> bool:
        """Print the GPUs, and return whether somebody reads them."""
        text = json_text({"gpus": gpus_content(gpus)}, in_one_line=self._is_one_line)
        return _is_read(lambda: print(text, end="", flush=True))  # noqa: T201  print_text does not say whether it is read


class _Shown(Protocol):
    """Where a panel is shown."""

    def session(self, *, again: bool) -> AbstractContextManager[object]:
        """Return a context in which the GPUs are shown."""

    def show(self, panel: Sequence[PanelLine]) -> None:
        """Print the GPUs."""


class _Plain:
    """The GPUs without rich: no colours, and each reading after the last."""

    def session(self, *, again: bool) -> AbstractContextManager[object]:  # noqa: ARG002
        """Return a context in which the GPUs are shown."""
        return nullcontext()

    def show(self, panel: Sequence[PanelLine]) -> None:
        """Print the GPUs."""
        width = shutil.get_terminal_size().columns
        print(*plain_lines(panel, width), sep="\n", flush=True)  # noqa: T201  print_text does not say whether it is read


def _terminal() -> "Console":
    from profiler.rendering.layouts.terminal import TerminalConsole

    return TerminalConsole()


@dataclass
class StyledPanel:
    """The GPUs in place of the last ones where the terminal allows it."""

    console: "Console" = field(default_factory=_terminal)
    live: "Live | None" = None

    def session(self, *, again: bool) -> AbstractContextManager[object]:
        """Return a context in which the GPUs are shown."""
        if not again or not self.console.is_terminal:
            return nullcontext()
        from rich.live import Live

        self.live = Live(console=self.console, auto_refresh=False)
        return self.live

    def show(self, panel: Sequence[PanelLine]) -> None:
        """Print the GPUs."""
        if self.live is None:
            self.console.print(styled(panel))
        else:
            self.live.update(styled(panel), refresh=True)


def styled(panel: Sequence[PanelLine]) -> "Group":
    """Return a panel as rich prints it."""
    from rich.console import Group
    from rich.padding import Padding

    return Group(*(Padding(_text(line), (0, 0, 0, line.indent)) if line.indent else _text(line) for line in panel))


def _text(line: PanelLine) -> "Text":
    from rich.text import Text

    # With one style, a text keeps it where control characters are escaped.
    first, *others = line.spans
    text = Text(
        first.text, style=first.style, no_wrap=line.is_cut or None, overflow="ellipsis" if line.is_cut else None
    )
    for span in others:
        text.append(span.text, style=span.style)
    return text


def _shown() -> _Shown:
    if missing(["rich"]):
        return _Plain()
    return StyledPanel()


@dataclass
class _Panel:
    """The GPUs as text, with the memory so far."""

    shown: _Shown
    shares: dict[str, list[float]] = field(default_factory=dict)

    def session(self, *, again: bool) -> AbstractContextManager[object]:
        """Return a context in which the GPUs are shown."""
        return self.shown.session(again=again)

    def show(self, gpus: Sequence[GpuState]) -> bool:
        """Print the GPUs, and return whether somebody reads them."""
        for gpu in gpus:
            shares = self.shares.setdefault(gpu.uuid, [])
            shares.append(gpu.used_share or 0.0)
            del shares[:-_MOST_SHARES]
        panel = gpu_panel(gpus, self.shares if len(self.shares[gpus[0].uuid]) > 1 else None)
        return _is_read(lambda: self.shown.show(panel))


def _is_read(write: Callable[[], None]) -> bool:
    """Write to standard output, and return whether it is still read."""
    written = []
    with readable():
        write()
        written.append(True)
    return bool(written)
