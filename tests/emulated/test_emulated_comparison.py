"""The command, with workers that are made up: the simulated side needs a little more than the emulated one."""

from dataclasses import replace

import pandas as pd
import pytest
from builders import EMULATED_VERSIONS, VERSIONS, changed, failed, outcome, record

from maintenance.emulated.differences import differences, opposite_ends
from maintenance.emulated.main import main
from maintenance.emulated.results import CAUSES, PAGE, ROWS
from maintenance.emulated.running import Side
from maintenance.samples.sampling import SAMPLED
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_SOME_TRIALS_FAILED, EXIT_USAGE
from profiler.domain.memory import Phase
from profiler.domain.runs.outcome import Status
from profiler.domain.runs.readings import OutOfMemory, PhasePeak
from profiler.domain.trials.trial import Backend

SIDES = tuple(
    Side(backend=backend, versions=versions, interpreter_of=lambda _: None)
    for backend, versions in ((Backend.EMULATED, EMULATED_VERSIONS), (Backend.SIMULATED, VERSIONS))
)


class Workers:
    """Leave a record of each trial; those on the cards and sides of `ends` end otherwise."""

    def __init__(self, ends=None):
        self.ran = []
        self._ends = ends or {}

    def __call__(self, trials, side, *, store, options):
        for trial in trials:
            self.ran.append(trial)
            store.write(record(trial.spec, outcome=self._outcome(trial.spec), versions=side.versions))

    def _outcome(self, spec):
        size = 1_000_000_000 + 100_000 * (spec.backend is Backend.SIMULATED)
        peak = PhasePeak(phase=Phase.BACKWARD, peak_allocated_bytes=size, peak_reserved_bytes=2 * size)
        found = changed(
            outcome(spec),
            status=Status.OK,
            oom=None,
            peak_allocated_bytes=size,
            peak_reserved_bytes=2 * size,
            breakdown=(),
            phases=(peak,),
        )
        return self._ends.get((spec.gpu, spec.backend), lambda _: found)(found)


def out_of_memory(phase):
    return lambda found: changed(found, status=Status.OOM, oom=OutOfMemory(phase=phase, requested_bytes=1))


def command(folder, workers, *words):
    return main([*words, f"results_dir={folder}"], sides_of=lambda _: SIDES, run=workers)


def test_one_command_samples_runs_both_sides_and_writes_everything(tmp_path, capsys):
    workers = Workers()

    assert command(tmp_path, workers, "limit=4") == EXIT_OK
    assert len(workers.ran) == 8
    folder = tmp_path / "emulated"
    assert {path.name for path in folder.iterdir()} == {SAMPLED, ROWS, PAGE, "records"}
    frame = pd.read_csv(folder / ROWS)
    assert list(frame.phase) == ["all", "backward"] * 4
    page = (folder / PAGE).read_text()
    assert "| ok | ok | 4 |" in page
    assert "| all | allocated | 4 | 0 | 0.0100 % | 0.0100 % | 0.0100 % |" in page
    assert "median 0.05 %, 95th percentile 0.3 %) holds" in page
    assert "4 of 4 trials have run on both sides; 0 runs are left." in capsys.readouterr().out
    assert command(tmp_path, workers, "limit=4") == EXIT_OK
    assert len(workers.ran) == 8


def test_a_long_series_runs_in_parts_card_by_card(tmp_path):
    workers = Workers()

    assert command(tmp_path, workers, "limit=20", "at_most=3") == EXIT_SOME_TRIALS_FAILED
    assert len(workers.ran) == 6
    while command(tmp_path, workers, "limit=20", "at_most=3") != EXIT_OK:
        pass
    emulated = [trial.spec.gpu for trial in workers.ran if trial.spec.backend is Backend.EMULATED]
    assert len(emulated) == 20
    assert emulated == sorted(emulated)


def test_trials_that_end_differently_are_listed_with_their_causes(tmp_path, capsys):
    workers = Workers(
        {
            ("rtx-5090-32gb", Backend.EMULATED): lambda _: failed(),
            ("h200-141gb", Backend.EMULATED): out_of_memory(Phase.BACKWARD),
            ("h200-141gb", Backend.SIMULATED): out_of_memory(Phase.FORWARD),
        }
    )
    assert command(tmp_path, workers, "limit=6") == EXIT_ANSWER_IS_NO
    folder = tmp_path / "emulated"
    found = opposite_ends(pd.read_csv(folder / ROWS), {})
    assert capsys.readouterr().err.count("ends differently: emulated") == len(found)
    assert {(each.emulated, each.simulated) for each in found} == {
        ("failed", "ok"),
        ("oom in backward", "oom in forward"),
    }
    assert (folder / PAGE).read_text().count("| open |") == len(found)
    lines = [f"{each.trial},the driver lacks a function" for each in found]
    (folder / CAUSES).write_text("\n".join(["trial,cause", *lines, ""]))
    assert command(tmp_path, workers, "limit=6", "at_most=0") == EXIT_OK
    page = (folder / PAGE).read_text()
    assert "| open |" not in page
    assert page.count("the driver lacks a function") == len(found)


def test_errors_by_hand():
    frame = pd.DataFrame(
        {
            "trial": range(4),
            "phase": "all",
            "emulated_status": ["ok", "ok", "ok", "oom"],
            "simulated_status": "ok",
            "emulated_oom_phase": [None, None, None, "forward"],
            "simulated_oom_phase": None,
            "emulated_allocated_bytes": [1000, 1000, 1000, 1],
            "simulated_allocated_bytes": [1000, 1001, 990, 1000],
            "emulated_reserved_bytes": [1000, 1000, 1000, 1],
            "simulated_reserved_bytes": [1000, 1000, 1001, 1000],
        }
    )

    allocated, reserved = differences(frame)
    assert (allocated.equal, allocated.errors.rows) == (1, 3)
    assert allocated.errors.median_ratio == pytest.approx(0.001)
    assert allocated.errors.worst_ratio == pytest.approx(-0.01)
    assert not allocated.is_within
    assert (reserved.equal, reserved.is_within) == (2, True)
    assert [(each.trial, each.cause) for each in opposite_ends(frame, {3: "known"})] == [(3, "known")]


def test_all_faults_are_reported_at_once(capsys, tmp_path):
    assert command(tmp_path, Workers(), "limti=3", "jobs=0", "sed") == EXIT_USAGE
    assert [line.partition("=")[0] for line in capsys.readouterr().err.splitlines()] == ["limti", "argument", "jobs"]
    assert not list(tmp_path.iterdir())


def test_a_trial_is_the_same_but_for_its_side(tmp_path):
    workers = Workers()
    command(tmp_path, workers, "limit=1")
    emulated, simulated = workers.ran
    assert replace(emulated.spec, backend=Backend.SIMULATED) == simulated.spec
    assert emulated.trial_id != simulated.trial_id
