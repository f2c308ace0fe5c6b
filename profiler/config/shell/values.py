"""Values of a shell script: known or not, by arithmetic, and by the expansion of words."""

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from profiler.config.foreign_text import ForeignTextError, parse_python
from profiler.config.shell.commands import COUNT, ELEMENT, EXPR, INDICES, LONGEST_PROBE, Command, answer_of
from profiler.config.shell.words import (
    COMMAND,
    COPY,
    MOST_ALTERNATIVES,
    MOST_DEPTH,
    Arithmetic,
    Budget,
    Literal,
    Opaque,
    Parameter,
    Part,
    Word,
)


@dataclass(frozen=True, kw_only=True)
class Value:
    """A text, as far as the script states it."""

    text: str
    """The value where it is known, else how the script spells it."""
    is_known: bool = True
    alternatives: tuple[str, ...] = ()
    """The values that branches give; empty where it is known, or where one of them is unknown."""
    because: str = ""
    """The condition that decides between the alternatives, as the script spells it."""

    @property
    def possible(self) -> tuple[str, ...]:
        """Every value that it may have; empty if one is unknown."""
        return (self.text,) if self.is_known else self.alternatives

    def mapped(self, change: Callable[[str], str | None], spelled: str) -> "Value":
        """Return what `change` makes of each possible value, unknown if it makes None of one."""
        changed = [change(each) for each in self.possible]
        return one_of([each for each in changed if each is not None] if None not in changed else [], spelled, self)


@dataclass(frozen=True, kw_only=True)
class Item:
    """A word that a command gets."""

    value: Value
    is_certain: bool = True
    """Whether it gets the word in every branch."""
    because: str = ""


@dataclass
class Shell:
    """Variables so far. A name that is absent has whatever the environment says."""

    values: dict[str, Value] = field(default_factory=dict)
    arrays: dict[str, tuple[Item, ...]] = field(default_factory=dict)
    functions: dict[str, Command] = field(default_factory=dict)
    is_branch: bool = False
    """Whether the machine decides if its commands run."""
    has_ended: bool = False
    """Whether the branch ends the script."""

    def copied(self, budget: Budget, *, is_branch: bool) -> "Shell":
        """Return the same variables for a branch or a subshell."""
        budget.spend(COMMAND + COPY * (len(self.values) + len(self.arrays) + len(self.functions)))
        return Shell(dict(self.values), dict(self.arrays), dict(self.functions), is_branch or self.is_branch)


def one_of(texts: Iterable[str], spelled: str, *sources: Value) -> Value:
    """Return a value with these possibilities; unknown for none or too many."""
    different = tuple(dict.fromkeys(texts))
    if len(different) == 1:
        return Value(text=different[0])
    because = next((each.because for each in sources if each.because), "")
    kept = different if len(different) <= MOST_ALTERNATIVES else ()
    return Value(text=spelled, is_known=False, alternatives=kept, because=because)


def joined(parts: Sequence[Value], budget: Budget) -> Value:
    """Return the values one after the other."""
    text = "".join(part.text for part in parts)
    budget.spend(len(text) + 1)
    if all(part.is_known for part in parts):
        return Value(text=text)
    possible = [part.possible for part in parts]
    count = 1
    for each in possible:
        count *= len(each)
        if not 0 < count <= MOST_ALTERNATIVES:
            return Value(text=text, is_known=False)
    texts = ["".join(each) for each in product(*possible)]
    budget.spend(sum(map(len, texts)))
    return one_of(texts, text, *parts)


def merge(shell: Shell, branches: Sequence[Shell], because: str) -> None:
    """Set the variables of `shell` to what the branches leave, as far as they agree."""
    going = [branch for branch in branches if not branch.has_ended]
    shell.has_ended = shell.is_branch and not going
    left = going or branches[-1:]
    for name in dict.fromkeys(name for branch in left for name in branch.values):
        shell.values[name] = _merged_value(name, [branch.values.get(name) for branch in left], because)
    for name in dict.fromkeys(name for branch in left for name in branch.arrays):
        shell.arrays[name] = _merged_array([branch.arrays.get(name, ()) for branch in left], because)
    for branch in left:
        shell.functions.update(branch.functions)


