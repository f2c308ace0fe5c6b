"""What a stress run with SIGKILL has found, and which records are answers."""

import json
from collections import Counter
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Found:
    """What is wrong, and how much was done to bring it about."""

    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    runs: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Return every problem as a line."""
        named = {"lost": self.lost, "twice": self.twice, "left": self.left, "other": self.other}
        return [f"{name}: {line}" for name, lines in named.items() for line in lines]


ANSWERS = ("ok", "oom")


def is_answer(content: bytes) -> bool:
    """Return whether a file or an object is the record of a trial that has an answer, however it is spelled."""
    try:
        return json.loads(content)["record"]["outcome"]["status"] in ANSWERS
    except (ValueError, KeyError, TypeError):
        return False
