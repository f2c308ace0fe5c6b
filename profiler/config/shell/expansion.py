"""What words of a shell script stand for."""

import re
from collections.abc import Iterator, Sequence

from profiler.config.shell.arithmetic import calculated
from profiler.config.shell.limits import COPY, Budget
from profiler.config.shell.values import Item, Shell, Value, joined, one_of
from profiler.config.shell.words import Arithmetic, Literal, Opaque, Parameter, Part, Word

_PROBE_OF_ASCEND = re.compile(
    r"""import\s+torch_npu\b.*?&&\s*echo\s+([\w.-]+)\s*\|\|\s*echo\s+([\w.-]+)\s*\)""", re.DOTALL
)
"""A question to the machine whose answer a card of NVIDIA is: whether there is a package for Ascend's."""

_LONGEST_PROBE = 300

_UNSPLIT = re.compile(r"(?:\$\([^()]*\)|`[^`]*`|\$\{[^{}]*\}|\S)+")
"""A word of a value that the script spells with expansions, which may have spaces."""

_EXPANSION = re.compile(r"[$`]")


def expanded_value(parts: Sequence[Part], shell: Shell, budget: Budget) -> Value:
    """Return the value of parts as an assignment takes it, without splitting."""
    return joined([_part_value(part, shell, budget) for part in parts], budget)


def expanded(words: Sequence[Word], shell: Shell, budget: Budget) -> tuple[Item, ...]:
    """Return what a command gets for `words`: arrays are spread, and values without quotes are split at spaces."""
    return tuple(item for word in words for item in _items(word, shell, budget))


def _items(word: Word, shell: Shell, budget: Budget) -> Iterator[Item]:
    arrays = [part for part in word.parts if isinstance(part, Parameter) and _is_array(part)]
    if arrays:
        found = _array_items(arrays[0], shell)
        budget.spend(COPY * (len(found) + 1))
        yield from found
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


def _spelled_value(text: str, whole: Value) -> Value:
    """Return one word of an unknown value: known, if the script spells it without an expansion."""
    return Value(text=text, is_known=False, because=whole.because) if _EXPANSION.search(text) else Value(text=text)


def _is_array(part: Parameter) -> bool:
    return part.operator == "[@]" or part.name in ("@", "*")


def _array_items(part: Parameter, shell: Shell) -> tuple[Item, ...]:
    """Return the elements of an array; the arguments of a script are left to whoever calls it."""
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
            probe = _PROBE_OF_ASCEND.search(part.source) if len(part.source) <= _LONGEST_PROBE else None
            return Value(text=probe[2]) if probe else Value(text=part.source, is_known=False)
    return _parameter(part, shell, budget)


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
