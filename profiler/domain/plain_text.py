"""Foreign text for a terminal: names, messages of workers, and contents of files that others wrote."""

import re

_INTERPRETED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, changes of the direction of writing, and halves of surrogate pairs."""


def plain(text: str) -> str:
    r"""Return `text` with characters that a terminal would interpret as escapes: ``\x1b``.

    A sequence of such characters can colour or clear the screen, overwrite a line, or write to the clipboard.
    """
    return _INTERPRETED.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
