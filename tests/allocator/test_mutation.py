"""A changed constant or comparison of the allocator fails a hand-worked sequence: the sequences pin every rule."""

import gc
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hand_worked import SCENARIOS as SINGLE_STREAM
from hand_worked_streams import SCENARIOS as STREAMS
from mutants import MODULES, Mutant, loaded, mutants

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mutants are held in check by means of Linux")

SCENARIOS = (*SINGLE_STREAM, *STREAMS)

LOOP_S = 0.2
"""A mutant that computes for longer than this never ends: the sequences take 10 ms of the processor."""

_ARBITRARY = "any value does"
_IN_512 = "all sizes are multiples of 512"
_ONLY_SPEED = "spares work, decides nothing"
EQUIVALENT = {
    "settings: if divisions > 1 and requested_bytes > MIN_BLOCK_BYTES * divisions: | requested_bytes > MIN_BLOCK_BYTES "
    "* divisions -> requested_bytes >= MIN_BLOCK_BYTES * divisions": "a power of two stays what it is",
    "card_memory: FIRST_ADDRESS = 0x7F00_0000_0000 | 139637976727552 -> 139637976727553": _ARBITRARY,
    "card_memory: UNLIMITED_ADDRESS_SPACE_BYTES = 16 * 1024 * GIB | 1024 -> 1025": _ARBITRARY,
    "card_memory: UNLIMITED_ADDRESS_SPACE_BYTES = 16 * 1024 * GIB | 16 -> 17": _ARBITRARY,
    "card_memory: return 0 | 0 -> 1": _ARBITRARY,
    "blocks: order: int = 0, | 0 -> 1": "only differences count",
    "blocks: self.searches = 0 | 0 -> 1": "only differences count",
    "card_memory: return block.size_bytes + (after.size_bytes if after is not None and not after.mapped else 0) "
    "| 0 -> 1": _IN_512,
    "card_memory: space = 0 | 0 -> 1": _IN_512,
    "card_memory: while space < size_bytes and block is not None and not block.allocated: | space < size_bytes -> "
    "space <= size_bytes": "counts one block more than needed",
    "caching: if self._collects_garbage: | if self._collects_garbage: -> if True:": _ONLY_SPEED,
    "caching: if self._config.expandable_segments: | if self._config.expandable_segments: -> if True:": (
        "no other block can grow, so the first stays"
    ),
    "caching: if unreleasable > self._peak_unreleasable_bytes: | unreleasable > self._peak_unreleasable_bytes -> "
    "unreleasable >= self._peak_unreleasable_bytes": "an equal peak is the peak",
    "blocks: if missing <= 0 or block.size_bytes < limit_bytes: | 0 -> 1": _IN_512,
    "caching: if self.allocated_bytes > self.peak_allocated_bytes: | self.allocated_bytes > self.peak_allocated_bytes "
    "-> self.allocated_bytes >= self.peak_allocated_bytes": "an equal peak is the peak",
    "caching: if self.inactive_split_bytes > self._peak_inactive_split_bytes: | self.inactive_split_bytes > "
    "self._peak_inactive_split_bytes -> self.inactive_split_bytes >= self._peak_inactive_split_bytes": (
        "an equal peak is the peak"
    ),
    "caching: _NO_REST = 1 << 62 | 1 -> 2": _ARBITRARY,
    "caching: _NO_REST = 1 << 62 | 62 -> 63": _ARBITRARY,
    "caching: return SMALL_BYTES + 1 if limit is None or size < limit else _NO_REST | 1 -> 2": _IN_512,
    "caching: index = self._best_fit(pool, size) if self._chooses else bisect_left(keys, least_key) | "
    "self._best_fit(pool, size) if self._chooses else bisect_left(keys, least_key) -> "
    "self._best_fit(pool, size) if True else bisect_left(keys, least_key)": _ONLY_SPEED,
    "caching: if not self._chooses: | if not self._chooses: -> if False:": _ONLY_SPEED,
    "caching: if block.after is not None and not block.after.allocated: | if block.after is not None and (not "
    "block.after.allocated): -> if True:": _ONLY_SPEED,
    "caching: if block.before is not None and not block.before.allocated: | if block.before is not None and (not "
    "block.before.allocated): -> if True:": _ONLY_SPEED,
    "blocks: return 0 | 0 -> 1": "only asked for where a neighbour is free",
    "blocks: ORDER_SHIFT = 64 | 64 -> 65": _ARBITRARY,
    "blocks: SIZE_SHIFT = ORDER_SHIFT + 32 | 32 -> 33": _ARBITRARY,
    "blocks: pool.searches += 1 | 1 -> 2": "ages are compared with their mean",
}
"""Changes that change nothing, with the reason."""


MOST_NEW_BYTES = 1 << 30


class EndlessError(Exception):
    """A mutant loops."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Stop what computes for longer than `seconds`, or makes more than `MOST_NEW_BYTES`.

    The alarm rings again and again, and garbage collection waits: an exception that is raised in a callback of the
    collector is lost, and an endless mutant would take all memory.
    """

    def stop(*_: object) -> None:
        raise EndlessError

    before = signal.signal(signal.SIGPROF, stop)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    gc.disable()
    resource.setrlimit(resource.RLIMIT_AS, (_address_space_bytes() + MOST_NEW_BYTES, limits[1]))
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.05)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGPROF, before)
        gc.enable()


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def survives(mutant: Mutant) -> bool:
    try:
        with alarm(LOOP_S):
            model = loaded(mutant)
            for scenario in SCENARIOS:
                scenario(model)
    except Exception:  # anything but success: the mutant is found out
        return False
    return True


def test_the_unchanged_model_passes():
    model = loaded()
    for scenario in SCENARIOS:
        scenario(model)


@pytest.mark.parametrize("module", MODULES)
def test_every_changed_rule_fails_a_hand_worked_sequence(module):
    survivors = {str(mutant) for mutant in mutants(module) if survives(mutant)}
    unknown = survivors - set(EQUIVALENT)
    assert not unknown, "\n".join(sorted(unknown))


def test_the_list_of_equivalents_is_of_mutants_that_exist():
    assert set(EQUIVALENT) <= {str(mutant) for module in MODULES for mutant in mutants(module)}
