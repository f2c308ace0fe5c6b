"""Commands that are watched: real child processes, with a scripted driver where there is a GPU."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from scripted import TOTAL_BYTES, UUID, ScriptedNvml

from profiler.domain.memory import GIB, MIB, Origin
from profiler.domain.runs.outcome import Status
from profiler.measurement.driver.nvml import GpuProcess, NvmlTrouble
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus
from profiler.monitor.command import read_command
from profiler.monitor.main import main
from profiler.monitor.watch import results, watching
from profiler.storage.records.record_folder import MONITORED, RecordFolder
from profiler.storage.tables.laws import Laws, Trials
from profiler.storage.tables.schema import MONITORED_TABLES, RESULT

ROOT = Path(__file__).parents[2]
GPU = VisibleGpu(uuid=UUID, name="NVIDIA H100 80GB HBM3", memory_bytes=TOTAL_BYTES, compute_capability=(9, 0))
MODEL = ("model=qwen2.5-0.5b", "gpu=h100-80gb")


@pytest.fixture
def no_report(monkeypatch):
    """Leave out tables, pages and figures, which take longer than the command."""
    monkeypatch.setattr(results, "write_report", lambda folder: ())


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Watch a Python program in this process; returns the exit code and the record."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(program, *keys):
        code = main(["sample_period_s=20ms", *keys, sys.executable, "-c", program])
        folder = tmp_path / "results" / "monitor" / Path(sys.executable).stem
        records = RecordFolder(folder, MONITORED).read_all()
        return code, records[-1], folder

    return run


def with_gpu(monkeypatch, nvml):
    monkeypatch.setattr(watching, "visible_gpus", lambda: VisibleGpus(gpus=(GPU,), note="", driver_version="580"))
    monkeypatch.setattr(watching, "PynvmlDriver", lambda: nvml)


@pytest.mark.usefixtures("no_report")
def test_the_exit_code_and_the_streams_are_those_of_the_command(run, capfd):
    code, record, _ = run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    shown = capfd.readouterr()
    assert code == record.exit_code == 7
    assert shown.out == "out\n"
    assert "err\n" in shown.err
    assert "Exit code 7 after" in shown.err
    assert (record.outcome.status, record.outcome.message) == (Status.FAILED, "the command ended with exit code 7")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGSEGV, Status.FAILED), (signal.SIGKILL, Status.KILLED)])
@pytest.mark.usefixtures("no_report")
def test_a_command_that_a_signal_ends_has_the_exit_code_of_a_shell(run, number, status):
    code, record, _ = run(f"import os; os.kill(os.getpid(), {int(number)})")
    assert code == 128 + number
    assert record.outcome.status is status


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(("kills", "status"), [((3, 3), Status.KILLED), ((3, 4), Status.HOST_OOM)])
def test_a_command_that_the_kernel_killed_is_host_out_of_memory(run, monkeypatch, kills, status):
    counted = iter(kills)
    monkeypatch.setattr(watching, "oom_kills", lambda: next(counted))
    code, record, _ = run("import os; os.kill(os.getpid(), 9)")
    assert (code, record.outcome.status) == (128 + signal.SIGKILL, status)


@pytest.mark.usefixtures("no_report")
def test_the_tree_of_processes_and_the_host_are_sampled(run, capsys):
    program = (
        "import subprocess, sys, time; own = bytearray(64 << 20)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; x = bytearray(64 << 20); time.sleep(0.6)'])\n"
        "child.wait()"
    )
    code, record, folder = run(program)
    assert (code, record.host.processes) == (0, 2)
    assert record.host.tree_bytes > 128 * MIB
    assert 0 < record.host.used_bytes < record.host.total_bytes
    host = pq.read_table(folder / "host" / f"{record.run_id}.parquet")
    assert max(host["tree_bytes"].to_pylist()) == record.host.tree_bytes
    assert "At most 2 processes with" in capsys.readouterr().err


def of_trial(name):
    return "trial_id" if name == "run_id" else name


def keep_their_laws(folder):
    trials = None
    for name, columns in MONITORED_TABLES.items():
        table = pq.read_table(folder / f"{name}.parquet")
        assert table.column_names == [column.name for column in columns]
        same = [replace(column, name=of_trial(column.name)) for column in columns]
        as_trials = table.rename_columns([of_trial(name) for name in table.column_names])
        trials = Trials.of(as_trials) if name == "monitored" else trials
        laws = Laws(same, None if name == "monitored" else trials)
        laws.check(as_trials)
        laws.finish()
        assert not laws.problem


def test_a_gpu_is_sampled_by_the_driver_and_compared_with_the_estimate(run, monkeypatch):
    with monkeypatch.context() as first:
        first.setattr(results, "write_report", lambda folder: ())
        run("raise SystemExit(1)")

    def listed():
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return tuple(GpuProcess(pid=int(pid), used_bytes=9 * GIB) for pid in children[-1:])

    sizes = iter([GIB, *[12 * GIB] * 100000])
    with_gpu(monkeypatch, ScriptedNvml(used_bytes=lambda: next(sizes), listed=listed))
    code, record, folder = run("import time; time.sleep(0.4)", *MODEL)
    assert code == 0
    (gpu,) = record.gpus
    assert (gpu.before_bytes, gpu.peak_used_bytes, gpu.peak_process_bytes) == (GIB, 12 * GIB, 9 * GIB)
    assert record.outcome.peaks.device_bytes == 9 * GIB
    assert record.outcome.peaks.allocated_bytes is None
    assert record.estimate.device_bytes > record.estimate.peak_bytes > GIB
    page = (folder / "report.md").read_text()
    assert f"Estimated: {record.estimate.peak_bytes / GIB:.2f} GiB in" in page
    assert "highest reading of the driver, sampled every 0.02 s: 12.00 GiB of 80.00 GiB by all programs" in page
    assert record.estimate.text.splitlines()[0] in page
    assert (folder / "figures" / f"{record.run_id}_gpus.svg").is_file()
    assert Origin.MEASURED in page
    keep_their_laws(folder)
    rows = pq.read_table(folder / "monitored.parquet").to_pylist()
    assert [row["exit_code"] for row in rows] == [1, 0]
    declared = {column.name: column.null for column in MONITORED_TABLES["monitored"]}
    from_outside = {name for name, null in declared.items() if null.startswith("a command was watched from outside")}
    assert {column.name for column in RESULT if rows[1].get(column.name, 0) is None} == from_outside
    assert set(pq.read_table(folder / "monitored_samples.parquet")["gpu"].to_pylist()) == {0}


@pytest.mark.usefixtures("no_report")
def test_a_gpu_that_is_lost_ends_its_samples_and_not_the_command(run, monkeypatch):
    nvml = ScriptedNvml(used_bytes=GIB)
    nvml.broken["memory"] = NvmlTrouble.GPU_LOST
    with_gpu(monkeypatch, nvml)
    code, record, _ = run("raise SystemExit(3)")
    assert code == 3
    assert "GPU-1" in record.gpus[0].problem


def test_results_that_cannot_be_written_do_not_change_the_exit_code(run, tmp_path, capsys):
    program = (
        "import pathlib, shutil; shutil.rmtree('results', True); pathlib.Path('results').touch(); raise SystemExit(5)"
    )
    code = main([sys.executable, "-c", program])
    assert code == 5
    assert "could not be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "word", ["$HOME/a $PATH", r"$\frac{$", b"\xff\xfe \x1b[31m".decode(errors="surrogateescape"), "\U0001f680" * 9_000]
)
def test_any_words_of_a_command_are_shown_and_leave_its_exit_code(tmp_path, monkeypatch, capsys, word):
    """Two dollar signs are mathematics for matplotlib, and no table can have bytes that are not UTF-8."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for words in ([word], []):  # the next run in the folder draws the first one again
        program = "import time; time.sleep(0.1); raise SystemExit(7)"
        assert main(["sample_period_s=20ms", sys.executable, "-c", program, *words]) == 7
        said = capsys.readouterr().err
        assert "could not be drawn" not in said
        assert "Unforeseen" not in said
        assert "Report: " in said
    folder = tmp_path / "results" / "monitor" / Path(sys.executable).stem
    assert len(list((folder / "figures").glob("*_host.png"))) == 2