def _merged_value(name: str, found: Sequence[Value | None], because: str) -> Value:
    """Return the value after branches; a variable that a branch does not set is empty in it."""
    first = found[0]
    if first is not None and all(each == first for each in found):
        return first
    spelled = f"${name}"
    possible = [each.possible if each is not None else ("",) for each in found]
    if not all(possible):
        return Value(text=spelled, is_known=False, because=because)
    merged = one_of([text for texts in possible for text in texts], spelled)
    return merged if merged.is_known else replace(merged, because=because)


def _merged_array(found: Sequence[tuple[Item, ...]], because: str) -> tuple[Item, ...]:
    if all(each is found[0] for each in found):
        return found[0]
    shared = 0
    while all(len(each) > shared for each in found) and len({each[shared] for each in found}) == 1:
        shared += 1
    own = [item for each in found for item in each[shared:]]
    maybe = (replace(item, is_certain=False, because=item.because or because) for item in dict.fromkeys(own))
    return (*found[0][:shared], *maybe)


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
    arguments = shell.values.get("#", Value(text="0"))
    expression = _HOW_MANY.sub(arguments.text, expression) if arguments.is_known else expression
    plain = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", expression).strip()
    plain = _CHOICE.sub(r"(\2) if (\1) else (\3)", plain)
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
        case ast.IfExp(test=test, body=body, orelse=other):
            chosen = _number(test, given, shell, depth + 1)
            return None if chosen is None else _number(body if chosen else other, given, shell, depth + 1)
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


_HOW_MANY = re.compile(r"""(['"]?)\$(?:#|\{#\})\1""")
_CHOICE = re.compile(r"([^?:]+)\?([^?:]+):([^?:]+)")
"""One choice, ``a > b ? a : b``, which Python spells in another order."""

_UNSPLIT = re.compile(r"(?:\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`|\$\{[^{}]*\}|\S)+")
"""A word of a value that the script spells with expansions, which may have spaces."""

_EXPANSION = re.compile(r"[$`]")

_LABEL = re.compile(r"\s*[A-Za-z][\w ]*:\s")


def expanded_value(parts: Sequence[Part], shell: Shell, budget: Budget) -> Value:
    """Return the value of parts as an assignment takes it, without splitting."""
    return joined([_part_value(part, shell, budget) for part in parts], budget)


def expanded(words: Sequence[Word], shell: Shell, budget: Budget) -> tuple[Item, ...]:
    """Return what a command gets for `words`: arrays are spread, and values without quotes are split at spaces."""
    return tuple(item for word in words for item in _items(word, shell, budget))


def _items(word: Word, shell: Shell, budget: Budget) -> Iterator[Item]:
    arrays = [part for part in word.parts if isinstance(part, Parameter) and _is_array(part)]
    if arrays and not is_label("".join(part.text for part in word.parts if isinstance(part, Literal))):
        found = _array_items(arrays[0], shell)
        budget.spend(COPY * (len(found) + 1))
        yield from found
        return
    indices = INDICES.fullmatch("".join(part.source for part in word.parts if isinstance(part, Opaque)))
    if indices is not None and _are_words(shell.arrays.get(indices[1], ())) and indices[1] in shell.arrays:
        yield from (Item(value=Value(text=str(number))) for number in range(len(shell.arrays[indices[1]])))
        return
    value = expanded_value(word.parts, shell, budget)
    budget.spend(COPY)
    if not any(isinstance(part, Parameter) and not part.is_quoted for part in word.parts):
        yield Item(value=value)
    elif value.is_known:
        yield from (Item(value=Value(text=text)) for text in value.text.split())
    elif any(not text or len(text.split()) > 1 for text in value.alternatives):
        texts = dict.fromkeys(text for each in value.alternatives for text in each.split())
        yield from (Item(value=Value(text=text), is_certain=False, because=value.because) for text in texts)
    elif not value.alternatives:
        yield from (Item(value=_spelled_value(text, value)) for text in _UNSPLIT.findall(value.text))
    else:
        yield Item(value=value)


def is_label(text: str) -> bool:
    """Return whether a text begins as a line of a log: ``Command: accelerate launch ...`` is shown, not started."""
    return _LABEL.match(text) is not None


