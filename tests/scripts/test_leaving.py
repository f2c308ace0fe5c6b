"""A script that leaves its process in an unusual way, or has its work done by others, says so."""

import multiprocessing
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from profiler.domain.errors import UnsupportedTrialError
from profiler.scripts.running import OtherProcesses, Script, ScriptEnd, run_script


class NoSession:
    """A session that does nothing."""

    @contextmanager
    def running(self):
        yield

    def enter(self, phase):
        pass


@pytest.fixture
def run(tmp_path):
    def run(text, *arguments) -> tuple[ScriptEnd, OtherProcesses, list[str]]:
        path, notes = tmp_path / "train.py", []
        path.write_text(text)
        script = Script(path=path, arguments=arguments, steps=None, note=notes.append)
        return run_script(script, NoSession()), script.others, notes

    return run


def test_leaving_at_once_ends_the_script_and_not_the_record(run):
    end, _, _ = run("import os\nos._exit(3)\n")
    assert end.exit_code == 3
    assert os._exit.__module__ == "posix"


def test_a_child_leaves_as_before(run):
    end, _, _ = run("import os\nchild = os.fork()\nif child == 0:\n    os._exit(5)\nos.waitpid(child, 0)\n")
    assert end.exit_code == 0


def test_a_thread_that_leaves_says_so(run, monkeypatch):
    monkeypatch.setattr(os, "_exit", lambda status: None)
    _, _, notes = run("import os, threading\nthread = threading.Thread(target=os._exit, args=(4,))\nthread.start()\n"
        "thread.join()\n")  # fmt: skip
    assert notes == ["a thread of the script ended the process by os._exit(4)"]


@pytest.mark.parametrize(
    "call", ["execv('/bin/true', words)", "execvp('true', words)", "execve('/bin/true', words, {})"]
)
def test_a_script_that_replaces_its_process_is_refused_with_the_command(run, call):
    with pytest.raises(
        UnsupportedTrialError, match=r"replaces its own process by `torchrun train\.py --x`: give profiler"
    ):
        run(f"import os\nwords = ['torchrun', 'train.py', '--x']\nos.{call}\n")


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'worker = 1'])\n",
        "import subprocess, sys\nsubprocess.run(sys.executable + ' -c \"worker = 1\"', shell=True)\n",
        "import os, sys\nos.system(sys.executable + ' -c \"worker = 1\"')\n",
    ],
)
def test_commands_that_may_train_are_named(run, text):
    _, others, _ = run(text)
    assert "worker = 1" in others.sentence()
    assert others.sentence().startswith("it started other processes, whose memory is not counted: the command")


def test_functions_of_other_processes_are_named(run):
    _, others, _ = run(
        "import multiprocessing\ndef train(): pass\n"
        "process = multiprocessing.get_context('fork').Process(target=train)\nprocess.start()\nprocess.join()\n"
    )
    assert others.sentence().endswith("the function train")
    assert multiprocessing.process.BaseProcess.start.__qualname__ == "BaseProcess.start"


def test_programs_that_train_nothing_are_not_named(run):
    _, others, _ = run("import subprocess\nsubprocess.run(['true'])\n")
    assert others.sentence() == ""


def test_what_a_script_says_at_its_end_is_kept(run):
    assert run("import sys\nsys.exit('no data here')\n")[0].reason == "no data here"
    arguments = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--size', required=True)\n"
    end, _, _ = run(f"{arguments}parser.parse_args()\n")
    assert (end.exit_code, end.reason) == (2, "the following arguments are required: --size")
    assert Path(sys.argv[0]).name != "train.py"
