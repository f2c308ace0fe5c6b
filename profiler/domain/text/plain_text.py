"""Foreign text of several lines for a terminal: names, messages of workers, and contents of files that others wrote."""

import re

from profiler.domain.errors import printable

_LINE = re.compile("[^\n\t]+")


def plain(text: str) -> str:
    r"""Return `text` with characters that a terminal would interpret as escapes: ``\x1b``.

    A sequence of such characters can colour or clear the screen, overwrite a line, or write to the clipboard. Line
    breaks and tabs stay.
    """
    return text if text.isprintable() else _LINE.sub(lambda found: printable(found[0]), text)