def _spelled_value(text: str, whole: Value) -> Value:
    """Return one word of an unknown value: known, if the script spells it without an expansion."""
    return Value(text=text, is_known=False, because=whole.because) if _EXPANSION.search(text) else Value(text=text)


def _is_array(part: Parameter) -> bool:
    return part.operator == "[@]" or part.name in ("@", "*")


def _array_items(part: Parameter, shell: Shell) -> tuple[Item, ...]:
    """Return the elements of an array; the arguments of a script are left to the caller."""
    name = part.name
    if name in shell.arrays:
        return shell.arrays[name]
    scalar = shell.values.get(name)
    return (Item(value=scalar),) if scalar is not None else ()


def _part_value(part: Part, shell: Shell, budget: Budget) -> Value:
    match part:
        case Literal():
            return Value(text=part.text)
        case Arithmetic():
            return calculated(part.expression, part.source, shell)
        case Opaque():
            is_short = len(part.source) <= LONGEST_PROBE
            element = ELEMENT.fullmatch(part.source) if is_short else None
            if element is not None:
                index = Value(text=element[2]) if element[2] else shell.values.get(element[3])
                return _element(shell.arrays.get(element[1], ()), index, part.source)
            sum_of = EXPR.fullmatch(part.source) if is_short else None
            if sum_of is not None:
                return calculated(re.sub(r"[\\'\"]", "", sum_of[1]), part.source, shell)
            counted = COUNT.fullmatch(part.source) if is_short else None
            listed = shell.values.get(counted[1]) if counted is not None else None
            if listed is not None:
                return listed.mapped(lambda text: str(text.count(",") + 1), part.source)
            answer = answer_of(part.source) if is_short else None
            return Value(text=part.source, is_known=False) if answer is None else Value(text=answer)
    return _parameter(part, shell, budget)


def _element(array: Sequence[Item], index: Value | None, spelled: str) -> Value:
    """Return an element of an array; unknown where one up to it is, because an unknown word may be several or none."""
    unknown = Value(text=spelled, is_known=False)
    texts = []
    for text in index.possible if index is not None else ():
        number = whole_number(text)
        if number is None or not 0 <= number < len(array) or not _are_words(array[: number + 1]):
            return unknown
        texts.append(array[number].value.text)
    return one_of(texts, spelled) if texts else unknown


def _are_words(array: Sequence[Item]) -> bool:
    """Return whether each item is one element that the script states, at its place."""
    return all(item.is_certain and item.value.is_known and not item.value.text.startswith("[") for item in array)


def _parameter(part: Parameter, shell: Shell, budget: Budget) -> Value:
    """Return the value of a variable, with its operator applied."""
    known = shell.values.get(part.name)
    if known is None and part.name in shell.arrays:
        known = next((item.value for item in shell.arrays[part.name]), Value(text=""))
    if part.name == "#" and not part.operator:
        known = Value(text="0") if known is None else known
    unknown = Value(text=part.source, is_known=False)
    match part.operator:
        case "" | ":?" | "?":
            return known if known is not None else unknown
        case ":-" | "-" | ":=" | "=":
            return _or_default(part, known, shell, budget)
        case ":+" | "+":
            if known is None:
                return Value(text="")
            argument = expanded_value(part.argument, shell, budget)
            return known.mapped(
                lambda text: (argument.text if text else "") if argument.is_known else None, part.source
            )
        case ",,":
            return known.mapped(str.lower, part.source) if known is not None else unknown
        case "^^":
            return known.mapped(str.upper, part.source) if known is not None else unknown
    return unknown


def _or_default(part: Parameter, known: Value | None, shell: Shell, budget: Budget) -> Value:
    """Return the variable, or the default where it is not set, or empty and the operator has a colon."""
    takes_empty = not part.operator.startswith(":")
    if known is not None and (takes_empty or (known.is_known and known.text)):
        return known
    default = expanded_value(part.argument, shell, budget)
    found = default
    if known is not None and not known.is_known:
        if not known.alternatives:
            found = known
        elif default.is_known:
            found = one_of([text or default.text for text in known.alternatives], part.source, known)
        else:
            found = known if all(known.alternatives) else Value(text=part.source, is_known=False, because=known.because)
    if part.operator in (":=", "="):
        shell.values[part.name] = found
    return found
