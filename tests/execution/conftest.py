import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from profiler.domain.trial import PlannedTrial
from profiler.execution import run_trials
from profiler.storage.records import RecordStore

sys.path.insert(0, str(Path(__file__).parent))  # where workers find `worker_targets`
sys.path.insert(0, str(Path(__file__).parents[1] / "measurement"))  # where `scripted` is

from witness import VERSIONS, Witness


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path)


@pytest.fixture
def run(store: RecordStore) -> Callable[..., Witness]:
    def run_plan(
        plan: Sequence[PlannedTrial],
        *,
        jobs: int = 1,
        timeout_s: float = 60.0,
        resume: bool = True,
        witness: Witness | None = None,
        **more: object,
    ) -> Witness:
        witness = witness or Witness()
        witness.given_up = run_trials(
            plan,
            store=store,
            versions=VERSIONS,
            jobs=jobs,
            timeout_s=timeout_s,
            observer=witness,
            target="worker_targets:by_label",
            preload=(),
            resume=resume,
            **more,
        )
        return witness

    return run_plan
