"""The terminal, as rich writes to it."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from profiler.domain.plain_text import plain


class TerminalConsole(Console):
    """A console that shows control characters in text as escapes. Colours and movements of rich itself are kept."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render to segments."""
        for segment in super().render(_escaped(renderable), options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))


def _escaped(renderable: RenderableType) -> RenderableType:
    """Escape text before it is wrapped, because escapes are longer. Escaped text loses the styles of its parts."""
    if isinstance(renderable, Text) and (escaped := plain(renderable.plain)) != renderable.plain:
        return renderable.blank_copy(escaped)
    return renderable
