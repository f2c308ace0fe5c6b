"""Arithmetic of a shell script, with whole numbers."""

import ast
import operator
import re

from profiler.config.foreign_text import ForeignTextError, parse_python
from profiler.config.shell.limits import MOST_ALTERNATIVES, MOST_DEPTH
from profiler.config.shell.values import Shell, Value, one_of

_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

_LARGEST = 10**12
_MOST_DIGITS = 12
_LONGEST = 2000
"""Most characters of an expression."""


def calculated(expression: str, spelled: str, shell: Shell) -> Value:
    """Return the value of an expression; unknown where a variable is, or where it is more than arithmetic."""
    unknown = Value(text=spelled, is_known=False)
    if len(expression) > _LONGEST:
        return unknown
    plain = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", expression).strip()
    try:
        (statement,) = parse_python(plain).body
    except (ForeignTextError, ValueError):
        return unknown
    if not isinstance(statement, ast.Expr):
        return unknown
    varying = [name for name in _names(statement) if name in shell.values and not shell.values[name].is_known]
    if not varying:
        return _of(statement.value, {}, shell, unknown)
    if len(varying) > 1 or not shell.values[varying[0]].possible:
        return unknown
    source = shell.values[varying[0]]
    found = [_of(statement.value, {varying[0]: text}, shell, unknown) for text in source.possible[:MOST_ALTERNATIVES]]
    return one_of([each.text for each in found], spelled, source) if all(each.is_known for each in found) else unknown


def _names(statement: ast.Expr) -> list[str]:
    return list(dict.fromkeys(node.id for node in ast.walk(statement) if isinstance(node, ast.Name)))


def _of(node: ast.expr, given: dict[str, str], shell: Shell, unknown: Value) -> Value:
    number = _number(node, given, shell, 0)
    return unknown if number is None else Value(text=str(number))


def whole_number(text: str) -> int | None:
    """Return the number that a text spells; None for any other, also with a leading zero, which is octal."""
    digits = text.strip().removeprefix("-")
    if not digits.isdecimal() or len(digits) > _MOST_DIGITS or (len(digits) > 1 and digits.startswith("0")):
        return None
    return int(text)


def _number(node: ast.expr, given: dict[str, str], shell: Shell, depth: int) -> int | None:
    if depth > MOST_DEPTH:
        return None
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            word = shell.values.get(name, Value(text=""))
            return whole_number(given.get(name, word.text))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _number(operand, given, shell, depth + 1)
            return None if number is None else -number
        case ast.Compare(left=left, ops=[comparison], comparators=[right]) if type(comparison) in _COMPARISONS:
            first, second = _number(left, given, shell, depth + 1), _number(right, given, shell, depth + 1)
            if first is None or second is None:
                return None
            return int(_COMPARISONS[type(comparison)](first, second))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _combined(op, _number(left, given, shell, depth + 1), _number(right, given, shell, depth + 1))
    return None


def _combined(operation: ast.operator, first: int | None, second: int | None) -> int | None:
    """Return the result, rounded as a shell rounds; None for one that has no value or is too large."""
    if first is None or second is None or max(abs(first), abs(second)) > _LARGEST:
        return None
    if isinstance(operation, ast.Add | ast.Sub | ast.Mult):
        return int(_OPERATIONS[type(operation)](first, second))
    if second == 0 or first < 0 or second < 0:
        return None
    return int(_OPERATIONS[type(operation)](first, second))
