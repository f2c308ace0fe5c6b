"""A part of a plan: one of several shards of nearly equal size."""

import re
from dataclasses import dataclass

MAX_SHARDS = 1_000_000

_FORM = re.compile("([0-9]{1,7})/([0-9]{1,7})")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Shard `number` of `count`, counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def shard_of(text: str) -> Shard | None:
    """Return the shard that ``"2/8"`` names; None if it names none."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    shard = Shard(number=int(found[1]), count=int(found[2]))
    return shard if 1 <= shard.number <= shard.count <= MAX_SHARDS else None
