"""A limit of time for what reads bad input: time of the processor, which other processes do not take from it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

HANGS_S = 300.0
"""Guard against waiting for ever."""


class TooSlowError(BaseException):
    """It did not end in time. No `Exception`, which a command could report as its own."""


@contextmanager
def time_limit(cpu_s: float) -> Iterator[None]:
    """Raise `TooSlowError` after `cpu_s` of processor time, or after `HANGS_S`."""

    def end(*_: object) -> None:
        raise TooSlowError

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, cpu_s), (signal.SIGALRM, signal.ITIMER_REAL, HANGS_S))
    before = [signal.signal(number, end) for number, _, _ in timers]
    try:
        for _, timer, seconds in timers:
            signal.setitimer(timer, seconds)
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)
