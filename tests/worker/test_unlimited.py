"""The process that waits for an out-of-memory error; here with functions that need no emulated card."""

import os

import pytest

from profiler.domain.runs.outcome import UnlimitedCard
from profiler.worker.cuda.emulated import waiting_process

NEEDED = UnlimitedCard(required_allocated_bytes=70, required_reserved_bytes=80)


def test_it_answers_when_it_is_asked():
    with waiting_process(lambda: NEEDED) as process:
        assert process.ask() == NEEDED


def test_it_runs_nothing_without_a_question_and_is_gone_afterwards(tmp_path):
    with waiting_process(lambda: (tmp_path / "ran").touch()) as process:
        pid = process._pid
    assert not list(tmp_path.iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("ends", [lambda: None, lambda: 1 / 0, lambda: os._exit(9)])
def test_without_an_answer_nothing_is_known(ends, capfd):
    with waiting_process(ends) as process:
        assert process.ask() is None


def test_an_error_of_the_trial_ends_it_too(tmp_path):
    with pytest.raises(RuntimeError, match="of the trial"), waiting_process(lambda: NEEDED) as process:
        pid = process._pid
        raise RuntimeError("of the trial")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
