"""Values of a shell script: known, unknown, or one of several by the branch that a machine takes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from profiler.config.shell.commands import Command
from profiler.config.shell.limits import COMMAND, COPY, MOST_ALTERNATIVES, Budget


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
