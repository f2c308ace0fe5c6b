"""Ranks that are not there: this process is rank 0, and a store answers for the others as if they did what it does."""

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any


def answer_for_other_ranks(rendezvous: ModuleType) -> None:
    """Replace the rendezvous by environment variables and by TCP with one that needs no other process."""
    for scheme in ("env", "tcp"):
        rendezvous._rendezvous_handlers[scheme] = _meet_nobody


def _meet_nobody(url: str, timeout: timedelta | None = None, **_options: Any) -> Iterator[tuple[Any, int, int]]:  # noqa: ANN401
    del url, timeout
    world_size = int(os.environ["WORLD_SIZE"])
    yield new_store(world_size), int(os.environ.get("RANK", "0")), world_size
    raise RuntimeError("Unable to perform rerendezvous with ranks that are not there")


def new_store(world_size: int) -> Any:  # noqa: ANN401  # torch's own type
    """Return a store of this process; torch is imported by then."""
    import torch.distributed

    del world_size
    return torch.distributed.HashStore()  # type: ignore[attr-defined]


def own_key(key: str) -> str:
    """Return the key under which this rank put what another rank would have put under `key`."""
    return re.sub(r"\d+$", "0", key)
