"""Signals that wait until a few steps that belong together are done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
"""SIGUSR2, because submitit announces with it that the time of a slot ends."""


@contextmanager
def postponed_signals() -> Iterator[None]:
    """Handle signals that arrive in the block after it. Handlers raise, so they could end the block half-way.

    Only handlers in Python are postponed, and only in the main thread, which runs them. A mask of signals would not
    do: the kernel then delivers them to another thread, and Python still runs the handler in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: handler for number in _SIGNALS if callable(handler := signal.getsignal(number))}
    arrived: list[int] = []

    def postpone(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    try:
        for number in handlers:
            signal.signal(number, postpone)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if arrived:
        handlers[signal.Signals(arrived[0])](arrived[0], None)
