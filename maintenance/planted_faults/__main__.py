"""`python -m maintenance.planted_faults [NAME...]`: plant faults into a copy of the program, and see a test fail.

Each fault of `faults.yaml` is planted alone. Its test has to pass in the copy as it is, and to fail with the fault, in
cases of `make test`: further cases, which `make matrix` runs, do not count.
Ends with 1 if a fault survives. Not part of `make test`, which only checks that each fault can still be planted.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from maintenance.planted_faults.faults import ROOT, Fault, planted, read_faults
from profiler.command_line import as_command, print_line, print_text
from profiler.domain.errors import EXIT_OK, ProfilerError

EXIT_SURVIVED = 1
_TESTS_FAILED = 1
"""Exit code of pytest; others say that no test ran."""
_HANGS = -1
"""In place of one: a fault that makes its test wait for ever was not noticed by a test that fails."""
_LIMIT_S = 600


@as_command("planted_faults")
def main(argv: Sequence[str] | None = None) -> int:
    """Plant the faults with these names, or all, and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if any(word in ("-h", "--help") for word in words):
        print_text(f"{__doc__}\nExamples:\n  python -m maintenance.planted_faults 'missed samples in a burst'\n")
        return EXIT_OK
    chosen = [fault for fault in read_faults() if not words or fault.name in words]
    if unknown := set(words) - {fault.name for fault in chosen}:
        raise ProfilerError(f"No such fault: {', '.join(sorted(unknown))}. The names are in faults.yaml.")
    with tempfile.TemporaryDirectory() as folder:
        copy = _copied(Path(folder) / "copy")
        survived = [fault for fault in chosen if not _is_caught(fault, copy)]
    print_line(f"{len(chosen) - len(survived)} of {len(chosen)} planted faults were caught.")
    return EXIT_SURVIVED if survived else EXIT_OK


def _copied(copy: Path) -> Path:
    """Return a copy of the tracked and new files of this checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    return copy


def _is_caught(fault: Fault, copy: Path) -> bool:
    path = copy / fault.file
    whole = path.read_text()
    before = _pytest(fault.test, copy)
    path.write_text(planted(fault, whole))
    try:
        after = _pytest(fault.test, copy)
    finally:
        path.write_text(whole)
    is_caught = (before, after) == (0, _TESTS_FAILED)
    said = "caught" if is_caught else f"SURVIVED (pytest: {before} without the fault, {after} with it)"
    print_line(f"{fault.name}: {said}")
    return is_caught


def _pytest(test: str, copy: Path) -> int:
    """Run a test in the copy, which its child processes import too, and return the exit code of pytest."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not matrix"]
    command = ["env", f"PYTHONPATH={copy}", sys.executable, "-m", "pytest", *options, test]
    try:
        return subprocess.run(command, cwd=copy, capture_output=True, check=False, timeout=_LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        return _HANGS


if __name__ == "__main__":
    sys.exit(main())
