"""Programs of Python in forks of a process that has imported what they share: to start each one takes milliseconds."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_SERVER = """
import json, os, signal, sys
from os import fork, waitpid, waitstatus_to_exitcode
exec(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    if "wait" in asked:
        found, status = waitpid(asked["wait"], 0 if asked["blocks"] else os.WNOHANG)
        print(json.dumps(waitstatus_to_exitcode(status) if found else None), flush=True)
        continue
    child = fork()
    if not child:
        break
    print(child, flush=True)
else:
    sys.exit()
if asked["session"]:
    os.setsid()
for number in asked["ignored"]:
    signal.signal(number, signal.SIG_IGN)
os.chdir(asked["folder"])
os.environ.clear()
os.environ.update(asked["environment"])
for number, name in enumerate((os.devnull, asked["out"], asked["err"])):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
sys.stdin = open(0)
sys.argv = ["-c", *asked["words"]]
exec(asked["program"], {"__name__": "__main__"})
"""


class Forked:
    """A program that runs; as `subprocess.Popen`, as far as tests need it."""

    def __init__(self, server: "Forking", pid: int, written: tempfile.TemporaryDirectory[str]) -> None:
        """Keep what the program writes until its end."""
        self.pid = pid
        self.returncode: int | None = None
        self._server, self._written = server, written

    def send_signal(self, number: int) -> None:
        """Send a signal to the program."""
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return the exit code; None while the program runs."""
        return self._ended(blocks=False)

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """Wait for the end, and return what was written to standard output and error."""
        ends_s = time.monotonic() + timeout
        while self._ended(blocks=False) is None:
            assert time.monotonic() < ends_s, f"{self.pid} runs after {timeout} s"
            time.sleep(0.01)
        return self.written()

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        code = self._ended(blocks=True)
        assert code is not None
        return code

    def written(self) -> tuple[str, str]:
        """Return what was written to standard output and error so far."""
        out, err = ((Path(self._written.name) / name).read_text() for name in ("out", "err"))
        return out, err

    def _ended(self, *, blocks: bool) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask({"wait": self.pid, "blocks": blocks})
        return self.returncode


class Forking:
    """A process that runs programs in forks of itself."""

    def __init__(self, first: str, environment: Mapping[str, str]) -> None:
        """Start the process, which runs the program `first`; what it imports and changes is there for all others."""
        words = [sys.executable, "-c", _SERVER, first]
        self._server = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environment)
        )

    def start(
        self,
        program: str,
        *words: str,
        folder: Path,
        environment: Mapping[str, str],
        session: bool = False,
        ignored: Sequence[int] = (),
    ) -> Forked:
        """Start a program as `python -c PROGRAM WORDS` does; in a session of its own, or with signals ignored."""
        written = tempfile.TemporaryDirectory()
        files = {name: str(Path(written.name) / name) for name in ("out", "err")}
        asked = {"program": program, "words": words, "folder": str(folder), "environment": dict(environment), **files}
        return Forked(self, self.ask({**asked, "session": session, "ignored": list(map(int, ignored))}), written)

    def run(
        self, program: str, *words: str, folder: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as `python -c PROGRAM WORDS` does, and return its exit code and what it wrote."""
        started = self.start(program, *words, folder=folder, environment=environment)
        return subprocess.CompletedProcess(words, started.wait(), *started.written())

    def ask(self, asked: object) -> int:
        """Return the answer of the process to a question."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(asked), file=self._server.stdin, flush=True)
        answer = self._server.stdout.readline()
        assert answer, "the process that forks has ended"
        found: int = json.loads(answer)
        return found

    def end(self) -> None:
        """End the process."""
        self._server.communicate()
