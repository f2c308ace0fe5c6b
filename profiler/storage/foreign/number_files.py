"""Files of numbers that a user names: prices of cards, and lengths of rows."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from profiler.config.foreign_text import MOST_YAML_BYTES
from profiler.config.prices import Prices, read_prices
from profiler.domain.errors import Fault, UsageError, printable, shortened
from profiler.domain.memory import MIB
from profiler.domain.text import packed_text
from profiler.storage.files.foreign_files import expanded, read_bytes, reason

PRICES = "prices"

PUBLISHED = "published"
"""In place of a file: the prices of public lists that come with the program, with source and date."""

_LONGEST_LIST = 2000
"""Most characters of a list of names."""


def load_prices(path: str) -> Prices:
    """Return the prices in the file `path`, or those of public lists if it is `PUBLISHED`.

    Raises:
        UsageError: The file cannot be read, or has no prices.
    """
    if path == PUBLISHED:
        return read_prices(packed_text(files("profiler") / "published", "prices.csv"), name=path)
    try:
        text = read_bytes(expanded(path), most_bytes=MOST_YAML_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise UsageError([Fault(key=PRICES, found=path, problem=f"cannot be read ({reason(error)})")]) from error
    except UnicodeDecodeError as error:
        raise UsageError([Fault(key=PRICES, found=path, problem=f"is not valid CSV ({error})")]) from error
    return read_prices(text, name=path)


def unknown_cards_line(prices: Prices) -> str:
    """Return a line that names the cards of a file of prices that are not known; empty if all are."""
    names = shortened(", ".join(prices.unknown), _LONGEST_LIST)
    return printable(f"Ignored, because no such card is known: {names}.") if prices.unknown else ""


# ---- lengths ---------------------------------------------------------------------------------------------------------

LENGTHS = "lengths"

MOST_ROWS = 1_000_000
"""Rows of a file (our choice): more lengths change no draw."""

_MOST_BYTES = 256 * MIB


@dataclass(frozen=True, kw_only=True)
class LengthFile:
    """Lengths in the order of a file."""

    prompts: tuple[int, ...]
    """Empty if it has none."""
    completions: tuple[int, ...]
    """Or whole rows; empty if it has prompts alone."""


def read_lengths(content: bytes, path: str, *, has_prompts: bool) -> LengthFile:
    """Return the lengths in the content of a file.

    Args:
        content: Numbers, one per line or between blanks and commas; a JSON list of numbers; or JSON lines of numbers or
            of ``{"prompt": N, "completion": N}``; of pairs ``{"prompt": N, "chosen": N, "rejected": N}``.
        path: The name of the file, for faults.
        has_prompts: Whether a row with prompt and completion counts as both, or as one whole row.

    Raises:
        UsageError: A line is something else, has fewer than 1 token or too many; or there are no rows, or too many.
    """
    from profiler.analysis.forecast.lengths import MOST_TOKENS  # an estimate that reads no lengths does without

    if (count := content.count(b"\n")) > MOST_ROWS:
        raise length_fault(path, f"has {count:,} rows, and at most {MOST_ROWS:,} are read")
    prompts: list[int] = []
    completions: list[int] = []
    for line, row in _rows(content.decode(errors="replace"), path):
        if isinstance(row, dict):
            own = {key: _tokens(row[key], path, line, most=MOST_TOKENS) for key in ("prompt", *_SIDES) if key in row}
            if not own:
                raise length_fault(path, f"has in line {line:,} neither prompt nor completion")
            sides = [own[key] for key in _SIDES if key in own]
            prompt = own.get("prompt", 0)
            if has_prompts:
                prompts += [prompt] if prompt else []
                completions += sides
            else:
                completions += [prompt + side for side in sides or (0,)]
        else:
            completions.append(_tokens(row, path, line, most=MOST_TOKENS))
        if len(completions) > MOST_ROWS:
            raise length_fault(path, f"has more than {MOST_ROWS:,} rows, and at most so many are read")
    if not prompts and not completions:
        raise length_fault(path, "has no rows")
    return LengthFile(prompts=tuple(prompts), completions=tuple(completions))


_SIDES = ("completion", "chosen", "rejected")
"""Of a row: what is generated, or of a pair both completions."""


def _rows(text: str, path: str) -> Iterator[tuple[int, object]]:
    """Yield the number of its line and the untyped value of each row."""
    if text.lstrip()[:1] == "[":
        try:
            rows = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise length_fault(path, "begins as a JSON list and is none") from error
        yield from ((place, row) for place, row in enumerate(rows, start=1))
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip()[:1] in ("{", '"'):
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise length_fault(path, f"has in line {number:,} no JSON ({shortened(line, 40)})") from error
        else:
            for word in line.replace(",", " ").split():
                yield number, int(word) if word.isascii() and word.isdigit() and len(word) < 20 else word


def _tokens(value: object, path: str, line: int, *, most: int) -> int:
    """Return a length.

    Raises:
        UsageError: It is none.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    shown = shortened(str(value), 40)
    if not isinstance(value, int) or isinstance(value, bool):
        hint = "With tokenizer=FOLDER the texts of a data set are counted."
        raise length_fault(path, f"has in line {line:,} '{shown}', which is not a number of tokens", hint)
    if not 1 <= value <= most:
        raise length_fault(path, f"has in line {line:,} a length of {shown}, and a row has 1 to {most:,} tokens")
    return value


def length_fault(path: str, problem: str, hint: str = "") -> UsageError:
    """Return the error of a file of lengths."""
    return UsageError([Fault(key=LENGTHS, found=path, problem=problem, hint=hint)])


def read_named(path: str, key: str) -> bytes:
    """Return the content of a file that a key names, of at most 256 MiB.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        return read_bytes(expanded(path), most_bytes=_MOST_BYTES)
    except OSError as error:
        raise UsageError([Fault(key=key, found=path, problem=f"cannot be read ({reason(error)})")]) from error
