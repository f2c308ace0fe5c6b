"""A script's process that is ended, crashes or lingers leaves a record. The process is a program of the test."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profiler.domain.runs.other_runs import ScriptJob, ScriptSpec
from profiler.domain.runs.outcome import Status, Versions
from profiler.domain.trials.trial import Backend
from profiler.run import process as process_module
from profiler.run.process import run_in_process
from profiler.storage.records.record_folder import SCRIPTS, RecordFolder

ROOT = Path(__file__).parents[2]
VERSIONS = Versions(torch="2", trl=None, transformers=None, peft=None, bitsandbytes=None, profiler="0")


@pytest.fixture
def run(tmp_path, monkeypatch):
    def run(program, timeout_s=300.0, environment=None):
        path = tmp_path / "program.py"
        path.write_text(program)
        monkeypatch.setattr(process_module, "_PROGRAM", path)
        spec = ScriptSpec(script="/train.py", backend=Backend.EMULATED, gpu="l40s-48gb")
        job = ScriptJob(run_id="0" * 16, spec=spec, script_sha256="", versions=VERSIONS, folder=str(tmp_path))
        record = run_in_process(job, sys.executable, environment or {}, timeout_s=timeout_s)
        assert RecordFolder(tmp_path, SCRIPTS).find(job.run_id) == record
        return record

    return run


def test_a_process_without_a_record_gets_one(run):
    record = run("import sys; sys.exit(7)")
    assert record.outcome.status is Status.FAILED
    assert record.outcome.message == "the process of the script ended with exit code 7 and without a record"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, Status.KILLED), (signal.SIGSEGV, Status.FAILED)])
def test_a_signal_is_named(run, number, status):
    record = run(f"import os; os.kill(os.getpid(), {int(number)})")
    assert record.outcome.status is status
    assert ("killed" if status is Status.KILLED else "SIGSEGV") in record.outcome.message


def test_a_script_that_takes_too_long_is_ended(run):
    record = run("import time; time.sleep(600)", timeout_s=0.5)
    assert record.outcome.status is Status.TIMEOUT
    assert record.outcome.message == "the script ran longer than timeout_s=0.5"


def test_a_script_that_takes_too_long_can_finish(run, tmp_path, longer_than_imports_s):
    note = tmp_path / "note"
    script = f"import time\ntry:\n    time.sleep(600)\nfinally:\n    open({str(note)!r}, 'w').close()"
    run(script, timeout_s=longer_than_imports_s)
    assert note.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel sends a signal when a pipe is closed")
def test_no_script_outlives_a_command_that_is_killed(tmp_path):
    """It would hold a real card."""
    script, fifo = tmp_path / "train.py", tmp_path / "fifo"
    os.mkfifo(fifo)
    script.write_text(
        f"import time\nfile = open({str(fifo)!r}, 'w')\nfile.write('begun')\nfile.flush()\ntime.sleep(900)\n"
    )
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    words = [str(script), "backend=simulated", "gpu=l40s", f"results_dir={tmp_path}"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-m", "profiler.run", *words], env=environment) as command:
        said = select.poll()
        said.register(reader, select.POLLIN)
        while command.poll() is None and not said.poll(100):
            pass
        assert os.read(reader, 100) == b"begun"
        assert list(temporary.rglob("job.json"))
        command.kill()
    assert said.poll(60_000) == [(reader, select.POLLHUP)], "the script goes on"
    os.close(reader)
    ends_s = time.monotonic() + 60
    while list(temporary.rglob("job.json")) and time.monotonic() < ends_s:
        time.sleep(0.05)
    assert [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")] == []


def test_nothing_waits_for_the_keyboard(run):
    record = run("import sys; sys.exit(len(sys.stdin.read()) + 5)")
    assert "exit code 5" in record.outcome.message


def test_an_earlier_record_of_the_same_run_does_not_count(run):
    run("import sys; sys.exit(7)")
    assert "exit code 8" in run("import sys; sys.exit(8)").outcome.message


NEEDS_ALL_LAYERS = """
import json, sys
from pathlib import Path
again = json.loads(Path(sys.argv[1]).read_text())["again_file"]
if again:
    Path(again).write_text("its layers differ")
sys.exit(0 if again else 9)
"""


def test_a_script_with_few_layers_runs_once_more_with_all(run, capsys):
    assert "exit code 9" in run(NEEDS_ALL_LAYERS).outcome.message
    assert capsys.readouterr().out == "Once more with all layers, because its layers differ:\n"


ASKS_DRIVER = (
    "import os\n"
    "with open(os.environ['EMULATED_MARKS'], 'a') as marks:\n"
    "    marks.write(f'{os.getpid()}\\tentry point\\tlibcusolver:cusolverDnXgeqrf_bufferSize\\t1\\n')\n"
    "os._exit(2)"
)


def test_an_entry_point_without_an_answer_is_named(run):
    record = run(ASKS_DRIVER, environment={"EMULATED_STRICT": "1"})
    assert record.outcome.status is Status.UNSUPPORTED
    assert record.outcome.message.startswith(
        "the emulated driver has no answer for cusolverDnXgeqrf_bufferSize of libcusolver, so this script cannot be "
        "emulated"
    )


def test_an_entry_point_that_was_passed_over_ends_nothing(run):
    assert "exit code 2 and without a record" in run(ASKS_DRIVER).outcome.message


STORES = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    "import json, threading, time\n"
    "from pathlib import Path\n"
    "from profiler.domain.runs.outcome import Outcome, Status, Verdict\n"
    "from profiler.domain.runs.other_runs import ScriptJob, ScriptRecord\n"
    "from profiler.storage.records.record_folder import SCRIPTS, RecordFolder\n"
    "from profiler.storage.files.typed_json import from_json\n"
    "job = from_json(ScriptJob, json.loads(Path(sys.argv[1]).read_text()))\n"
)
LEAVES_RECORD = (
    "record = ScriptRecord(run_id=job.run_id, spec=job.spec, script_sha256='', versions=job.versions,\n"
    "    outcome=Outcome(verdict=Verdict(status=Status.OK)))\n"
    "RecordFolder(Path(job.folder), SCRIPTS).write(record)\n"
    "threading.Thread(target=time.sleep, args=(600,)).start()\n"
)


def test_a_process_that_lives_on_after_its_record_is_not_waited_for(run, monkeypatch):
    monkeypatch.setattr(process_module, "_LINGERING_S", 0.1)
    monkeypatch.setattr(process_module, "_POLL_S", 0.1)
    started_s = time.monotonic()
    record = run(STORES + LEAVES_RECORD, timeout_s=500.0)
    assert record.outcome.status is Status.OK
    assert time.monotonic() - started_s < 400


def test_what_a_process_says_before_it_ends_is_in_the_message(run):
    record = run(f"{STORES}Path(job.note_file).write_text('a thread ended it'); sys.exit(3)")
    assert record.outcome.message.endswith("ended with exit code 3 and without a record: a thread ended it")
