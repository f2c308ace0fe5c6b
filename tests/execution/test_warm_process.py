"""The process that workers are forked from is killed, is stopped or hangs: no trial fails for that reason."""

import multiprocessing
import os
import signal
import sys
import tempfile
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from threading import Thread

import pytest
from witness import BY_LABEL, LIMIT_S, VERSIONS, Witness, is_gone, planned, wait_until

from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import EXIT_INTERNAL, UsageError
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution import WorkerProgram, run_trials
from profiler.execution.processes import warm as warm_module
from profiler.execution.processes import worker_process as forked_module
from profiler.execution.processes.warm import WarmProcess, WarmProcessError


@pytest.fixture(autouse=True)
def _no_warmed_process_yet():
    forkserver._forkserver._stop()
    yield
    forkserver._forkserver._stop()


class Meddler(Witness):
    """Sends the warmed process a signal when `count` trials run, then lets them end."""

    def __init__(self, folder: Path, number: signal.Signals, *, count: int) -> None:
        super().__init__()
        self._folder, self._number, self._count = folder, number, count
        self._thread = Thread(target=self._meddle)
        self._thread.start()

    def _meddle(self) -> None:
        wait_until(lambda: len(self._pids()) >= self._count)
        os.kill(self._pids()[0], self._number)
        (self._folder / "go").touch()

    def _pids(self) -> list[int]:
        """Return the id of the warmed process once per worker that wrote it. A file exists before its content."""
        return [int(text) for file in self._folder.glob("*.warm") if (text := file.read_text())]


def ran(folder: Path) -> list[str]:
    return sorted(line.split()[1] for line in (folder / "notes.txt").read_text().splitlines())


def test_when_it_is_killed_running_workers_finish_and_the_others_run(run, tmp_path):
    names = list("abcdefgh")
    witness = run(
        [planned(name, "waits_for_go") for name in names],
        jobs=6,
        timeout_s=LIMIT_S,
        witness=Meddler(tmp_path, signal.SIGKILL, count=6),
    )

    assert {record.outcome.status for record in witness.records.values()} == {Status.OK}
    assert ran(tmp_path) == names
    assert witness.given_up == ("The process that workers are forked from was ended by SIGKILL. It was restarted.",)


def test_when_it_is_stopped_it_is_replaced(run, tmp_path, monkeypatch):
    monkeypatch.setattr(forked_module, "EXIT_CODE_S", 0.5)
    monkeypatch.setattr(warm_module, "FORK_S", 10.0)
    names = list("abcde")
    witness = run(
        [planned(name, "waits_for_go") for name in names],
        jobs=3,
        timeout_s=LIMIT_S,
        witness=Meddler(tmp_path, signal.SIGSTOP, count=3),
    )

    assert {record.outcome.status for record in witness.records.values()} == {Status.OK}
    assert ran(tmp_path) == names
    assert witness.given_up == ("The process that workers are forked from did not answer. It was restarted.",)


