"""A shell script that runs verl, read without running it: the overrides of its call, with variables that are literal.

Read are assignments, arrays, `$NAME`, `${NAME}`, `${NAME:-default}`, `$((arithmetic))` with whole numbers, quotes,
comments and continued lines. Whatever else a shell does to a value leaves it unknown.
"""

import ast
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from profiler.config.foreign_text import ForeignTextError, parse_python

_CALLED = re.compile(r"(?:^|[./])main_(?!eval|generation)\w+(?:\.py)?$")
"""The module or file that trains: ``verl.trainer.main_ppo``, ``recipe.dapo.main_dapo``."""

_OTHER_TRAINER = re.compile(r"(?:^|[./])(?:fsdp_)?sft_trainer\w*(?:\.py)?$")

_OVERRIDE = re.compile(r"(?:\+\+|\+|~)?([A-Za-z_][\w.]*\.[\w.]+)=(.*)", re.DOTALL)

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)\+?=\(", re.MULTILINE)

_OPENS, _CLOSES = frozenset({"if", "for", "while", "until", "case"}), frozenset({"fi", "done", "esac"})

_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

_MOST_DEPTH = 20
_LARGEST = 10**12


@dataclass(frozen=True, kw_only=True)
class Override:
    """One ``key=value`` of Hydra, with its text as the script passes it on."""

    text: str
    is_known: bool = True
    """Whether the script states the value."""


@dataclass(frozen=True, kw_only=True)
class RunScript:
    """What a script passes to verl."""

    overrides: Mapping[str, Override]
    config_name: str
    """Of Hydra, as ``ppo_megatron_trainer``; empty if none is named."""


@dataclass(frozen=True)
class _Word:
    text: str
    is_known: bool


@dataclass
class _Shell:
    """Variables so far; None is a value that is not in the script."""

    values: dict[str, _Word | None] = field(default_factory=dict)
    arrays: dict[str, list[_Word]] = field(default_factory=dict)


def read_run_script(text: str) -> RunScript:
    """Return what the script passes to verl.

    Raises:
        ForeignTextError: It does not call verl's trainer, or calls it several times.
    """
    shell, calls, depth, others = _Shell(), [], 0, False
    for words, is_array in _commands(re.sub(r"\\\r?\n", " ", text), shell):
        first = words[0].text if words else ""
        if is_array:
            continue
        depth += (first in _OPENS) - (first in _CLOSES)
        _assign(words, shell, is_certain=depth <= 0)
        texts = [word.text for word in words]
        others = others or any(_OTHER_TRAINER.search(each) for each in texts)
        start = next((n for n, each in enumerate(texts) if _CALLED.search(each)), None)
        if start is not None and any(_OVERRIDE.fullmatch(each) for each in texts[start:]):
            calls.append(words[start + 1 :])
    if not calls:
        trainer = "verl's SFT trainer, which has no recipe here" if others else "no verl.trainer.main_ppo"
        raise ForeignTextError(f"calls {trainer}")
    if len(calls) > 1:
        raise ForeignTextError(f"calls verl's trainer {len(calls)} times, and one is read")
    return _script(calls[0])


def _script(words: list[_Word]) -> RunScript:
    overrides: dict[str, Override] = {}
    name = ""
    for word, following in zip(words, [*words[1:], _Word("", False)], strict=True):
        match = _OVERRIDE.fullmatch(word.text)
        if match:
            overrides[match[1]] = Override(text=match[2], is_known=word.is_known)
        elif word.text.startswith("--config-name"):
            name = word.text.partition("=")[2] or following.text
    return RunScript(overrides=overrides, config_name=name.removesuffix(".yaml"))


def _assign(words: list[_Word], shell: _Shell, *, is_certain: bool) -> None:
    """Remember assignments, if the command is nothing else."""
    named = [word for word in words if word.text not in ("export", "local", "declare", "readonly", "-x")]
    matches = [_ASSIGNED.fullmatch(word.text) for word in named]
    if not all(matches):
        return
    for word, match in zip(named, matches, strict=True):
        assert match is not None
        shell.values[match[1]] = _Word(match[2], word.is_known) if is_certain else None


def _commands(text: str, shell: _Shell) -> Iterator[tuple[list[_Word], bool]]:
    """Return the words of each command in order, so that assignments before it are known; arrays are remembered."""
    position = 0
    while position < len(text):
        array = _ARRAY.match(text, position)
        if array:
            position = array.end()
            words: list[_Word] = []
            while position < len(text) and text[position : position + 1] != ")":
                found, position = _line(text, position, shell, until=")")
                words += found
            shell.arrays[array[1]] = [*shell.arrays.get(array[1], ()), *words] if "+=" in array[0] else words
            yield [], True
            position += 1
            continue
        words, position = _line(text, position, shell, until="")
        if words:
            yield words, False
        position += 1


def _line(text: str, position: int, shell: _Shell, *, until: str) -> tuple[list[_Word], int]:
    """Return the words up to the end of the command, and the position of what ends it."""
    words: list[_Word] = []
    piece, is_known, has_word = "", True, False
    ends = "\n;&|" + until
    while position < len(text) and text[position] not in ends:
        character = text[position]
        if character in " \t\r":
            if has_word:
                words.append(_Word(piece, is_known))
            piece, is_known, has_word = "", True, False
            position += 1
        elif character == "#" and not has_word:
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        else:
            spread = _spread_array(text, position, shell)
            if spread is not None:
                found, position = spread
                words += found
                continue
            added, known, position = _piece(text, position, shell)
            piece, is_known, has_word = piece + added, is_known and known, True
    if has_word:
        words.append(_Word(piece, is_known))
    if until and position < len(text) and text[position] != until:
        position += 1
    return words, position


def _spread_array(text: str, position: int, shell: _Shell) -> tuple[list[_Word], int] | None:
    """Return the words of ``"${NAME[@]}"`` at `position`; None if there is something else."""
    match = re.compile(r'"?\$\{([A-Za-z_]\w*)\[[@*]\]\}"?').match(text, position)
    return (shell.arrays.get(match[1], []), match.end()) if match else None


def _piece(text: str, position: int, shell: _Shell) -> tuple[str, bool, int]:
    """Return the next part of a word, whether it is known, and the position after it."""
    character = text[position]
    if character == "'":
        end = text.find("'", position + 1)
        end = len(text) if end < 0 else end
        return text[position + 1 : end], True, end + 1
    if character == '"':
        return _quoted(text, position + 1, shell)
    if character == "\\":
        return text[position + 1 : position + 2], True, position + 2
    if character == "`":
        end = text.find("`", position + 1)
        end = len(text) if end < 0 else end
        return text[position : end + 1], False, end + 1
    if character == "$":
        return _expansion(text, position, shell)
    return character, True, position + 1


def _quoted(text: str, position: int, shell: _Shell) -> tuple[str, bool, int]:
    piece, is_known = "", True
    while position < len(text) and text[position] != '"':
        if text[position] == "\\" and text[position + 1 : position + 2] in ('"', "\\", "$", "`"):
            piece, position = piece + text[position + 1], position + 2
        elif text[position] in "$`":
            added, known, position = _piece(text, position, shell)
            piece, is_known = piece + added, is_known and known
        else:
            piece, position = piece + text[position], position + 1
    return piece, is_known, position + 1


def _expansion(text: str, position: int, shell: _Shell, depth: int = 0) -> tuple[str, bool, int]:
    """Return the value of what follows a ``$``; its text where the value is unknown."""
    if text.startswith("$((", position):
        end = _closing(text, position + 3, "((", "))")
        number = _calculated(text[position + 3 : end], shell)
        return (text[position : end + 2], False, end + 2) if number is None else (str(number), True, end + 2)
    if text.startswith("$(", position):
        end = _closing(text, position + 2, "(", ")")
        return text[position : end + 1], False, end + 1
    if text.startswith("${", position):
        end = _closing(text, position + 2, "{", "}")
        value = _parameter(text[position + 2 : end], shell, depth)
        return (text[position : end + 1], False, end + 1) if value is None else (value.text, value.is_known, end + 1)
    match = _NAME.match(text, position + 1)
    if match is None:
        if text[position + 1 : position + 2] in ("@", "*"):
            return "", True, position + 2
        return text[position : position + 2], False, position + 2
    value = shell.values.get(match[0])
    return (f"${match[0]}", False, match.end()) if value is None else (value.text, value.is_known, match.end())


def _parameter(inside: str, shell: _Shell, depth: int) -> _Word | None:
    """Return the value of ``NAME``, ``NAME:-default`` or ``NAME:=default``; None if it is unknown."""
    match = re.fullmatch(r"([A-Za-z_]\w*|\d)(?::?[-=](.*))?", inside, re.DOTALL)
    if match is None or depth > _MOST_DEPTH:
        return None
    known = shell.values.get(match[1])
    if known is not None or match[2] is None or match[1] in shell.values:
        return known
    piece, is_known, position = "", True, 0
    while position < len(match[2]):
        if match[2][position] == "$":
            added, known_part, position = _expansion(match[2], position, shell, depth + 1)
        else:
            added, known_part, position = _piece(match[2], position, shell)
        piece, is_known = piece + added, is_known and known_part
    return _Word(piece, is_known)


def _closing(text: str, position: int, opening: str, closing: str) -> int:
    """Return the position of the `closing` that belongs to an opening before `position`; the end if there is none."""
    depth = 0
    first, last = opening[0], closing[0]
    while position < len(text):
        if depth == 0 and text.startswith(closing, position):
            return position
        depth += (text[position] == first) - (text[position] == last)
        position += 1
    return len(text)


def _calculated(expression: str, shell: _Shell) -> int | None:
    """Return the value of arithmetic with whole numbers and variables; None if it has none."""
    plain = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", expression).strip()
    try:
        (statement,) = parse_python(plain).body
    except (ForeignTextError, ValueError):
        return None
    return _number(statement.value, shell, 0) if isinstance(statement, ast.Expr) else None


def _number(node: ast.expr, shell: _Shell, depth: int) -> int | None:
    if depth > _MOST_DEPTH:
        return None
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            word = shell.values.get(name)
            return int(word.text) if word is not None and word.is_known and word.text.strip().isdecimal() else None
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            first, second = _number(left, shell, depth + 1), _number(right, shell, depth + 1)
            if first is None or second is None or max(abs(first), abs(second)) > _LARGEST:
                return None
            if second == 0 and not isinstance(op, ast.Add | ast.Sub | ast.Mult):
                return None
            return int(_ARITHMETIC[type(op)](first, second))
    return None
