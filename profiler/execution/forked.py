"""A forked process as the sweep sees it, whatever becomes of the process it was forked from."""

import math
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import process as process_module
from multiprocessing.process import BaseProcess

EXIT_CODE_S = 10.0
"""How long the exit code of an ended process is waited for. The warmed process sends it within milliseconds."""

_NO_EXIT_CODE = 255
"""What multiprocessing makes of a warmed process that ended before it sent the exit code."""


class ForkedProcess:
    """A process that the warmed process has forked.

    Its end comes from the kernel (a pidfd), so that it is noticed and not mistaken if the warmed process has ended or
    is stopped. Its exit code comes from the warmed process alone, and may be lost with it. On a kernel without pidfds
    a process whose warmed process has ended counts as ended.
    """

    def __init__(self, process: BaseProcess, *, server_runs: Callable[[], bool]) -> None:
        """`server_runs`: whether the process that `process` was forked from still runs."""
        self._process = process
        self._server_runs = server_runs
        self._pidfd: int | None = None
        self._exited_at_s: float | None = None
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:  # ended already
            self._exited_at_s = time.monotonic()
        except (AttributeError, OSError):
            pass

    @property
    def pid(self) -> int:
        """Process id, also that of the process group."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """Descriptor that becomes readable with the process's end, and then with its exit code."""
        return self._process.sentinel if self._pidfd is None or self.has_exited else self._pidfd

    @property
    def has_exited(self) -> bool:
        """Whether the process is gone; its exit code may still be on its way."""
        if self._exited_at_s is None and self._is_gone():
            self._exited_at_s = time.monotonic()
        return self._exited_at_s is not None

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, and its exit code is known or no longer waited for."""
        return self.has_exited and (not self._process.is_alive() or time.monotonic() >= self.exit_code_due_s)

    @property
    def exit_code_due_s(self) -> float:
        """Until when the exit code of an ended process is waited for; infinite before its end."""
        return math.inf if self._exited_at_s is None else self._exited_at_s + EXIT_CODE_S

    @property
    def exit_code(self) -> int | None:
        """As `multiprocessing` gives it: minus the signal's number for a signal. None if it has not come."""
        return self._process.exitcode

    @property
    def is_exit_code_lost(self) -> bool:
        """Whether the process has ended and its exit code is not known."""
        if not self.has_ended:
            return False
        return self.exit_code is None or (self.exit_code == _NO_EXIT_CODE and not self._server_runs())

    def close(self) -> None:
        """Release its descriptors. A process that still runs is forgotten: Python would wait for it at its end."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if self._process.is_alive():
            process_module._children.discard(self._process)  # type: ignore[attr-defined]
            return
        with suppress(ValueError):
            self._process.close()

    def _is_gone(self) -> bool:
        if self._pidfd is None:
            return not self._process.is_alive()
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))