def test_without_pidfds_interrupted_trials_run_again(run, tmp_path, monkeypatch):
    def unavailable(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(forked_module.os, "pidfd_open", unavailable)
    witness = run(
        [planned(name, "waits_for_go") for name in "abc"],
        jobs=2,
        timeout_s=LIMIT_S,
        witness=Meddler(tmp_path, signal.SIGKILL, count=2),
    )

    assert {record.outcome.status for record in witness.records.values()} == {Status.OK}
    assert sorted(witness.records) == list("abc")


class Starter(Witness):
    """Lets a trial go on when it is known to run."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def started(self, trial: PlannedTrial) -> None:
        super().started(trial)
        (self._folder / "go").touch()


def test_a_worker_that_ends_with_the_warmed_process_runs_again(run, tmp_path):
    plan = [planned("a", "dies_with_the_warmed_process"), planned("b")]
    witness = run(plan, timeout_s=LIMIT_S, witness=Starter(tmp_path))

    assert {record.outcome.status for record in witness.records.values()} == {Status.OK}
    assert [what for what in witness.calls if what == ("finished", "a")] == [("finished", "a")]
    assert witness.losses == ["a"]
    assert ran(tmp_path) == ["a", "a", "b"]


def warm_run(store, tmp_path, monkeypatch, failures: str, *, warm_up_s: float) -> Witness:
    # Before Python 3.12 the warmed process does not inherit `sys.path`.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    monkeypatch.setenv("FAIL_AT_IMPORT", f"{failures} {tmp_path}")
    witness = Witness()
    witness.given_up = run_trials(
        [planned("a"), planned("b")],
        options=RunOptions(jobs=1, timeout_s=LIMIT_S, warm_up_s=warm_up_s),
        store=store,
        versions=VERSIONS,
        observer=witness,
        program=replace(BY_LABEL, preload=("fails_at_import",)),
    )
    return witness


def test_what_is_preloaded_is_imported_once_also_if_it_needs_this_package(store, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    witness = Witness()
    program = WorkerProgram(target="preloaded_target:job", preload=("preloaded_target",))
    run_trials([planned("a")], options=RunOptions(), store=store, versions=VERSIONS, observer=witness, program=program)
    assert witness.records["a"].outcome.status is Status.OK


def test_one_that_imported_something_else_is_replaced(store, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    WarmProcess(BY_LABEL, jobs=1, warm_up_s=LIMIT_S).start()
    before = forkserver._forkserver._forkserver_pid
    WarmProcess(BY_LABEL, jobs=1, warm_up_s=LIMIT_S).start()
    assert forkserver._forkserver._forkserver_pid == before
    witness = Witness()
    program = WorkerProgram(target="preloaded_target:job", preload=("preloaded_target",))
    run_trials([planned("a")], options=RunOptions(), store=store, versions=VERSIONS, observer=witness, program=program)
    assert witness.records["a"].outcome.status is Status.OK
    assert witness.given_up == ()
    assert is_gone(before)


@pytest.mark.parametrize(
    ("failures", "ending"),
    [
        ("1 kill", "was ended by SIGKILL"),
        ("2 kill", "was ended by SIGKILL"),
        ("1 stop", "had not imported fails_at_import within {limit_s:g} s"),
        ("1 hang", "had not imported fails_at_import within {limit_s:g} s"),
    ],
)
def test_if_it_ends_or_hangs_during_imports_it_is_restarted(
    store, tmp_path, monkeypatch, longer_than_imports_s, failures, ending
):
    limit_s = LIMIT_S if "kill" in failures else longer_than_imports_s
    witness = warm_run(store, tmp_path, monkeypatch, failures, warm_up_s=limit_s)

    assert {record.outcome.status for record in witness.records.values()} == {Status.OK}
    assert ran(tmp_path) == ["a", "b"]
    restarts = int(failures.split()[0])
    sentence = f"The process that workers are forked from {ending.format(limit_s=limit_s)}. It was restarted."
    assert witness.given_up == (sentence,) * restarts


def test_an_import_that_raises_is_reported_by_the_workers(store, tmp_path, monkeypatch, capfd):
    witness = warm_run(store, tmp_path, monkeypatch, "9 raise", warm_up_s=LIMIT_S)

    assert len(list(tmp_path.glob("failed.*"))) == 1
    assert {record.outcome.status for record in witness.records.values()} == {Status.OK}
    assert witness.given_up == ()
    assert capfd.readouterr().err == ""


def test_ctrl_c_during_its_imports_prints_no_traceback_and_does_not_end_it(store, tmp_path, monkeypatch, capfd):
    """Ctrl-C goes to every process of the terminal; the sweep ends this one itself."""
    witness = warm_run(store, tmp_path, monkeypatch, "1 interrupt", warm_up_s=LIMIT_S)

    assert len(list(tmp_path.glob("failed.*"))) == 1
    assert {record.outcome.status for record in witness.records.values()} == {Status.OK}
    assert witness.given_up == ()
    assert capfd.readouterr().err == ""


def test_a_sweep_that_ends_while_it_starts_a_worker_prints_no_traceback(tmp_path, capfd):
    warm = WarmProcess(BY_LABEL, jobs=1, warm_up_s=LIMIT_S)
    warm.start()
    pid_of_worker, job = forkserver.connect_to_new_process([])
    os.close(job)  # the sweep ends
    worker = forkserver.read_signed(pid_of_worker)
    assert is_gone(worker)
    os.close(pid_of_worker)
    assert capfd.readouterr().err == ""


def test_a_worker_takes_sigint(run, tmp_path):
    witness = run([planned("a", "interrupts_itself")])
    assert witness.records["a"].outcome.message.splitlines()[-1] == "KeyboardInterrupt"


@pytest.mark.parametrize(
    ("failures", "ending"), [("9 kill", "was ended by SIGKILL again"), ("9 hang", "within {limit_s:g} s again")]
)
def test_after_two_restarts_it_is_given_up_with_one_sentence(
    store, tmp_path, monkeypatch, longer_than_imports_s, failures, ending
):
    limit_s = LIMIT_S if "kill" in failures else longer_than_imports_s
    with pytest.raises(WarmProcessError, match=ending.format(limit_s=limit_s)) as raised:
        warm_run(store, tmp_path, monkeypatch, failures, warm_up_s=limit_s)

    assert raised.value.exit_code == EXIT_INTERNAL
    assert len(list(tmp_path.glob("failed.*"))) == 3
    assert store.read_all() == ()
    assert not list(tmp_path.rglob("*.lock"))


@pytest.fixture
def long_tmpdir(tmp_path, monkeypatch):
    """A folder for temporary files, as Slurm makes them: too long for the path of a socket."""
    folder = tmp_path / "scratch" / ("job" * 30)
    folder.mkdir(parents=True)
    config = multiprocessing.current_process()._config
    before = config.pop("tempdir", None)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    config["tempdir"] = before


def test_sockets_are_made_where_their_paths_are_short_enough(long_tmpdir):
    WarmProcess(replace(BY_LABEL, preload=()), jobs=1, warm_up_s=LIMIT_S).start()
    assert Path(forkserver._forkserver._forkserver_address).exists()
    assert tempfile.gettempdir() == str(long_tmpdir)


def test_without_a_short_folder_the_variable_is_named(long_tmpdir, monkeypatch):
    monkeypatch.setattr(warm_module, "_SHORT_FOLDERS", ("/nowhere/at/all",))
    with pytest.raises(UsageError, match=r"TMPDIR=.*: is too long for the path of a socket"):
        WarmProcess(replace(BY_LABEL, preload=()), jobs=1, warm_up_s=LIMIT_S).start()
