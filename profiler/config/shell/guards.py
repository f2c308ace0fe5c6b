"""Conditions of a shell script: true, false, or for the machine to say."""

import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from functools import lru_cache
from itertools import product

from profiler.config.shell.values import Shell, Value, expanded_value, whole_number
from profiler.config.shell.words import MOST_ALTERNATIVES, MOST_DEPTH, Budget, Literal, Word

_LONGEST_PATTERN = 200

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda one, other: one == other,
    "-ne": lambda one, other: one != other,
    "-lt": lambda one, other: one < other,
    "-le": lambda one, other: one <= other,
    "-gt": lambda one, other: one > other,
    "-ge": lambda one, other: one >= other,
}
_EQUAL = ("=", "==", "!=")


def tested(words: Sequence[Word], shell: Shell, budget: Budget) -> bool | None:
    """Return the result of ``[ words ]``, ``[[ words ]]`` or ``test words``; None if the machine decides."""
    return _Test(words, shell, budget).whole()


def matches(subject: Value, pattern: Word, shell: Shell, budget: Budget) -> bool | None:
    """Return whether a value matches a pattern of ``case``, or of ``==`` in ``[[``; None if the machine decides."""
    written = _pattern(pattern, shell, budget)
    if pattern.plain == "*":
        return True
    if written is None:
        return None
    return _agreed([_is_match(text, written) for text in subject.possible])


def opposite(result: bool | None) -> bool | None:
    """Return the negation of a result."""
    return None if result is None else not result


def both(first: bool | None, second: bool | None) -> bool | None:
    """Return whether both hold."""
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def either(first: bool | None, second: bool | None) -> bool | None:
    """Return whether one holds."""
    return opposite(both(opposite(first), opposite(second)))


def _agreed(results: Sequence[bool | None]) -> bool | None:
    """Return what all possible values have in common."""
    return results[0] if results and all(each is results[0] for each in results) else None


@lru_cache(maxsize=256)
def _compiled(written: str) -> re.Pattern[str]:
    return re.compile(translate(written))


def _is_match(text: str, written: str) -> bool | None:
    """Return whether a text matches a pattern of a shell; None where that could take long."""
    if not any(mark in written for mark in "*?["):
        return text == written
    if len(written) > _LONGEST_PATTERN or written.count("*") > MOST_DEPTH or len(text) > _LONGEST_PATTERN:
        return None
    return _compiled(written).match(text) is not None


def _pattern(word: Word, shell: Shell, budget: Budget) -> str | None:
    """Return the pattern of a word, with quoted characters standing for themselves; None if it is unknown."""
    found = []
    for part in word.parts:
        value = expanded_value([part], shell, budget)
        if not value.is_known:
            return None
        is_quoted = part.is_quoted if isinstance(part, Literal) else getattr(part, "is_quoted", False)
        found.append(re.sub(r"([*?\[])", r"[\1]", value.text) if is_quoted else value.text)
    return "".join(found)


class _Test:
    """The words of a test, from left to right."""

    def __init__(self, words: Sequence[Word], shell: Shell, budget: Budget) -> None:
        self._words, self._shell, self._budget = words, shell, budget
        self._position = 0
        self._depth = 0

    def whole(self) -> bool | None:
        """Return the result of all words."""
        result = self._either()
        return result if self._position >= len(self._words) else None

    @property
    def _next(self) -> str:
        return self._words[self._position].plain if self._position < len(self._words) else ""

    def _either(self) -> bool | None:
        result = self._both()
        while self._next in ("||", "-o"):
            self._position += 1
            result = either(result, self._both())
        return result

    def _both(self) -> bool | None:
        result = self._one()
        while self._next in ("&&", "-a"):
            self._position += 1
            result = both(result, self._one())
        return result

    def _one(self) -> bool | None:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            self._position = len(self._words) + 1
            return None
        try:
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> bool | None:
        left = len(self._words) - self._position
        following = self._words[self._position + 1].plain if left >= 2 else ""
        if left >= 3 and (following in _EQUAL or following in _NUMBERS or following in ("=~", "<", ">")):
            return self._compared(following)
        if self._next == "!" and left >= 2:
            self._position += 1
            return opposite(self._one())
        if self._next == "(" and left >= 2:
            self._position += 1
            result = self._either()
            self._position += 1
            return result
        if self._next in ("-z", "-n") and left >= 2:
            is_empty = _agreed([not text for text in self._taken(1).possible])
            return is_empty if self._words[self._position - 2].plain == "-z" else opposite(is_empty)
        if self._next.startswith("-") and len(self._next) == 2 and left >= 2:
            self._position += 2
            return None
        return _agreed([bool(text) for text in self._taken(0).possible]) if left else False

    def _taken(self, skipped: int) -> Value:
        """Return the value of the word after `skipped` words, and pass it."""
        self._position += skipped + 1
        return expanded_value(self._words[self._position - 1].parts, self._shell, self._budget)

    def _compared(self, operator: str) -> bool | None:
        first = self._taken(0)
        pattern = self._words[self._position + 1]
        second = self._taken(1)
        if operator in _EQUAL:
            is_equal = (
                matches(first, pattern, self._shell, self._budget) if second.is_known else self._same(first, second)
            )
            return opposite(is_equal) if operator == "!=" else is_equal
        if operator not in _NUMBERS:
            return None
        pairs = [(whole_number(one), whole_number(other)) for one, other in self._pairs(first, second)]
        if any(one is None or other is None for one, other in pairs):
            return None
        return _agreed(
            [_NUMBERS[operator](one, other) for one, other in pairs if one is not None and other is not None]
        )

    def _same(self, first: Value, second: Value) -> bool | None:
        return _agreed([one == other for one, other in self._pairs(first, second)])

    @staticmethod
    def _pairs(first: Value, second: Value) -> list[tuple[str, str]]:
        return list(product(first.possible, second.possible))[: MOST_ALTERNATIVES**2]