def test_a_page_that_cannot_be_made_leaves_the_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "monitored_page", lambda *_: 1 / 0)
    assert main([sys.executable, "-c", "raise SystemExit(7)"]) == 7
    assert "Unforeseen ZeroDivisionError" in capsys.readouterr().err


def test_a_figure_that_fails_costs_only_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "host_timeline_figure", lambda *_: 1 / 0)
    program = "import time; time.sleep(0.1); raise SystemExit(7)"
    assert main(["sample_period_s=20ms", sys.executable, "-c", program]) == 7
    assert "_host' could not be drawn (ZeroDivisionError: division by zero)." in capsys.readouterr().err
    assert (tmp_path / "results" / "monitor" / Path(sys.executable).stem / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("python", "train.py", "--x"), "train"),
        (("python", "-m", "verl.trainer.main_ppo", "a=b"), "main_ppo"),
        (("bash", "run.sh"), "bash"),
        (("FOO=1",), None),
        (("sample_period_s=1s", "--", "env", "A=b", "python", "a/grpo.py"), "grpo"),
    ],
)
def test_the_folder_is_named_after_what_runs(words, name):
    if name is None:
        with pytest.raises(Exception, match="is unknown"):
            read_command(words)
    else:
        assert read_command(words).name == name


# ---- real commands ---------------------------------------------------------------------------------------------------


def start(tmp_path, program, **streams) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, "-m", "profiler.monitor", "sample_period_s=1s", sys.executable, "-u", "-c", program]
    return subprocess.Popen(words, cwd=tmp_path, env=environment, text=True, stderr=subprocess.PIPE, **streams)


@pytest.mark.slow
def test_signals_are_passed_on_and_a_closed_pipe_ends_the_command_as_it_would_alone(tmp_path):
    program = (
        "import signal, sys, time\n"
        "seen = []\n"
        "def note(number, frame): seen.append(number); print(number)\n"
        "for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1): signal.signal(each, note)\n"
        "print('ready')\n"
        "while len(seen) < 3: time.sleep(0.01)\n"
        "while True: print('line')"
    )
    watched = start(tmp_path, program, stdout=subprocess.PIPE)
    assert watched.stdout.readline() == "ready\n"
    for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
        watched.send_signal(number)
        assert watched.stdout.readline() == f"{int(number)}\n"
    watched.stdout.close()
    err = watched.stderr.read()
    assert watched.wait(timeout=300) == 1, err  # Python's own BrokenPipeError
    assert "BrokenPipeError" in err
    assert "Exit code 1" in err
    assert "Report: " in err
    (record,) = RecordFolder(tmp_path / "results" / "monitor" / Path(sys.executable).stem, MONITORED).read_all()
    assert record.exit_code == 1
