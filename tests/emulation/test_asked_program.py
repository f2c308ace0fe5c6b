"""A program that the user named is asked something, and may answer anything."""

import os
import subprocess
import sys

import pytest

from profiler.emulation.interpreter import MOST_BYTES, answer_of


def asked(program: str, timeout_s: float = 60) -> str:
    return answer_of([sys.executable, "-c", program], environment=os.environ, timeout_s=timeout_s)


def test_what_it_prints_is_returned_and_nothing_is_read_from_standard_input():
    assert asked("import sys; print(sys.stdin.read() + 'é')").strip() == "é"


@pytest.mark.parametrize("where", ["stdout", "stderr"])
def test_a_program_that_prints_without_end_is_ended(where):
    with pytest.raises(ValueError, match=f"prints more than {MOST_BYTES} bytes"):
        asked(f"import sys\nwhile True: sys.{where}.write('y' * 4096)")


def test_as_much_as_allowed_is_read_and_one_byte_more_is_refused():
    program = "print('y' * {}, end='')"
    assert len(asked(program.format(MOST_BYTES))) == MOST_BYTES
    with pytest.raises(ValueError, match="prints more"):
        asked(program.format(MOST_BYTES + 1))


def test_a_program_that_does_not_end_is_ended():
    with pytest.raises(subprocess.TimeoutExpired):
        asked("import time; time.sleep(600)", timeout_s=0.3)


def test_an_exit_code_is_raised_with_what_was_printed():
    with pytest.raises(subprocess.CalledProcessError) as caught:
        asked("raise SystemExit('no torch here')")
    assert caught.value.returncode == 1 and caught.value.stderr.strip() == "no torch here"


def test_a_child_that_stays_behind_is_not_waited_for():
    program = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
    )
    child = int(asked(program))
    os.kill(child, 0)  # it still runs
    os.kill(child, 9)


def test_no_program_is_an_error_of_the_system():
    with pytest.raises(FileNotFoundError):
        answer_of(["/no/such/program"], environment={}, timeout_s=1)
