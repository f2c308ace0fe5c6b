r"""Values on a command line: one grammar for all commands, in place of YAML, which guesses types.

It is the grammar of Hydra's overrides (`hydra/grammar/OverrideLexer.g4` of Hydra 1.3), by which sweeps are written:

- a number is decimal: ``8``, ``-1``, ``1_000``, ``.5``, ``1e-3``. ``010``, ``0x10`` and ``1:30`` are texts, so that a
  key that takes a number refuses them;
- ``true`` and ``false``, ``null``, in small or large letters. ``yes``, ``on`` and ``~`` are texts;
- ``[a,b]`` is a list, ``{a:1}`` a mapping, and ``"4"`` or ``'4'`` a text;
- what is none of these is a text as it stands; ``\,`` in it is a comma.

Hydra refuses a plain text with any other character than ``/-\+.$%*@?|:``, digits and English letters; here it is read,
because names of files have such characters. A call such as ``range(1,9)`` belongs to sweeps.
"""

import re
from collections.abc import Callable

from profiler.domain.errors import Fault
from profiler.domain.memory import MIB

Value = None | bool | int | float | str | list["Value"] | dict["Value", "Value"]

MOST_DEPTH = 64
"""Most lists and mappings inside each other."""

MOST_CHARACTERS = 1 * MIB

_MOST_DIGITS = 1000
"""Longest number: Python needs quadratic time to convert longer ones."""

_UNSIGNED = r"(?:0|[1-9](?:_?[0-9])*)"
_POINT = rf"(?:{_UNSIGNED}\.|{_UNSIGNED}?\.[0-9](?:_?[0-9])*)"
_INT = re.compile(rf"[+-]?{_UNSIGNED}")
_FLOAT = re.compile(
    rf"[+-]?(?:(?:{_POINT}|{_UNSIGNED})[eE][+-]?[0-9](?:_?[0-9])*|{_POINT}|inf|nan)", re.ASCII | re.IGNORECASE
)
_WORDS = {"true": True, "false": False, "null": None}

_CALL = re.compile(r"[ \t]*[A-Za-z_][A-Za-z0-9_-]*[ \t]*\(")
_PLAIN = re.compile(r"(?:\$\{[^}]+\}|\\[\\()\[\]{}:=, \t]|[^,\[\]{}\"'])*", re.DOTALL)
"""Plain text up to what ends it: an interpolation, an escaped character, or any other."""
_KEY = re.compile(r"(?:\\[\\()\[\]{}:=, \t]|[^,\[\]{}\"':])*", re.DOTALL)
"""The key of a mapping: plain text up to a colon."""
_ESCAPED = re.compile(r"(\$\{[^}]+\})|\\([\\()\[\]{}:=, \t])")
_BLANK = " \t"
_QUOTED = {mark: re.compile(rf"{mark}((?:\\\\)*|.*?[^\\](?:\\\\)*){mark}", re.DOTALL) for mark in "\"'"}
_BACKSLASHES = {mark: re.compile(rf"\\+(?={mark}|$)") for mark in "\"'"}


class ValueTextError(ValueError):
    """A text that is no value; the message is the end of a sentence about it: "has a quote that is not closed"."""


class CallError(ValueTextError):
    """A text calls a function, as Hydra's overrides can."""


def read_value(text: str) -> Value:
    """Return the one value of ``"4"``, ``"1e-3"``, ``"true"``, ``"null"``, ``"[q_proj,v_proj]"`` or of a plain text.

    Raises:
        ValueTextError: It is no value, or several.
    """
    values = read_values(text)
    if len(values) > 1:
        raise ValueTextError("has a comma outside of brackets and quotes, and one value is needed")
    return values[0]


