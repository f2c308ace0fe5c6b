"""Programs of Python in forks of a process that has imported what they share: to start each one takes milliseconds."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_SERVER = """
import json, os, sys
from os import fork, waitpid, waitstatus_to_exitcode
exec(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    child = fork()
    if not child:
        break
    print(waitstatus_to_exitcode(waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.chdir(asked["folder"])
os.environ.clear()
os.environ.update(asked["environment"])
for number, name in enumerate((os.devnull, asked["out"], asked["err"])):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
sys.stdin = open(0)
sys.argv = ["-c", *asked["words"]]
exec(asked["program"], {"__name__": "__main__"})
"""


class Forking:
    """A process that runs programs in forks of itself, one after the other."""

    def __init__(self, first: str, environment: Mapping[str, str]) -> None:
        """Start the process, which runs the program `first`; what it imports and changes is there for all others."""
        words = [sys.executable, "-c", _SERVER, first]
        self._server = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environment)
        )

    def run(
        self, program: str, *words: str, folder: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as `python -c PROGRAM WORDS` does, and return its exit code and what it wrote."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.TemporaryDirectory() as written:
            out, err = Path(written) / "out", Path(written) / "err"
            asked = {"program": program, "words": words, "folder": str(folder), "environment": dict(environment)}
            print(json.dumps({**asked, "out": str(out), "err": str(err)}), file=self._server.stdin, flush=True)
            code = self._server.stdout.readline()
            assert code, "the process that forks has ended"
            return subprocess.CompletedProcess(words, int(code), out.read_text(), err.read_text())

    def end(self) -> None:
        """End the process."""
        self._server.communicate()
