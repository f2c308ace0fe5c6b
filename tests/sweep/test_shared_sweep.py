"""Two machines, one results_dir: the second runs nothing that the first has answered, and anyone can report."""

import signal

import pytest
from sweep_fakes import FakeWorld

from profiler.command_line import Interrupted
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.domain.runs.outcome import Outcome, Status, TrialRecord, Verdict
from profiler.report import main as drawing
from profiler.report.main import main as report
from profiler.storage.stores.leases import Leases
from profiler.storage.sweep_tables.tables import read_tables
from profiler.sweep.parts import SweepParts

GRID = "+grid=lora_vs_full"


class Machine(FakeWorld):
    """A machine whose workers write to its own folder, and whose records are where the command says."""

    signal = None
    """What ends it after its first trial."""

    def parts(self, **changes):
        real = SweepParts()
        return super().parts(open_store=real.open_store, write_tables=real.write_tables, **changes)

    def run_trials(self, plan, **how):
        self.runs.append(plan)
        if self.signal is not None:
            plan = plan[:1]
        for trial in plan:
            claim = how["store"].claim(trial.trial_id, wait=False)
            status = self.statuses.get(trial.spec.model, Status.OK)
            outcome = Outcome(verdict=Verdict(status=status))
            how["store"].write(TrialRecord.of(trial, versions=how["versions"], outcome=outcome))
            claim.release()
        if self.signal is not None:
            raise Interrupted(self.signal)
        return ()


@pytest.fixture
def world():
    return Machine()


@pytest.fixture
def on(sweep, tmp_path, monkeypatch):
    """Return a function that runs a command line on a machine of some name."""
    monkeypatch.setattr(Leases, "_start_renewing", lambda self: None)
    monkeypatch.setattr(drawing, "chosen", lambda sections, _: [() for _ in sections])
    monkeypatch.chdir(tmp_path)
    address = f"file://{tmp_path / 'mounted'}"

    def run(machine, *words):
        monkeypatch.setenv("GRPO_VRAM_CACHE", str(tmp_path / machine))
        return sweep(GRID, *words, results_dir=address)

    return run


def test_a_second_machine_continues_where_the_first_ended_and_anyone_reports(on, world, tmp_path, capsys):
    world.statuses = {"qwen2.5-3b": Status.FAILED}
    code, out, _ = on("one")
    assert code == 3
    address = f"file://{tmp_path / 'mounted' / 'lora_vs_full'}"
    assert f"Published at {address}." in out
    world.statuses = {}
    code, out, err = on("two")
    assert (code, err) == (EXIT_OK, "")
    assert f"20 of 25 trials are stored already in {address}." in out
    assert {trial.spec.model for trial in world.runs[1]} == {"qwen2.5-3b"}
    assert len(read_tables(tmp_path / "mounted" / "lora_vs_full").runs) == 25
    assert not (tmp_path / "results").exists()
    assert report([address]) == EXIT_OK
    found = read_tables(tmp_path / "results" / "combined" / "lora_vs_full")
    assert len(found.runs) == 25
    assert found.question.startswith("Which sizes fit")
    assert "25 trials of 1 folder." in capsys.readouterr().out


def test_what_failed_does_not_run_again_on_a_machine_that_was_taken_away_and_comes_back(on, world):
    world.statuses, world.signal = {"qwen2.5-0.5b": Status.FAILED}, signal.SIGTERM
    assert on("one", "model=qwen2.5-0.5b")[0] == 128 + signal.SIGTERM
    world.statuses, world.signal = {}, None
    code, out, _ = on("two", "model=qwen2.5-0.5b")
    assert (code, len(world.runs[1])) == (3, 4)
    assert (
        "This sweep goes on: 1 trial that has ended in it does not run again before its end, whatever the result."
    ) in out


def test_records_are_reported_that_no_table_has_yet(on, world, tmp_path):
    on("one", "model=qwen2.5-0.5b")
    (tmp_path / "mounted" / "lora_vs_full" / "runs.parquet").unlink()
    assert report([f"file://{tmp_path / 'mounted' / 'lora_vs_full'}", f"into={tmp_path / 'x'}"]) == EXIT_OK
    assert len(read_tables(tmp_path / "x").runs) == len(world.runs[0]) == 5


def test_a_dry_run_asks_no_store(on, monkeypatch):
    monkeypatch.setattr("profiler.sweep.prepared.preparation.shared_faults", None)
    assert on("one", "dry_run=true")[0] == EXIT_OK


@pytest.mark.parametrize("address", ["ftp://a/b", "s3:///a", "file://relative"])
def test_a_wrong_address_is_one_sentence(sweep, address):
    code, _, err = sweep(GRID, results_dir=address)
    assert code == EXIT_USAGE
    assert err == f"results_dir={address}: must be a folder, s3://bucket/path, gs://bucket/path or file:///folder.\n"


def test_wrong_addresses_of_a_report_are_one_sentence(tmp_path, capsys):
    for address, sentence in (
        ("ftp://a/b", "is not an address; write s3://bucket/path"),
        (f"file://{tmp_path}/x", "results cannot be read there (there are no records)"),
    ):
        assert report([address]) == EXIT_USAGE
        said = capsys.readouterr().err
        assert sentence in said
        assert len(said.splitlines()) == 1
