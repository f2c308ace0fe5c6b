"""The same trials in several environments: what changed between the first and each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from profiler.analysis.compared.comparison import NOISE_RATIO, compare_sweeps
from profiler.command_line import print_line, print_text, readable
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK
from profiler.domain.runs.outcome import Versions
from profiler.rendering.sweep.differences import growth_summary, versions_table
from profiler.storage.files.atomic import append_to_job_page, write_atomically
from profiler.storage.sweep_tables.tables import read_tables

PAGE = "environments.md"
"""File in the folder of the grid."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One environment, and the trials that ran in it."""

    name: str
    versions: Versions
    trial_ids: tuple[str, ...]


def compare_environments(folder: Path, environments: Sequence[Environment], *, max_increase: float | None) -> int:
    """Print and write what changed between the first environment and each other, and return the exit code.

    Args:
        folder: The folder of the grid, whose tables have the trials of all environments.
        environments: At least two.
        max_increase: By how much a peak may grow, as a ratio; None to allow any.
    """
    runs = read_tables(folder).runs
    first, *others = environments
    before = _trials_of(runs, first)
    limit = NOISE_RATIO if max_increase is None else max_increase
    texts = [versions_table({each.name: each.versions for each in environments})]
    is_no = False
    for other in others:
        found = compare_sweeps(before, _trials_of(runs, other))
        grown = [each for each in found.both if each.grew(limit)]
        is_no = is_no or bool(grown) or all(each.change_ratio is None for each in found.both)
        texts.append(growth_summary(found, grown, most_ratio=limit, names=(first.name, other.name)))
    text = "\n".join(texts)
    write_atomically(folder / PAGE, text.encode())
    append_to_job_page(text)
    with readable():
        print_text(text)
        print_line(f"Written to {folder / PAGE}.")
    return EXIT_ANSWER_IS_NO if is_no and max_increase is not None else EXIT_OK


def _trials_of(runs: pd.DataFrame, environment: Environment) -> pd.DataFrame:
    return runs[runs["trial_id"].isin(environment.trial_ids)]