def read_values(text: str) -> tuple[Value, ...]:
    """Return the values between the commas of a text, of which there is at least one.

    Raises:
        ValueTextError: A part is no value.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueTextError(f"has {len(text):,} characters, and at most {MOST_CHARACTERS:,} are allowed")
    if not text.strip(_BLANK):
        return ("",)
    reading = _Reading(text)
    values = [reading.value()]
    while reading.take(","):
        values.append(reading.value())
    reading.end()
    return tuple(values)


def read_path(text: str) -> str | None:
    """Return the path, or another text that a key takes as it stands: without its quotes, and None for null."""
    text = text.strip()
    quoted = _QUOTED[text[0]].fullmatch(text) if text[:1] in _QUOTED else None
    if quoted is not None:
        return _unquoted(quoted[1], text[0])
    return None if text.lower() == "null" else text


def read_ratio(text: str) -> Value:
    """Return ``"5%"`` as 0.05, and any other text as `read_value` does.

    Raises:
        ValueTextError: It is no value.
    """
    number = read_value(text.rstrip(_BLANK).removesuffix("%"))
    if not text.rstrip(_BLANK).endswith("%"):
        return number
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return number / 100 if is_number else text  # type: ignore[operator]  # a number


def written(value: object) -> str:
    """Return a text that `read_value` and Hydra read as `value`."""
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{written_key(key)}:{written(item)}' for key, item in value.items())}}}"
    if isinstance(value, str):
        return '"' + re.sub(r'(\\*)(")|(\\+)$', _with_backslashes, value) + '"'
    return "null" if value is None else str(value).lower()


def written_key(key: object) -> str:
    """Return the text of a key of a mapping, which cannot be quoted."""
    return re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", key) if isinstance(key, str) else written(key)


def read_into(
    values: dict[str, object],
    key: str,
    text: str,
    faults: list[Fault],
    read: Callable[[str], object] = read_value,
) -> None:
    """Set the value of a key by its text; for a text that is no value add a fault, and leave the value."""
    try:
        values[key] = read(text)
    except ValueTextError as error:
        faults.append(unreadable(key, text, error))


def unreadable(key: str, text: str, error: ValueTextError) -> Fault:
    """Return the fault of a text that is no value."""
    hint = f"Quote what has special characters: '{key}=\"...\"'."
    if isinstance(error, CallError):
        hint = "List the values: 1,2,3."
    return Fault(key=key, found=text, problem=f"cannot be read as a value, because it {error}", hint=hint)


def _with_backslashes(found: re.Match[str]) -> str:
    r"""Escape a quote and the backslashes before it: ``\"`` becomes ``\\\"``."""
    return (found[1] * 2 + '\\"') if found[2] else found[3] * 2


def _unquoted(text: str, mark: str) -> str:
    """Return the text between quotes, where a backslash escapes a quote, and another backslash only before one."""
    return _BACKSLASHES[mark].sub(lambda found: found[0][1::2], text)


class _Reading:
    """A text that is read from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def take(self, mark: str) -> bool:
        """Skip blanks, and `mark` if it follows; return whether it does."""
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
        found = self._text.startswith(mark, self._at)
        self._at += len(mark) * found
        return found

    def end(self) -> None:
        """Check that nothing is left."""
        self.take("")
        if self._at < len(self._text):
            raise ValueTextError(f"has '{self._text[self._at]}' where a value has ended")

    def value(self) -> Value:
        """Return the value that follows."""
        if self.take("["):
            return self._inside(self._list)
        if self.take("{"):
            return self._inside(self._mapping)
        if self._text[self._at : self._at + 1] in _QUOTED:
            return self._quoted()
        if _CALL.match(self._text, self._at):
            raise CallError("calls a function, and only a sweep has functions")
        return self._plain(_PLAIN)

    def _inside(self, read: Callable[[], Value]) -> Value:
        if self._depth == MOST_DEPTH:
            raise ValueTextError(f"has values that are nested more than {MOST_DEPTH} deep")
        self._depth += 1
        found = read()
        self._depth -= 1
        return found

    def _list(self) -> Value:
        values: list[Value] = []
        while not self.take("]"):
            if values and not self.take(","):
                raise ValueTextError("has a list that is not closed")
            values.append(self.value())
        return values

    def _mapping(self) -> Value:
        values: dict[Value, Value] = {}
        while not self.take("}"):
            if values and not self.take(","):
                raise ValueTextError("has a mapping that is not closed")
            key = self._plain(_KEY)
            if not self.take(":"):
                raise ValueTextError("has a mapping without 'key:value'")
            values[key] = self.value()
        return values

    def _quoted(self) -> Value:
        mark = self._text[self._at]
        found = _QUOTED[mark].match(self._text, self._at)
        if found is None:
            raise ValueTextError(f"has a quote ({mark}) that is not closed")
        self._at = found.end()
        return _unquoted(found[1], mark)

    def _plain(self, pattern: re.Pattern[str]) -> Value:
        found = pattern.match(self._text, self._at)
        assert found is not None
        raw = self._stripped(found[0])
        if not raw:
            raise ValueTextError("has an empty part")
        self._at = found.end()
        if self._text[self._at : self._at + 1] in {*_QUOTED, "[", "{"}:
            raise ValueTextError(f"has '{self._text[self._at]}' within a text")
        return _scalar(raw)

    @staticmethod
    def _stripped(text: str) -> str:
        """Return plain text without blanks around it; one that is escaped stays."""
        whole = text.lstrip(_BLANK)
        found = whole.rstrip(_BLANK)
        backslashes = len(found) - len(found.rstrip("\\"))
        return found + whole[len(found) : len(found) + backslashes % 2]


def _scalar(raw: str) -> Value:
    """Return the value of plain text."""
    if raw.lower() in _WORDS:
        return _WORDS[raw.lower()]
    kind = int if _INT.fullmatch(raw) else float if _FLOAT.fullmatch(raw) else None
    if kind is None:
        return _ESCAPED.sub(lambda found: found[1] or found[2], raw)
    if len(raw) > _MOST_DIGITS:
        raise ValueTextError(f"has a number of more than {_MOST_DIGITS} digits")
    return kind(raw)
