"""Limits of what a shell script may be read into, all declared here: no script can use up time or memory."""

from profiler.config.foreign_text import ForeignTextError

MOST_DEPTH = 20
"""Most expansions, and most calls of functions, inside each other; deeper ones are unknown values."""

MOST_NESTED = 60
"""Most commands inside each other."""

MOST_ALTERNATIVES = 8
"""Most values that a variable may have after several branches; with more it is unknown."""

MOST_CHARACTERS = 262_144
"""Longest script; those of verl have at most 20,000."""

COMMAND = 20
"""Work of a command, in characters."""

COPY = 2
"""Work of a variable that a branch copies, or of a word that an array or a command gets, in characters."""

_MOST_WORK = 2_000_000


class Budget:
    """The work that is left for one script, in characters that expansions produce."""

    def __init__(self) -> None:
        self._left = _MOST_WORK

    def spend(self, amount: int) -> None:
        """Take `amount` from what is left.

        Raises:
            ForeignTextError: Nothing is left.
        """
        self._left -= amount
        if self._left < 0:
            raise ForeignTextError("takes too long to read, because its variables or its branches multiply")
