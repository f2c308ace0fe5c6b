"""Files of one version of a repository, out of its git directory."""

import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from profiler.domain.claims import SourceLook


def look(git: Path, wanted: SourceLook) -> tuple[bool, str]:
    """Return whether a pattern is in the files of a version, and where, or how many files were searched.

    Raises:
        LookupError: The version has no such file.
    """
    pattern, searched = re.compile(wanted.pattern, re.MULTILINE), 0
    for name in _names(git, wanted):
        text = run_git(git, "show", f"{wanted.version}:{name}")
        searched += 1
        match = pattern.search(text)
        if match is not None:
            return True, f"{name}, line {text.count(chr(10), 0, match.start()) + 1}"
    if not searched:
        raise LookupError(f"{wanted.repository} {wanted.version} has no file {wanted.path}")
    return False, f"nowhere in {searched:,} {'file' if searched == 1 else 'files'} ({wanted.path})"


def _names(git: Path, wanted: SourceLook) -> Iterator[str]:
    """Return the files that match, in the order of git."""
    for name in run_git(git, "ls-tree", "-r", "--name-only", wanted.version).splitlines():
        if fnmatch(name, wanted.path):
            yield name


def run_git(git: Path, *words: str) -> str:
    """Return the output of a command of git.

    Raises:
        LookupError: It failed.
    """
    found = subprocess.run(["git", "--git-dir", str(git), *words], capture_output=True, check=False)
    if found.returncode:
        raise LookupError(found.stderr.decode(errors="replace").strip() or f"git {words[0]} failed")
    return found.stdout.decode(errors="replace")
