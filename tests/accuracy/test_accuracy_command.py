"""The command, with a simulation that is made up: each record is the estimate, a little more."""

import numpy as np
import pandas as pd
import pytest
from builders import changed, failed, outcome, record

from maintenance.accuracy.errors import Predictor, phase_errors, predictor_errors, worst_rows
from maintenance.accuracy.main import FIGURE, PAGE, ROWS, main
from maintenance.samples.sampling import SAMPLED, architecture_of
from profiler.analytical import estimate
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, EXIT_USAGE
from profiler.domain.runs.outcome import Status
from profiler.domain.runs.readings import PhasePeak
from profiler.storage.records.versioned import installed_versions


class _Simulating:
    """Leaves a record of each trial that needs `ratio` times the estimate; fails those in `failing`."""

    def __init__(self, ratio=1.02, failing=()):
        self.ran = []
        self._ratio, self._failing = ratio, failing

    def __call__(self, plan, store, settings):
        for number, trial in enumerate(plan):
            if store.find(trial.trial_id) is None:
                self.ran.append(trial.trial_id)
                store.write(self._record(trial, is_failing=number in self._failing))

    def _record(self, trial, *, is_failing):
        said = outcome(trial.spec)
        needed = int(self._ratio * estimate(trial.spec, architecture_of(trial.spec.model)).peak_allocated_bytes)
        found = changed(
            said,
            status=Status.OK,
            oom=None,
            peak_allocated_bytes=needed,
            required_allocated_bytes=needed,
            required_reserved_bytes=2 * needed,
            breakdown=(),
            phases=tuple(
                PhasePeak(phase=peak.phase, peak_allocated_bytes=needed, peak_reserved_bytes=None)
                for peak in said.peaks.phases
            ),
        )
        return record(trial.spec, outcome=failed() if is_failing else found, versions=installed_versions())


def test_one_command_samples_simulates_and_writes_everything(tmp_path, capsys):
    simulating = _Simulating()
    words = ["count=4", "seed=3", f"results_dir={tmp_path}"]

    assert main(words, simulate=simulating) == EXIT_OK
    folder = tmp_path / "accuracy"
    assert {path.name for path in folder.iterdir()} == {
        SAMPLED,
        PAGE,
        ROWS,
        f"{FIGURE}.png",
        "records",
    }
    frame = pd.read_parquet(folder / ROWS)
    assert len(frame) == 4
    page = (folder / PAGE).read_text()
    assert "| closed form | 4 | 2.0 % | 2.0 % | -2% |" in page
    assert "4 of 4 sampled trials are simulated" in page
    assert main(words, simulate=simulating) == EXIT_OK
    assert len(simulating.ran) == 4
    assert "4 of 4 trials are answered" in capsys.readouterr().out


def test_a_part_can_be_looked_at_and_failures_are_reported(tmp_path):
    words = ["count=4", "seed=3", "limit=2", f"results_dir={tmp_path}"]

    assert main(words, simulate=_Simulating(failing=(1,))) == EXIT_SOME_TRIALS_FAILED
    assert "1 of 4 sampled trials are simulated" in (tmp_path / "accuracy" / PAGE).read_text()


def test_an_existing_sample_is_kept(tmp_path, capsys):
    assert main(["count=2", "seed=3", "simulate=false", f"results_dir={tmp_path}"]) == EXIT_OK
    before = (tmp_path / "accuracy" / SAMPLED).read_bytes()

    assert main(["count=2", "seed=4", "simulate=false", f"results_dir={tmp_path}"]) == EXIT_USAGE
    assert "written before any result was known" in capsys.readouterr().err
    assert (tmp_path / "accuracy" / SAMPLED).read_bytes() == before


def test_all_faults_are_reported_at_once(capsys):
    assert main(["cuont=3", "jobs=0", "sed"]) == EXIT_USAGE
    assert [line.partition("=")[0] for line in capsys.readouterr().err.splitlines()] == ["cuont", "argument", "jobs"]


def _frame(said, needed):
    columns = {
        "required_allocated_bytes": needed,
        "required_reserved_bytes": needed,
        "estimated_allocated_bytes": said,
        "estimated_reserved_bytes": said,
        "blog_bytes": [2 * value for value in needed],
        "verl_report_bytes": [value // 2 for value in needed],
        "accelerate_bytes": [4 * value for value in needed],
        "largest_difference": [f"row {row}" for row in range(len(said))],
    }
    for phase in ("load", "rollout", "score", "reward", "forward", "backward", "optimizer"):
        columns[f"estimated_{phase}_bytes"] = said
        columns[f"simulated_{phase}_bytes"] = [None, *needed[1:]]
    return pd.DataFrame(columns)


def test_errors_by_hand():
    frame = _frame([90, 100, 130, 100], [100, 100, 100, 100])
    found = {summary.of: summary for summary in predictor_errors(frame)}

    ours = found[Predictor.ESTIMATE.value]
    assert (ours.rows, ours.median_ratio) == (4, pytest.approx(0.05))
    assert ours.p95_ratio == pytest.approx(np.percentile([0.1, 0.0, 0.3, 0.0], 95))
    assert ours.worst_ratio == pytest.approx(0.3)
    assert found[Predictor.BLOG.value].worst_ratio == pytest.approx(1.0)
    assert found[Predictor.VERL_REPORT.value].worst_ratio == pytest.approx(-0.5)
    assert next(iter(found)) == Predictor.ESTIMATE.value
    assert {summary.rows for summary in phase_errors(frame)} == {3}
    assert [row.reason for row in worst_rows(frame, 2)] == ["row 2", "row 0"]
    assert [row.error_ratio for row in worst_rows(frame, 2)] == pytest.approx([0.3, -0.1])
