"""What a run of a script leaves: its record, tables, pages and figures, each with the origin of its numbers."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from script_builders import SIZES, record

from profiler.analysis.card_courses import card_courses
from profiler.analysis.runs import ordered_runs, run_lines
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UsageError
from profiler.domain.memory import GIB, Category, Phase
from profiler.domain.runs.other_runs import JobChange, JobMemory, JobPhase, JobProcess, JobRecord
from profiler.domain.runs.outcome import Status
from profiler.domain.runs.readings import CategoryShare
from profiler.domain.trials.trial import Backend
from profiler.emulation.card import note_choice, note_setting
from profiler.rendering.figures.timeline import job_course_figure
from profiler.rendering.runs.page import job_sentences
from profiler.rendering.runs.script import script_table
from profiler.run.command import JobCommand, JobEnd, read_command
from profiler.run.results import job_record, report_job, report_run, write_pages
from profiler.storage.files.typed_json import from_json, with_checksum
from profiler.storage.records.record_folder import SCRIPTS, RecordFolder
from profiler.storage.tables.laws import Laws, Trials
from profiler.storage.tables.schema import SCRIPT_TABLES


@pytest.mark.parametrize("made", [record(), record(fits=False), record(backend=Backend.CUDA, gpu=None, steps=None)])
def test_a_record_is_read_as_it_was_written(tmp_path, made):
    store = RecordFolder(tmp_path, SCRIPTS)
    store.write(made)
    assert store.find(made.run_id) == made
    assert store.read_all() == (made,)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[:100], "no record of a script"),
        (lambda text: text.replace("train.py", "other.py"), "the checksum does not match"),
        (lambda text: "[]", "not a record file"),
    ],
)
def test_a_damaged_record_is_left_out_and_named(tmp_path, change, says):
    problems = []
    store = RecordFolder(tmp_path, SCRIPTS, notify=problems.append)
    store.write(record())
    path = store.path(record().run_id)
    path.write_text(change(path.read_text()))
    assert store.read_all() == ()
    (problem,) = problems
    assert says in problem
    assert str(path) in problem


def test_the_record_of_another_run_is_left_out(tmp_path):
    problems = []
    store = RecordFolder(tmp_path, SCRIPTS, notify=problems.append)
    store.write(record())
    store.path(record().run_id).rename(store.path("1" * 16))
    assert store.read_all() == ()
    assert "it is the record of 0000000000000000" in problems[0]


def test_a_record_of_a_newer_version_is_refused(tmp_path):
    from profiler.storage.files.typed_json import checksum_of

    path = RecordFolder(tmp_path, SCRIPTS).path("0" * 16)
    path.parent.mkdir()
    content = {"script_schema_version": 99, "record": {}}
    path.write_text(json.dumps({"checksum": checksum_of(content), **content}))
    with pytest.raises(UsageError, match="newer version"):
        RecordFolder(tmp_path, SCRIPTS).read_all()


def of_trial(name):
    return "trial_id" if name == "run_id" else name


def as_of_trials(table):
    return table.rename_columns([of_trial(name) for name in table.column_names])


def test_the_tables_keep_their_laws(tmp_path):
    made = [record(), record(run_id="1" * 16, fits=False), record(run_id="2" * 16, backend=Backend.SIMULATED)]
    write_pages(tmp_path, made)
    scripts = pq.read_table(tmp_path / "scripts.parquet")
    assert scripts["status"].to_pylist() == ["ok", "oom", "ok"]
    assert scripts["backend"].to_pylist() == ["emulated", "emulated", "simulated"]
    assert scripts["emulated_values"].to_pylist() == ["complete", "complete", None]
    assert scripts["oom_requested_bytes"].to_pylist() == [None, 3 * GIB, None]
    assert scripts["arguments"].to_pylist()[0] == "--lr 1e-5"
    trials = Trials.of(as_of_trials(scripts))
    for name, columns in SCRIPT_TABLES.items():
        table = pq.read_table(tmp_path / f"{name}.parquet")
        assert table.column_names == [column.name for column in columns]
        same = [replace(column, name=of_trial(column.name)) for column in columns]
        laws = Laws(same, None if name == "scripts" else trials)
        laws.check(as_of_trials(table))
        laws.finish()
        assert not laws.problem
    assert pq.read_table(tmp_path / "script_phases.parquet").num_rows == 3 * len(SIZES)
    assert pq.read_table(tmp_path / "script_largest.parquet")["rank"].to_pylist() == [1, 2, 3]


def test_every_page_says_where_its_numbers_come_from(tmp_path):
    write_pages(tmp_path, [record(), record(run_id="1" * 16, backend=Backend.SIMULATED)])
    for name in ("report.html", "report.md"):
        page = (tmp_path / name).read_text()
        assert "Emulated on NVIDIA L40S (44.0 GiB): train.py" in page
        assert "Simulated on NVIDIA L40S (44.0 GiB): train.py" in page
        assert "Peak of each phase, emulated, GiB" in page
        assert "Peak, simulated: 7.00 GiB allocated, in backward" in page
    figures = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert figures == [f"{run * 16}.{kind}" for run in "01" for kind in ("png", "svg")]


def test_names_of_a_script_do_not_become_html(tmp_path):
    write_pages(tmp_path, [record(script="/x/<script>alert(1)</script>.py", arguments=("<b>", "|x|"))])
    page = (tmp_path / "report.html").read_text()
    assert "<script>" not in page
    assert "<b>" not in page
    assert "<script>" not in (tmp_path / "report.md").read_text().split("```")[0]


def test_the_terminal_shows_the_failure_and_the_largest_tensors():
    text = " ".join(script_table(run_lines(record(fits=False))).split())
    assert "Out of memory in backward of step 2: 3.00 GiB requested, 1.00 GiB free, 9.00 GiB in tensors" in text
    assert "4.00 24 layers.*.weight 2.00 3 made in modeling.py:7 train.py:41 1.00 1 unknown" in text
    assert text.startswith("Substitutes: weights of a/b (random, from its configuration). Emulated on NVIDIA L40S")
    assert "Largest tensors when the allocation failed:" in text


def test_a_run_is_shown_with_all_runs_of_its_script(tmp_path, capsys):
    store = RecordFolder(tmp_path, SCRIPTS)
    for made in (record(), record(run_id="1" * 16, backend=Backend.SIMULATED)):
        store.write(made)
    report_run(tmp_path, record())
    printed = capsys.readouterr().out
    assert "\nEmulated on NVIDIA L40S (44.0 GiB): train.py\nphase" in printed
    assert "Simulated" not in printed
    assert printed.endswith(f"Report: {tmp_path / 'report.html'}\n")
    assert [run.origin.value for run in ordered_runs(store.read_all())] == ["emulated", "simulated"]


def test_a_record_of_the_first_version_is_read(tmp_path):
    stored = json.loads(_written(tmp_path, record()))
    assert stored.pop("script_schema_version") == 4
    del stored["checksum"], stored["record"]["late_events"], stored["record"]["outcome"]["layers_run"]
    del stored["record"]["outcome"]["host_peak_pinned_bytes"]
    del stored["record"]["spec"]["prompt_tokens"], stored["record"]["spec"]["completion_tokens"]
    path = RecordFolder(tmp_path, SCRIPTS).path(record().run_id)
    path.write_bytes(with_checksum({"script_schema_version": 1, **stored}))
    assert RecordFolder(tmp_path, SCRIPTS).find(record().run_id) == record()
    path.write_bytes(with_checksum({"script_schema_version": 4, **stored}))
    assert RecordFolder(tmp_path, SCRIPTS).find(record().run_id) is None


def _written(folder, kept) -> str:
    RecordFolder(folder, SCRIPTS).write(kept)
    return RecordFolder(folder, SCRIPTS).path(kept.run_id).read_text()


# ---- commands --------------------------------------------------------------------------------------------------------

END = JobEnd(exit_code=1, timed_out=False, wall_s=1.0, left=())


def process(pid: int, sentence: str = "", said_s: float = 0, held: int = 0, ranks: int | None = None) -> JobProcess:
    return JobProcess(
        pid=pid,
        parent=1,
        command=f"program_{pid}",
        rank=None if ranks is None else 0,
        ranks=ranks,
        roles=(),
        last_sentence=sentence,
        last_sentence_s=said_s,
        has_ended_itself=True,
        peak_bytes=(held,),
        refused_bytes=0,
        refused_card=None,
    )


@pytest.fixture
def ended(monkeypatch, tmp_path):
    """Return the record of a command whose processes are these."""

    def record_of(*processes, words=(), end=END):
        monkeypatch.setattr("profiler.run.results.job_of", lambda _: JobMemory(processes=processes))
        command = read_command(["gpus=8xh100-80gb", *words, "true"])
        assert isinstance(command, JobCommand)
        return job_record(command, KNOWN_GPUS["h100-80gb"], end, tmp_path)

    return record_of


def test_the_first_error_with_memory_on_a_card_ended_a_command(ended):
    """A script may look for a package before, and processes that wait for one that is gone fail after it."""
    probe, waiting = process(2, "ModuleNotFoundError: No module", said_s=1), process(3, "RuntimeError: cancelled", 3)
    worker = process(4, "OutOfMemoryError: CUDA out of memory.", said_s=2, held=GIB)
    found = ended(probe, waiting, worker)
    assert (found.status, "program_4" in found.message) == (Status.OOM, True)
    found = ended(probe, waiting)
    assert (found.status, "program_2" in found.message) == (Status.FAILED, True)
    killed = replace(process(5, held=GIB), has_ended_itself=False)  # by the system, or by Ray, where the host is full
    found = ended(probe, killed)
    assert (found.status, "without a word ended process 5" in found.message) == (Status.FAILED, True)
    assert any(line.startswith("Also, process 2") for line in job_sentences(found))


SERVER = "OSError: [Errno 98] port 8000 is in use by process 7: end it, or choose another port"


@pytest.mark.parametrize(
    ("first", "second", "held", "cause"),
    [
        (SERVER, "ConnectionError: The vLLM server can't be reached", GIB, 1),
        (SERVER, "RuntimeError: no weights were taken", GIB, 1),
        (SERVER, "", GIB, 1),
        ("ValueError: an unknown key of the server", "requests.exceptions.ConnectionError: refused", GIB, 1),
        ("ValueError: an unknown key of the server", "EOFError", GIB, 1),
        ("ValueError: of a script that the job survives", "RuntimeError: shapes do not match", GIB, 2),
        ("ModuleNotFoundError: No module named 'vllm'", "TimeoutError", GIB, 1),
    ],
)
def test_a_process_that_lost_another_is_not_the_cause(ended, first, second, held, cause):
    later = replace(process(2, second, said_s=2, held=held), has_ended_itself=bool(second))
    assert f"program_{cause}" in ended(process(1, first, said_s=1), later).message


@pytest.mark.parametrize(
    ("words", "ranks", "expected"),
    [
        ((), 8, ""),
        (("ranks=1",), 8, "Of 8 equal workers the first worker ran (ranks=1), with one engine"),
        (("ranks=2",), 8, "Of 8 equal workers the first 2 workers ran (ranks=2), with one engine"),
        (("ranks=8",), 8, "ranks=8 left nothing out: no worker group of verl had more workers."),
        (("ranks=1",), None, "ranks=1 left nothing out: no worker group of verl had more workers."),
    ],
)
def test_a_command_says_which_workers_ran(ended, words, ranks, expected):
    text = " ".join(job_sentences(ended(process(2, held=GIB, ranks=ranks), words=words)))
    assert expected in text
    assert ("ranks=" in text) is bool(expected)


def test_a_command_says_that_it_chose_its_workers_and_keys(ended, tmp_path):
    note_choice(str(tmp_path), 1)
    for _ in range(2):  # two processes that read the configuration
        note_setting(str(tmp_path), "reward.num_workers", 1)
    found = ended(process(2, held=GIB, ranks=8))
    assert (found.ranks, found.ranks_chosen, found.settings) == (1, True, ("reward.num_workers=1",))
    text = " ".join(job_sentences(found))
    assert "Of 8 equal workers the first worker ran (ranks=1)" in text
    assert "This machine was taken not to hold all of them: ranks=8 runs all." in text
    assert "Set for this run, to spare the host's memory and time: reward.num_workers=1." in text
    found = ended(process(2, held=GIB, ranks=8), words=("ranks=2",))
    assert (found.ranks, found.ranks_chosen) == (2, False)
    assert "ranks=8 runs all" not in " ".join(job_sentences(found))


def shared(*held: int, role: str, worst: int, phase: Phase) -> JobProcess:
    return replace(
        process(len(held), held=max(held), ranks=2), roles=(role,), at_worst_bytes=(worst,), at_worst_phases=(phase,)
    )


COURSE = JobMemory(
    processes=(
        shared(4, 30 * GIB, role="trains", worst=8 * GIB, phase=Phase.SYNC),
        shared(0, 0, 40 * GIB, role="generates", worst=40 * GIB, phase=Phase.ROLLOUT),
    ),
    card_peak_bytes=(48 * GIB,),
    course=tuple(
        JobChange(process=who, card=0, phase=phase, held_bytes=size * GIB)
        for who, phase, size in (
            (0, Phase.LOAD, 8), (1, Phase.ROLLOUT, 40), (0, Phase.SYNC, 8), (1, Phase.ROLLOUT, 2),
            (0, Phase.FORWARD, 20), (0, Phase.BACKWARD, 30), (0, Phase.OPTIMIZER, 12),
        )
    ),
)  # fmt: skip


@pytest.fixture
def of_course(monkeypatch, ended):
    made = ended()
    return replace(made, memory=COURSE, status=Status.OK, message="")


def test_the_figure_has_the_course_of_a_card(of_course):
    (axes,) = job_course_figure(card_courses(of_course), of_course).axes
    (total,) = (line for line in axes.get_lines() if line.get_drawstyle() == "steps-post")
    assert list(total.get_ydata()) == [8, 48, 48, 10, 32, 14, 14]
    assert list(total.get_xdata()) == pytest.approx([0, 1, 2, 2.5, 3, 3.5, 4])
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["generates, rank 0 of 2: 40.0 GiB", "trains, rank 0 of 2: 30.0 GiB"]
    stages = [text.get_text() for text in axes.texts]
    assert [each for each in stages if each in {*Phase, "update"}] == ["rollout", "load", "sync", "update"]
    assert "the card: 79.1 GiB" in stages
    low, high = axes.get_ylim()
    assert low < 0 < 79.1 < high


def test_a_command_has_a_page_with_who_holds_what(of_course, tmp_path, capsys):
    report_job(tmp_path / "run", of_course)
    page = (tmp_path / "run" / "report.md").read_text()
    assert "| card 0 | generates | 0 of 2 | rollout | 40.00 |" in page
    assert "|  | trains | 0 of 2 | sync | 8.00 |" in page
    assert "](figures/course.svg)" in page
    assert (tmp_path / "run" / "figures" / "course.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image" in (tmp_path / "run" / "report.html").read_text()
    printed = " ".join(capsys.readouterr().out.split())
    sizes = "generates, rank 0 of 2: 40.00 GiB in rollout; trains, rank 0 of 2: 8.00 GiB in sync."
    assert f"At that instant of card 0: {sizes}" in printed
    kept = from_json(JobRecord, json.loads((tmp_path / "run" / "job.json").read_text()))
    assert kept == of_course


def test_a_command_says_what_its_peaks_consist_of(of_course, tmp_path, capsys):
    """A row per category, below the phase that it is of; ranks with the same peaks have the same rows."""
    shares = (
        CategoryShare(category=Category.WEIGHTS, size_bytes=6 * GIB),
        CategoryShare(category=Category.COMMUNICATION, size_bytes=GIB // 2),
    )
    phases = (
        JobPhase(phase=Phase.SCORE, allocated_bytes=7 * GIB, reserved_bytes=8 * GIB),
        JobPhase(phase=Phase.SYNC, allocated_bytes=13 * GIB // 2, reserved_bytes=8 * GIB, shares=shares),
    )
    processes = tuple(
        replace(each, phases=phases, roles=("trains",), rank=rank) for rank, each in enumerate(COURSE.processes)
    )
    report_job(tmp_path / "run", replace(of_course, memory=replace(COURSE, processes=processes)))
    page = (tmp_path / "run" / "report.md").read_text()
    assert "| trains | 0, 1 of 2 | sync | weights | 6.000 |\n|  |  |  | communication | 0.500 |" in page
    assert not re.search(r"(?m)^#.*\.$", page)
    assert "trains 0, 1 of 2 sync weights 6.000 communication 0.500" in " ".join(capsys.readouterr().out.split())


def test_a_command_without_a_card_says_so(ended, tmp_path, capsys):
    report_job(tmp_path / "run", ended(end=replace(END, exit_code=124)))
    printed = " ".join(capsys.readouterr().out.split())
    assert "No process of the command used a card." in printed
    assert "exit code 124, with which timeout(1) ends a command whose time is over" in printed
    assert not (tmp_path / "run" / "figures").exists()


def test_a_figure_that_fails_costs_nothing_else(of_course, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("profiler.run.results.job_course_figure", lambda *_: 1 / 0)
    report_job(tmp_path / "run", of_course)
    assert "could not be drawn" in capsys.readouterr().err
    assert "40.00" in (tmp_path / "run" / "report.md").read_text()


def test_figures_are_imported_when_a_job_has_ended():
    """They take as long as everything before: 0.6 of the 0.8 s in which the command started."""
    code = "import sys, profiler.run.main; sys.exit('matplotlib' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0
