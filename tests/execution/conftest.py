import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from profiler.config.options.run_options import RUN_KEYS, RunOptions
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution import run_trials
from profiler.storage.stores.record_store import RecordStore

sys.path.insert(0, str(Path(__file__).parent))  # where workers find `worker_targets`
sys.path.insert(0, str(Path(__file__).parents[1] / "measurement"))  # where `scripted` is

from witness import BY_LABEL, VERSIONS, Witness


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path)


@pytest.fixture
def run(store: RecordStore) -> Callable[..., Witness]:
    """Run a plan. Keywords of run options and of the program become part of them; the others go to `run_trials`."""

    def run_plan(plan: Sequence[PlannedTrial], *, witness: Witness | None = None, **more: object) -> Witness:
        witness = witness or Witness()
        chosen = {"jobs": 1, "timeout_s": 60.0, **{key: more.pop(key) for key in RUN_KEYS if key in more}}
        of_program = {key: more.pop(key) for key in ("interpreter_of", "meanwhile") if key in more}
        program = replace(BY_LABEL, **of_program)
        witness.given_up = run_trials(
            plan,
            options=RunOptions(**chosen),
            store=store,
            versions=VERSIONS,
            observer=witness,
            program=program,
            **more,
        )
        return witness

    return run_plan
