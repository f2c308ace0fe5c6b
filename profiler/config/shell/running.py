"""The commands of a shell script in order, with every branch that a machine may take."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from profiler.config.shell.commands import (
    Calculation,
    Case,
    Chain,
    Choice,
    Command,
    Function,
    Group,
    Loop,
    Negated,
    Simple,
    parse_script,
    slurm_counts,
)
from profiler.config.shell.guards import both, either, matches, opposite, tested
from profiler.config.shell.values import Item, Shell, Value, calculated, expanded, expanded_value, merge, one_of
from profiler.config.shell.words import COMMAND, COPY, MOST_DEPTH, Budget, Literal, Word

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_ELEMENT_SET = re.compile(r"([A-Za-z_]\w*)\[[^]]*\]\+?=")
_EXPORTING = "export"
_DECLARING = frozenset({_EXPORTING, "local", "declare", "readonly", "typeset"})
_ENDING = frozenset({"exit", "return"})
SOURCES = frozenset({"source", "."})
_LONGEST_CONDITION = 60


@dataclass(frozen=True, kw_only=True)
class Call:
    """A command that the script may run, as it gets its words."""

    items: tuple[Item, ...]
    environment: Mapping[str, Value] = field(default_factory=dict)
    """The variables that the script sets for it."""
    is_certain: bool = True
    """Whether it runs in every branch that a machine may take."""


TextReader = Callable[[str], str | None]
"""Returns the text of a file; None if it is not there."""


def no_text(name: str) -> None:
    """Find no file."""


@dataclass
class _Run:
    budget: Budget = field(default_factory=Budget)
    calls: list[Call] = field(default_factory=list)
    exported: set[str] = field(default_factory=set)
    """Variables that commands get, once a command of the script has said so."""
    is_repeated: bool = False
    """Whether commands run a second time, so that their calls are known."""
    depth: int = 0
    read: TextReader = no_text
    """Returns the text of a file that the script reads as its own."""


def commands_run(text: str, called: Call | None = None, read: TextReader = no_text) -> tuple[Call, ...]:
    """Return the commands of a script in order, other than assignments and conditions.

    Args:
        text: The script.
        called: The command of another script that runs it, with its arguments and its variables; None if there is none.
        read: Returns the text of a file of shell commands; None if it is not there.

    Raises:
        ForeignTextError: It exceeds a limit.
    """
    run, slurm = _Run(read=read), {name: Value(text=count) for name, count in slurm_counts(text).items()}
    shell = Shell({**slurm, **(called.environment if called is not None else {})})
    if called is not None:
        _take(called.items, shell)
    _all(parse_script(text), shell, run)
    return tuple(run.calls)


def _take(items: Sequence[Item], shell: Shell) -> list[str]:
    """Make words the arguments of a script or a function; return the names that they have there."""
    own = {str(number): item.value for number, item in enumerate(items, 1)}
    shell.values.update({**own, "#": Value(text=str(len(items)))})
    shell.arrays["@"] = tuple(items)
    return [*own, "#"]


def _all(commands: Sequence[Command], shell: Shell, run: _Run) -> bool | None:
    """Run commands in order and return the result of the last."""
    result: bool | None = True
    for command in commands:
        if shell.has_ended:
            break
        result = _one(command, shell, run)
    return result


def _one(command: Command, shell: Shell, run: _Run) -> bool | None:
    """Run a command and return whether it succeeds; None if the machine decides."""
    run.budget.spend(COMMAND)
    match command:
        case Simple():
            return _simple(command, shell, run)
        case Calculation():
            return _calculation(command.expression, shell)
        case Negated():
            return opposite(_one(command.command, shell, run))
        case Chain():
            return _chain(command, shell, run)
        case Group():
            inner = shell.copied(run.budget, is_branch=False) if command.is_subshell else shell
            return _all(command.body, inner, run)
        case Choice():
            return _choice(command, shell, run)
        case Case():
            return _case(command, shell, run)
        case Loop():
            return _loop(command, shell, run)
        case Function():
            shell.functions[command.name] = command.body
    return True


def _simple(command: Simple, shell: Shell, run: _Run) -> bool | None:
    words = command.words
    first = words[0].parts[0] if words and words[0].parts else None
    element = _ELEMENT_SET.match(first.text) if isinstance(first, Literal) and not first.is_quoted else None
    if element is not None:
        shell.arrays[element[1]] = (Item(value=Value(text=f"${element[1]}", is_known=False), is_certain=False),)
        return True
    assigned = _assignments(words)
    if assigned == len(words):
        for word in words:
            _assign(word, shell, run.budget)
        return True
    own, words = words[:assigned], words[assigned:]
    match words[0].plain:
        case "[" | "[[" | "test":
            last = len(words) - (words[-1].plain in ("]", "]]"))
            return tested(words[1:last], shell, run.budget)
        case "true" | ":" | "echo" | "printf" | "set" | "shopt" | "cd" | "mkdir":
            expanded(words[1:], shell, run.budget)
            return True
        case "false":
            return False
        case name if name in _DECLARING:
            for word in words[1:]:
                _assign(word, shell, run.budget)
            if name == _EXPORTING:
                targets = [(_target(word), word.plain) for word in words[1:]]
                run.exported.update(target[1] if target is not None else plain or "" for target, plain in targets)
            return True
        case name if name in _ENDING:
            shell.has_ended = shell.is_branch
            return True
        case "unset":
            _forget(words[1:], shell, Value(text=""))
            return True
        case "getopts" if run.depth == 0:
            return False  # The arguments of a script are left to the caller: it is read as called without any.
        case "read" | "mapfile" | "readarray" | "getopts":
            _forget(words[1:], shell, None)
            return None
        case name if name in shell.functions and run.depth < MOST_DEPTH:
            return _function(shell.functions[name], words[1:], shell, run)
    items = expanded(words, shell, run.budget)
    text = run.read(items[1].value.text) if words[0].plain in SOURCES and items[1:] else None
    if text is not None and run.depth < MOST_DEPTH:
        run.depth += 1
        _all(parse_script(text), shell, run)
        run.depth -= 1
        return None
    if not run.is_repeated:
        environment = _environment(own, shell, run)
        run.calls.append(Call(items=items, environment=environment, is_certain=not shell.is_branch))
    return None


def _environment(own: Sequence[Word], shell: Shell, run: _Run) -> dict[str, Value]:
    """Return the variables that a command gets: those that were exported, under those before its name."""
    found = {name: shell.values[name] for name in run.exported if name in shell.values}
    if own:
        inner = shell.copied(run.budget, is_branch=False)
        for word in own:
            _assign(word, inner, run.budget)
        targets = [target[1] for word in own if (target := _target(word)) is not None]
        found |= {name: inner.values[name] for name in targets if name in inner.values}
    return found


def _function(body: Command, arguments: Sequence[Word], shell: Shell, run: _Run) -> bool | None:
    """Run a function, with its arguments as ``$1`` and the following."""
    items = expanded(arguments, shell, run.budget)
    outer = {name: value for name, value in shell.values.items() if name.isdecimal() or name == "#"}
    outer_all = shell.arrays.pop("@", None)
    for name in outer:
        del shell.values[name]
    own = _take(items, shell)
    run.depth += 1
    result = _one(body, shell, run)
    run.depth -= 1
    for name in own:
        shell.values.pop(name, None)
    del shell.arrays["@"]
    shell.values.update(outer)
    if outer_all is not None:
        shell.arrays["@"] = outer_all
    return result


def _assignments(words: Sequence[Word]) -> int:
    """Return the number of assignments before a command."""
    for number, word in enumerate(words):
        if _target(word) is None:
            return number
    return len(words)


def _target(word: Word) -> re.Match[str] | None:
    first = word.parts[0] if word.parts else None
    return _ASSIGNED.match(first.text) if isinstance(first, Literal) and not first.is_quoted else None


def _assign(word: Word, shell: Shell, budget: Budget) -> None:
    target = _target(word)
    if target is None:
        return
    name, adds = target[1], bool(target[2])
    if word.array is not None:
        before = shell.arrays.get(name, ()) if adds else ()
        found = (*before, *expanded(word.array, shell, budget))
        budget.spend(COPY * len(found))
        shell.arrays[name] = found
        return
    first = word.parts[0]
    assert isinstance(first, Literal)
    parts = [Literal(text=first.text[target.end() :]), *word.parts[1:]]
    before_value = [shell.values.get(name, Value(text=f"${name}", is_known=False))] if adds else []
    value = expanded_value(parts, shell, budget)
    if adds:
        value = _concatenated(before_value[0], value, budget)
    shell.values[name] = value
    shell.arrays.pop(name, None)


def _concatenated(first: Value, second: Value, budget: Budget) -> Value:
    budget.spend(len(first.text) + len(second.text))
    if first.is_known and second.is_known:
        return Value(text=first.text + second.text)
    texts = [one + other for one in first.possible for other in second.possible]
    return one_of(texts, first.text + second.text, first, second)


def _forget(words: Sequence[Word], shell: Shell, value: Value | None) -> None:
    """Give the named variables `value`, or leave them unknown."""
    for name in filter(None, (word.plain for word in words)):
        shell.arrays.pop(name, None)
        shell.values[name] = value or Value(text=f"${name}", is_known=False)


def _calculation(expression: str, shell: Shell) -> bool | None:
    """Return whether ``((expression))`` is not zero; variables that it sets are unknown afterwards."""
    for found in re.finditer(r"([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%]?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)", expression):
        name = found[1] or found[2]
        shell.values[name] = Value(text=f"${name}", is_known=False)
    value = calculated(expression, "", shell)
    return value.text != "0" if value.is_known else None


def _chain(command: Chain, shell: Shell, run: _Run) -> bool | None:
    """Run commands that depend on those before them."""
    result: bool | None = None
    for operator, link in command.links:
        if not operator:
            result = _one(link, shell, run)
        elif result is None:
            branch = shell.copied(run.budget, is_branch=True)
            found = _one(link, branch, run)
            merge(shell, [branch, shell.copied(run.budget, is_branch=True)], f"{_spelled(command.links[0][1])}")
            result = both(result, found) if operator == "&&" else either(result, found)
        elif result is (operator == "&&"):
            result = _one(link, shell, run)
    return result


def _choice(command: Choice, shell: Shell, run: _Run) -> bool | None:
    """Run the branch of the first condition that holds; every branch that may, where the machine decides."""
    branches: list[Shell] = []
    undecided = ""
    for guard, body in command.branches:
        result = _all(guard, shell, run) if guard else True
        if result is False:
            continue
        if result and not branches:
            return _all(body, shell, run)
        branch = shell.copied(run.budget, is_branch=True)
        _all(body, branch, run)
        branches.append(branch)
        undecided = undecided or _spelled(*guard)
        if result:
            break
    else:
        branches.append(shell.copied(run.budget, is_branch=True))
    merge(shell, branches, undecided)
    return None


def _case(command: Case, shell: Shell, run: _Run) -> bool | None:
    subject = expanded_value(command.subject.parts, shell, run.budget)
    branches: list[Shell] = []
    for patterns, body in command.clauses:
        result: bool | None = False
        for pattern in patterns:
            result = either(result, matches(subject, pattern, shell, run.budget))
        if result is False:
            continue
        if result and not branches:
            return _all(body, shell, run)
        branch = shell.copied(run.budget, is_branch=True)
        _all(body, branch, run)
        branches.append(branch)
        if result:
            break
    else:
        branches.append(shell.copied(run.budget, is_branch=True))
    merge(shell, branches, f"case {_word_text(command.subject)}")
    return None


def _loop(command: Loop, shell: Shell, run: _Run) -> bool | None:
    """Run the body of a loop twice: a variable that the second pass changes again is unknown."""
    items = expanded(command.items, shell, run.budget) if command.variable else ()
    if command.guard and _all(command.guard, shell, run) is False:
        return True
    is_certain = any(item.is_certain and item.value.is_known for item in items)
    inner = shell.copied(run.budget, is_branch=True)
    if command.variable:
        spelled = f"${command.variable}"
        known = all(item.value.is_known for item in items)
        inner.values[command.variable] = one_of([item.value.text for item in items] if known else [], spelled)
    _all(command.body, inner, run)
    if len(items) != 1:
        _second_pass(command, inner, run)
    if is_certain and not inner.has_ended:
        shell.values, shell.arrays, shell.functions = inner.values, inner.arrays, inner.functions
    else:
        merge(
            shell, [inner, shell.copied(run.budget, is_branch=True)], f"for {command.variable}" if items else "a loop"
        )
    return True


def _second_pass(command: Loop, inner: Shell, run: _Run) -> None:
    again = inner.copied(run.budget, is_branch=True)
    was_repeated, run.is_repeated = run.is_repeated, True
    _all(command.body, again, run)
    run.is_repeated = was_repeated
    for name, value in again.values.items():
        if inner.values.get(name) != value:
            inner.values[name] = Value(text=f"${name}", is_known=False)
    for name, array in again.arrays.items():
        if inner.arrays.get(name) != array:
            unknown = Value(text=f"${name}", is_known=False)
            inner.arrays[name] = (Item(value=unknown, is_certain=False),)


def _spelled(*commands: Command) -> str:
    """Return the first words of a condition as they are written."""
    first = commands[0] if commands else None
    while isinstance(first, Chain | Negated):
        first = first.links[0][1] if isinstance(first, Chain) else first.command
    text = " ".join(_word_text(word) for word in first.words) if isinstance(first, Simple) else "a condition"
    return text if len(text) <= _LONGEST_CONDITION else f"{text[:_LONGEST_CONDITION]}..."


def _word_text(word: Word) -> str:
    return "".join(
        part.text if isinstance(part, Literal) else part.source for part in word.parts if not _is_opening(part)
    )


def _is_opening(part: object) -> bool:
    """Return whether a part is only the quote before a text."""
    return isinstance(part, Literal) and not part.text
