"""The file with the sampled trials, written before any of them runs."""

from collections.abc import Sequence
from pathlib import Path

from maintenance.sampling import read_sampled, sampled_text
from profiler.config.foreign_text import MOST_JSON_BYTES
from profiler.domain.errors import Fault, UsageError
from profiler.domain.trial import TrialSpec
from profiler.storage.files.atomic import write_atomically
from profiler.storage.files.foreign_files import Kind, kind_of, read_bytes, reason

SAMPLED = "sampled.jsonl"


def folder_faults(folder: Path) -> list[Fault]:
    """Return the faults of the folder of results."""
    try:
        kind_of(folder / SAMPLED)
    except OSError as error:
        return [Fault(key="results_dir", found=str(folder.parent), problem=f"cannot be used ({reason(error)})")]
    return []


def written_down(folder: Path, sampled: Sequence[TrialSpec], *, seed: int) -> tuple[TrialSpec, ...]:
    """Return the sample; write its file if there is none.

    Raises:
        UsageError: The file exists and has another sample.
    """
    path = folder / SAMPLED
    text = sampled_text(sampled, seed=seed)
    if kind_of(path) is Kind.MISSING:
        write_atomically(path, text.encode())
    elif _content(path) != text.encode():
        problem = f"does not give the sample of {path}, which was written before any result was known"
        hint = "Give the count and seed of its first line, or another results_dir."
        raise UsageError([Fault(key="seed", found=str(seed), problem=problem, hint=hint)])
    return read_sampled(text)


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path, most_bytes=MOST_JSON_BYTES)
    except OSError as error:
        raise UsageError([Fault(key="sample", found=str(path), problem=f"cannot be read ({reason(error)})")]) from error
