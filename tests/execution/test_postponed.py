"""Signals wait until the end of a block."""

import os
import signal
import time
from threading import Thread

import pytest

from profiler.execution.slots import postponed_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


class ArrivedError(Exception):
    """Raised by the handler of a signal."""


@pytest.fixture(autouse=True)
def handlers():
    def interrupt(number, frame):
        raise ArrivedError(number)

    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    yield interrupt
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_handled_after_the_block_also_if_another_thread_takes_it(handlers, number):
    done = []
    thread = Thread(target=time.sleep, args=(0.5,))
    thread.start()
    with pytest.raises(ArrivedError), postponed_signals():
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGINT)
        done.append("the block")
    assert done == ["the block"]
    assert signal.getsignal(number) is handlers
    thread.join()


def test_an_error_of_the_block_restores_the_handlers(handlers):
    with pytest.raises(LookupError), postponed_signals():
        raise LookupError
    assert signal.getsignal(signal.SIGINT) is handlers
    assert signal.getsignal(signal.SIGTERM) is handlers


def test_signals_that_are_ignored_stay_ignored():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with postponed_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_another_thread_runs_the_block_as_it_is():
    ran = []

    def block():
        with postponed_signals():
            ran.append("the block")

    thread = Thread(target=block)
    thread.start()
    thread.join()
    assert ran == ["the block"]
