"""The GPUs on a terminal with rich: in colour, and in place of the last reading."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from profiler.rendering.layouts.terminal import TerminalConsole
from profiler.rendering.live.gpu_panel import PanelLine


@dataclass
class StyledPanel:
    """The GPUs in place of the last ones where the terminal allows it."""

    console: Console = field(default_factory=TerminalConsole)
    live: Live | None = None

    def session(self, *, again: bool) -> AbstractContextManager[object]:
        """Return a context in which the GPUs are shown."""
        if not again or not self.console.is_terminal:
            return nullcontext()
        self.live = Live(console=self.console, auto_refresh=False)
        return self.live

    def show(self, panel: Sequence[PanelLine]) -> None:
        """Print the GPUs."""
        if self.live is None:
            self.console.print(styled(panel))
        else:
            self.live.update(styled(panel), refresh=True)


def styled(panel: Sequence[PanelLine]) -> Group:
    """Return a panel as rich prints it."""
    return Group(*(Padding(_text(line), (0, 0, 0, line.indent)) if line.indent else _text(line) for line in panel))


def _text(line: PanelLine) -> Text:
    # With one style, a text keeps it where control characters are escaped.
    first, *others = line.spans
    text = Text(
        first.text, style=first.style, no_wrap=line.is_cut or None, overflow="ellipsis" if line.is_cut else None
    )
    for span in others:
        text.append(span.text, style=span.style)
    return text
