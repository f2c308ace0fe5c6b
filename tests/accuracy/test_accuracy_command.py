"""The command, with a simulation that is made up: each record is the estimate, a little more."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import changed, failed, outcome, record, spec

from maintenance.accuracy.errors import Predictor, group_errors, phase_errors, predictor_errors, worst_rows
from maintenance.accuracy.judgement import FIGURE, JUDGEMENTS, PAGE, ROWS, page_of, read_judgements
from maintenance.accuracy.main import SIMULATED, main
from maintenance.accuracy.rows import simulated_frame
from maintenance.samples.judgement import committed
from maintenance.samples.sampling import SAMPLED, architecture_of
from profiler.analytical import estimate
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, EXIT_USAGE, UsageError
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
        made = record(trial.spec, outcome=failed() if is_failing else found, versions=installed_versions())
        return replace(made, trial_id=trial.trial_id)


KEPT = Path(__file__).parents[2] / "results" / "reference" / "accuracy"
JUDGE = ("simulate=false", "judge=true")


def test_simulating_makes_no_estimate_and_judging_runs_nothing(tmp_path, capsys):
    simulating = _Simulating()
    words = ["count=4", "seed=3", f"results_dir={tmp_path}"]

    assert main(words, simulate=simulating) == EXIT_OK
    folder = tmp_path / "accuracy"
    assert {path.name for path in folder.iterdir()} == {SAMPLED, SIMULATED, "records"}
    assert not any("estimated" in name for name in pd.read_parquet(folder / SIMULATED))
    # What was simulated is kept in the table; its records are of no more use.
    shutil.rmtree(folder / "records")
    assert main([*words, *JUDGE], simulate=simulating, commit_of=lambda: "c0ffee") == EXIT_OK
    assert {path.name for path in folder.iterdir()} == {SAMPLED, SIMULATED, ROWS, PAGE, f"{FIGURE}.png", JUDGEMENTS}
    assert len(simulating.ran) == len(pd.read_parquet(folder / ROWS)) == 4
    page = (folder / PAGE).read_text()
    assert "| closed form | 4 | 2.0 % | 2.0 % | -2% |" in page
    assert "4 trials were sampled by seed 3" in page
    assert "=nan" not in page
    assert "commit c0ffee, which judged the sample for the first time" in page
    assert "4 of 4 trials are answered" in capsys.readouterr().out

    simulated, frame = pd.read_parquet(folder / SIMULATED), pd.read_parquet(folder / ROWS)
    assert page_of(simulated, frame, read_judgements(folder)) == page
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main([*words, *JUDGE], simulate=simulating, commit_of=lambda: "c0ffee") == EXIT_OK
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert main([*words, *JUDGE], commit_of=lambda: "decade") == EXIT_OK
    said = " ".join((folder / PAGE).read_text().split())
    assert (
        "commit decade. Commit c0ffee judged the sample for the first time, on 4 trials: 95th percentile 2.0 %" in said
    )


def test_a_part_is_continued_and_what_failed_runs_again(tmp_path):
    words = ["count=4", "seed=3", f"results_dir={tmp_path}"]
    simulating = _Simulating(failing=(1,))

    assert main([*words, "limit=2"], simulate=simulating) == EXIT_SOME_TRIALS_FAILED
    assert list(pd.read_parquet(tmp_path / "accuracy" / SIMULATED)["status"]) == ["ok", "failed"]
    shutil.rmtree(tmp_path / "accuracy" / "records")
    assert main([*words, *JUDGE], commit_of=lambda: "c0ffee") == EXIT_OK
    page = (tmp_path / "accuracy" / PAGE).read_text()
    assert "| simulation: failed | 1 | RuntimeError: made up \\|" in page
    again = _Simulating()
    assert main(words, simulate=again) == EXIT_OK
    assert len(again.ran) == 3
    assert again.ran[0] == simulating.ran[1]


def test_the_kept_page_follows_from_the_kept_rows():
    both = read_judgements(KEPT)
    if both is None:
        return
    simulated, frame = pd.read_parquet(KEPT / SIMULATED), pd.read_parquet(KEPT / ROWS)
    assert page_of(simulated, frame, both) == (KEPT / PAGE).read_text()
    needed = simulated[simulated["required_allocated_bytes"].notna()]
    assert list(needed["trial_id"]) == list(frame["trial_id"])


def test_kept_messages_name_no_file_of_the_machine():
    ends = {
        Status.FAILED: "Traceback:\n  File x\nUnforeseen ValueError: x. The full text is in /tmp/a.stderr.",
        Status.TIMEOUT: "The worker had not ended after 40 s.\n/tmp/x.py:1: FutureWarning: y",
    }
    outcomes = [failed(status, message) for status, message in ends.items()]
    rows = simulated_frame({number: record(spec(), outcome=each) for number, each in enumerate(outcomes)})
    assert list(rows["message"]) == ["Unforeseen ValueError: x.", "The worker had not ended after 40 s."]


def test_estimates_are_those_of_committed_code(tmp_path, capsys):
    def git(*words):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    code = tmp_path / "profiler" / "formula.py"
    code.parent.mkdir()
    code.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "Add")
    assert len(committed(tmp_path)) == 12
    (tmp_path / "notes.md").write_text("")
    assert len(committed(tmp_path)) == 12
    code.write_text("2")
    with pytest.raises(UsageError, match="not committed"):
        committed(tmp_path)
    with pytest.raises(UsageError, match="clone"):
        committed(tmp_path / "profiler" / "nowhere")


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
    frame["recipe"] = ["grpo", "grpo", "sft", "sft"]
    for key in ("tuning", "model_type", "alloc_conf", "attention_dropout"):
        frame[key] = "x"
    grpo, sft = group_errors(frame)["recipe"]
    assert (grpo.value, grpo.allocated.rows, grpo.allocated.worst_ratio) == ("grpo", 2, pytest.approx(-0.1))
    assert (sft.value, sft.reserved.worst_ratio) == ("sft", pytest.approx(0.3))
    assert [row.reason for row in worst_rows(frame, 2)] == ["row 2", "row 0"]
    assert [row.error_ratio for row in worst_rows(frame, 2)] == pytest.approx([0.3, -0.1])
