"""A forked process as the sweep sees it, even if the process that it was forked from ends."""

import math
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import process as process_module
from multiprocessing.process import BaseProcess

EXIT_CODE_S = 10.0
"""Time to wait for the exit code of an ended process. The warmed process sends it within milliseconds."""

_NO_EXIT_CODE = 255
"""Exit code that multiprocessing reports if the warmed process ended before it sent one."""


class ForkedProcess:
    """A process that the warmed process has forked.

    The kernel reports its end (through a pidfd), also if the warmed process has ended or is stopped. Only the warmed
    process knows its exit code, which may be lost with it. On a kernel without pidfds a process counts as ended when
    its warmed process has ended.
    """

    def __init__(self, process: BaseProcess, *, server_runs: Callable[[], bool]) -> None:
        """`server_runs` returns whether the process that `process` was forked from still runs."""
        self._process = process
        self._server_runs = server_runs
        self._pidfd: int | None = None
        self._exited_at_s: float | None = None
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it has ended already
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
        """Descriptor that becomes readable when the process ends, and then when its exit code arrives."""
        return self._process.sentinel if self._pidfd is None or self.has_exited else self._pidfd

    @property
    def has_exited(self) -> bool:
        """Whether the process is gone; its exit code may arrive later."""
        if self._exited_at_s is None and self._is_gone():
            self._exited_at_s = time.monotonic()
        return self._exited_at_s is not None

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, and its exit code is known or no longer waited for."""
        return self.has_exited and (not self._process.is_alive() or time.monotonic() >= self.exit_code_due_s)

    @property
    def exit_code_due_s(self) -> float:
        """When waiting for the exit code ends, on the monotonic clock; infinite while the process runs."""
        return math.inf if self._exited_at_s is None else self._exited_at_s + EXIT_CODE_S

    @property
    def exit_code(self) -> int | None:
        """Exit code as `multiprocessing` returns it: the negative signal number for a signal. None if not known."""
        return self._process.exitcode

    @property
    def is_exit_code_lost(self) -> bool:
        """Whether the process has ended and its exit code is not known."""
        if not self.has_ended:
            return False
        return self.exit_code is None or (self.exit_code == _NO_EXIT_CODE and not self._server_runs())

    def close(self) -> None:
        """Release its descriptors. Forget a process that still runs: Python would wait for it at exit."""
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
