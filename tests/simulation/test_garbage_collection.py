"""What a run leaves frozen for the garbage collector: nothing, unless the process had frozen its imports before."""

from types import SimpleNamespace

import pytest

from profiler.simulation import session


class Collector(SimpleNamespace):
    """The functions of `gc` that a run calls."""

    def __init__(self, frozen: int) -> None:
        super().__init__(frozen=frozen, counted=0, collect=lambda: 0, enable=lambda: None, disable=lambda: None)

    def freeze(self) -> None:
        self.frozen += 10

    def unfreeze(self) -> None:
        self.frozen = 0

    def get_freeze_count(self) -> int:
        self.counted += 1
        return int(self.frozen)


def collector(monkeypatch: pytest.MonkeyPatch, *, frozen: int) -> Collector:
    fake = Collector(frozen)
    monkeypatch.setattr(session, "gc", fake)
    monkeypatch.setattr(session, "_keeps_frozen", False)
    return fake


def run_twice() -> None:
    for _ in range(2):
        with session._no_automatic_collection():
            pass


def test_a_process_that_froze_nothing_has_nothing_frozen_after_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = collector(monkeypatch, frozen=0)
    run_twice()
    assert fake.frozen == 0


def test_what_was_frozen_stays_frozen_and_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = collector(monkeypatch, frozen=5)
    run_twice()
    assert fake.frozen >= 5
    assert fake.counted == 1


def test_what_a_warmed_process_froze_is_never_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = collector(monkeypatch, frozen=0)
    session.freeze_imported()
    run_twice()
    assert fake.frozen >= 10
    assert fake.counted == 0
