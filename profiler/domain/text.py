"""Text: large counts, sums in words, foreign text of several lines for a terminal, and texts that a wheel packs."""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from importlib.resources.abc import Traversable

from profiler.domain.errors import printable

_EXPONENTS = (12, 9, 6, 3)
_ROUNDED_UP = 0.9995
"""Three digits of this are 1.00."""


def count_text(number: object) -> str:
    """Return ``7615616512`` as ``"7.62e9"``, ``999885952`` as ``"1e9"``, and counts below 1,000 as they are."""
    value = int(str(number))
    for exponent in _EXPONENTS:
        if value >= 1000 and value >= _ROUNDED_UP * 10**exponent:
            return f"{value / 10**exponent:.3g}e{exponent}"
    return str(value)


_LINE = re.compile("[^\n\t]+")


def plain(text: str) -> str:
    r"""Return `text` with characters that a terminal would interpret as escapes: ``\x1b``.

    A sequence of such characters can colour or clear the screen, overwrite a line, or write to the clipboard. Line
    breaks and tabs stay.
    """
    return text if text.isprintable() else _LINE.sub(lambda found: printable(found[0]), text)


_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}

_LARGEST_POWER = 64


def sum_of(text: str) -> float:
    """Return the value of a sum such as ``"(24 + 6) / 4 + 2"``.

    Raises:
        ValueError: It has other parts than numbers and operators, or no value.
    """
    try:
        return float(_value(ast.parse(text, mode="eval").body))
    except (SyntaxError, RecursionError, MemoryError, ArithmeticError, TypeError) as error:
        raise ValueError(f"{text!r} has no value") from error


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > _LARGEST_POWER:
            raise ValueError("a power is too large")
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    raise ValueError("a part is neither a number nor an operator")


def packed_text(folder: Traversable, name: str) -> str:
    """Return the text of a file, which a wheel has compressed (`hatch_build.py`)."""
    plain = folder / name
    if plain.is_file():
        return plain.read_text(encoding="utf-8")
    import lzma  # a clone needs none

    return lzma.decompress((folder / f"{name}.xz").read_bytes()).decode("utf-8")
