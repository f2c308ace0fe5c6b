"""Judging a sample: by which commit, when first, and what it showed."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from maintenance.samples.sampling import ROOT
from profiler.domain.errors import Fault, UsageError

CODE = ("profiler", "maintenance/accuracy", "maintenance/samples")
"""Folders that decide the estimates, and what they are compared with."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One judgement of the sample."""

    commit: str
    """That of the code."""
    seed: int
    sampled: int
    """Trials that were written down."""
    trials: int = 0
    """Those that are compared."""
    p95_ratio: float = 0.0
    """Of absolute errors of allocated memory; 0.1 is 10 %."""
    reserved_p95_ratio: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Judgements:
    """The first and the last judgement of one sample, which may be the same."""

    first: Judgement
    last: Judgement


def committed(root: Path = ROOT) -> str:
    """Return the commit of the code that judges, by its first 12 digits.

    Raises:
        UsageError: Some of the code is not committed, or git does not say.
    """
    changed = _git(root, "status", "--porcelain", "--", *CODE).split("\n")[0]
    if changed:
        problem = "judges by code that is not committed"
        raise UsageError([Fault(key="judge", found=changed.strip(), problem=problem, hint="Commit it first.")])
    return _git(root, "rev-parse", "--short=12", "HEAD")


def _git(root: Path, *words: str) -> str:
    found = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    if found.returncode:
        problem = f"cannot name its commit ({found.stderr.strip()})"
        raise UsageError([Fault(key="judge", found="true", problem=problem, hint="Run it in a clone.")])
    return found.stdout.strip()
