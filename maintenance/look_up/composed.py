"""Configurations that one version of verl accepts or refuses, by verl's own check."""

import atexit
import json
import subprocess
import sys
import tarfile
from functools import cache
from io import BytesIO
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from maintenance.tar_files import extract
from profiler.domain.claims import CompositionLook

NEEDED = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "algorithm.adv_estimator=grpo",
)
"""What verl refuses to leave open, and the texts do not state."""

_TIMEOUT_S = 300


def look(git: Path, wanted: CompositionLook) -> tuple[bool, str]:
    """Return whether verl accepts the configuration, and what it says.

    Raises:
        LookupError: There is no such version, or the check does not run here: verl refuses its own defaults.
    """
    folder = _unpacked(git, wanted.version)
    accepted, answer = _ask(folder, wanted.composed, ())
    if not accepted:
        raise LookupError(f"verl does not accept its own defaults here: {answer}")
    return _ask(folder, wanted.composed, wanted.overrides)


@cache
def _unpacked(git: Path, version: str) -> str:
    """Return a folder with verl's package of a version, which is removed when the program ends."""
    command = ["git", "--git-dir", str(git), "archive", version, "verl"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        raise LookupError(archive.stderr.decode(errors="replace").strip())
    folder = mkdtemp(prefix="verl-")
    atexit.register(rmtree, folder, ignore_errors=True)
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        for member in files:
            if member.isfile():
                extract(files, member, Path(folder))
    return folder


@cache
def _ask(folder: str, name: str, overrides: tuple[str, ...]) -> tuple[bool, str]:
    words = [sys.executable, "-m", "maintenance.look_up.verl_check", folder, name]
    found = subprocess.run([*words, *NEEDED, *overrides], capture_output=True, check=False, timeout=_TIMEOUT_S)
    if found.returncode:
        raise LookupError(found.stderr.decode(errors="replace").strip()[-500:])
    answer = json.loads(found.stdout)
    return bool(answer["accepted"]), str(answer["answer"])
