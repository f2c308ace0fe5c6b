"""What the runs say: a row of each, the tensors of its peak, and between which releases memory jumps."""

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from maintenance.releases.estimated import estimated_bytes
from maintenance.releases.runs import CODE, OTHERS, RUNS, SAID, VERSIONS, Run, Size, has_ended, package_of
from profiler.domain.errors import shortened
from profiler.storage.files.atomic import write_atomically

ROWS, TENSORS, CAUSES = "rows.csv", "tensors.csv", "causes.csv"

LEAST_JUMP = 0.02
"""Of the allocated peak, between two releases that follow one another."""
LEAST_SHARE = 0.005
"""Of the peak: tensors that came or went with fewer bytes are not named."""

_NO_ANSWER = " has no answer (failed): "

_KEYS = ("package", "release", "trainer", "tuning", "model", "gpus")
_OF_TENSOR = ["what", "tensors", "bytes"]
_LIST = "list"
"""In the kept tables: the number of a list of tensors."""
_SIZES = ("allocated_bytes", "reserved_bytes", "estimated_bytes")
_ORDER = {run: place for place, run in enumerate(RUNS)}

Tables = tuple[pd.DataFrame, pd.DataFrame]
"""Rows and tensors."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Tensors of one origin at both peaks."""

    what: str
    """The tensor's name, or the file that made it."""
    before_bytes: int
    after_bytes: int

    @property
    def bytes(self) -> int:
        """Positive if they grew."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, kw_only=True)
class Jump:
    """Two releases that follow one another, between which the peak of a job changes."""

    before: Run
    after: Run
    before_bytes: int
    after_bytes: int
    changes: Sequence[Change]
    """Among the largest tensors of both peaks, the largest first."""

    @property
    def ratio(self) -> float:
        """Relative to the release before."""
        return self.after_bytes / self.before_bytes - 1


# ---- from the folders of the runs ------------------------------------------------------------------------------------


def rows_of(place: Path) -> Tables:
    """Return a row per run that has ended, and the largest tensors of each peak.

    The rows have `allocated_bytes`, `reserved_bytes` and `phase` of the peak and the `others` packages, null where a
    run has failed; `estimated_bytes`, the allocated peak in closed form, null where there is none; and `end`: ``"ok"``,
    or why there is no answer. The tensors have `what`, `tensors` and `bytes`.
    """
    rows, tensors = list[dict[str, object]](), list[dict[str, object]]()
    for run in RUNS:
        if has_ended(run, place):
            rows.append({**_keys(run), **_row(run, run.folder(place))})
            tensors.extend({**_keys(run), **each} for each in _tensors(run, run.folder(place)))
    return _tables(rows, tensors)


def _tables(rows: Sequence[Mapping[str, object]], tensors: Sequence[Mapping[str, object]]) -> Tables:
    columns = [*_KEYS, "end", *_SIZES, "phase", "others"]
    return _estimated(pd.DataFrame(rows, columns=columns)), pd.DataFrame(tensors, columns=[*_KEYS, *_OF_TENSOR]).astype(
        {"tensors": "Int64"}
    )


def merged(found: Tables, kept: Tables) -> Tables:
    """Return what was found, and of what is kept the runs that were not found; all with today's estimates."""
    runs = set(_runs(found[0]))
    rows, tensors = (
        pd.concat([old[[run not in runs for run in _runs(old)]], new], ignore_index=True)
        for old, new in zip(kept, found, strict=True)
    )
    return _estimated(_in_order(rows)), _in_order(tensors)


def runs_in(tables: Tables) -> Sequence[Run]:
    """Return the runs that have rows."""
    return _runs(tables[0])


def of_size(rows: pd.DataFrame, size: Size) -> pd.DataFrame:
    """Return the rows of one size."""
    return rows[(rows.model == size.model) & (rows.gpus == size.gpus)]


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    places = pd.Series([_ORDER[run] for run in _runs(table)], index=table.index, dtype=int)
    return table.loc[places.sort_values(kind="stable").index].reset_index(drop=True)


def _runs(table: pd.DataFrame) -> list[Run]:
    return [run_of(row) for row in table.to_dict("records")]


def _estimated(rows: pd.DataFrame) -> pd.DataFrame:
    estimates = pd.Series([estimated_bytes(run) for run in _runs(rows)], index=rows.index, dtype="Int64")
    return rows.assign(estimated_bytes=estimates).astype(dict.fromkeys(_SIZES, "Int64"))


def _keys(run: Run) -> dict[str, object]:
    return {key: getattr(run, key) for key in _KEYS}


def _table(folder: Path, name: str) -> pd.DataFrame | None:
    found = sorted(folder.glob(f"scripts/*/{name}.parquet"))
    return pd.read_parquet(found[0]) if found else None


def _row(run: Run, folder: Path) -> dict[str, object]:
    if package_of(run).engine:
        return _row_of_command(run, folder)
    runs = _table(folder, "scripts")
    if (folder / CODE).read_text().strip() != "0" or runs is None or runs.status[0] != "ok":
        return {"end": _last_sentence((folder / SAID).read_text("utf-8", errors="replace"))}
    (found,) = runs.to_dict("records")
    sizes = {f"{metric}_bytes": int(found[f"peak_{metric}_bytes"]) for metric in ("allocated", "reserved")}
    versions = {name: found[f"{name}_version"] for name in OTHERS if pd.notna(found.get(f"{name}_version"))}
    return {"end": "ok", **sizes, "phase": found["peak_phase"], "others": _others(run, versions)}


def _others(run: Run, versions: Mapping[str, object]) -> str:
    own = package_of(run).installed
    return ", ".join(f"{name} {version}" for name, version in versions.items() if name != own)


def _row_of_command(run: Run, folder: Path) -> dict[str, object]:
    process = _trainer_of(folder)
    if (folder / CODE).read_text().strip() != "0" or process is None:
        said = [each["last_sentence"] for each in _processes(folder) if each["last_sentence"]]
        return {"end": _last_sentence(" ".join(said[0].split()) if said else "")}
    phases = process["phases"]
    peak = _peak_of(process)
    return {
        "end": "ok",
        "allocated_bytes": peak["allocated_bytes"],
        "reserved_bytes": max(phase["reserved_bytes"] for phase in phases),
        "phase": peak["phase"],
        "others": _others(run, json.loads((folder / VERSIONS).read_text())),
    }


def _trainer_of(folder: Path) -> dict[str, Any] | None:
    """Return the process of a command that trains, of the first rank; None if there is none."""
    found = [each for each in _processes(folder) if "trains" in each["roles"]]
    return next((each for each in found if each["rank"] in (None, 0)), None)


def _processes(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(path.read_text()) for path in folder.glob("jobs/*/job.json")]
    return [each for record in records for each in record["memory"]["processes"]]


def _peak_of(process: Mapping[str, Any]) -> dict[str, Any]:
    return max(process["phases"], key=lambda phase: phase["allocated_bytes"])


def _last_sentence(text: str) -> str:
    """Return why there is no answer, as the command says it, or its last line; without the path of an environment."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["It said nothing."]
    said = lines[-1].partition(_NO_ANSWER)[2] or lines[-1]
    return shortened(re.sub(r" in \S+/bin/python\b.*", "", said), 200)


def _tensors(run: Run, folder: Path) -> Iterable[dict[str, object]]:
    if package_of(run).engine:
        process = _trainer_of(folder)
        # Of a process there are categories alone, and no number of tensors.
        for share in () if process is None else _peak_of(process)["shares"]:
            yield {"what": share["category"], "tensors": None, "bytes": share["size_bytes"]}
        return
    found = _table(folder, "script_largest")
    for row in () if found is None else found.to_dict("records"):
        what = row["name"] or row["library"] or row["line"] or "a backward pass, or a library's own code"
        yield {"what": what, "tensors": row["tensors"], "bytes": row["bytes"]}


# ---- jumps -----------------------------------------------------------------------------------------------------------


def jumps(rows: pd.DataFrame, tensors: pd.DataFrame) -> list[Jump]:
    """Return every jump of a job, in the order of jobs and releases; a release that has failed is passed over."""
    found = []
    ended = rows[rows.end == "ok"]
    for _, own in ended.groupby([key for key in _KEYS if key != "release"], sort=False):
        sizes = {run_of(row): int(row["allocated_bytes"]) for row in own.to_dict("records")}
        for before, after in pairwise(sorted(sizes, key=_ORDER.__getitem__)):
            if abs(sizes[after] / sizes[before] - 1) > LEAST_JUMP:
                changes = _changes(_held(tensors, before), _held(tensors, after), LEAST_SHARE * sizes[after])
                found.append(
                    Jump(
                        before=before,
                        after=after,
                        before_bytes=sizes[before],
                        after_bytes=sizes[after],
                        changes=changes,
                    )
                )
    return found


def run_of(row: Mapping[Any, Any]) -> Run:
    """Return the run of a row."""
    return Run(**{key: row[key] for key in _KEYS})


def _held(tensors: pd.DataFrame, run: Run) -> dict[str, int]:
    """Bytes by origin: lines of a file move between releases, so that a file counts as one."""
    own = tensors
    for key, value in _keys(run).items():
        own = own[own[key] == value]
    origin = own.what.str.replace(r"\.py:\d+$", ".py", regex=True)
    return {str(what): int(size) for what, size in own.bytes.groupby(origin).sum().items()}


def _changes(before: Mapping[str, int], after: Mapping[str, int], least_bytes: float) -> list[Change]:
    # A list of the largest tensors ends somewhere: what is smaller may be on one list alone.
    edge = max((min(held.values(), default=0) for held in (before, after)), default=0)
    changes = [
        Change(what=what, before_bytes=before.get(what, 0), after_bytes=after.get(what, 0))
        for what in {**before, **after}
    ]
    named = [one for one in changes if abs(one.bytes) > least_bytes and max(one.before_bytes, one.after_bytes) > edge]
    return sorted(named, key=lambda one: -abs(one.bytes))


# ---- kept ------------------------------------------------------------------------------------------------------------


def keep(rows: pd.DataFrame, tensors: pd.DataFrame, folder: Path) -> None:
    """Write both tables, and each list of tensors once: most releases hold what the one before holds."""
    of_run = {run: own[_OF_TENSOR] for run, own in tensors.groupby(list(_KEYS), sort=False)}
    lists, numbers = dict[str, int](), list[int | None]()
    for key in rows[[*_KEYS]].itertuples(index=False, name=None):
        text = of_run[key].to_csv(index=False, header=False, lineterminator="\n") if key in of_run else ""
        numbers.append(lists.setdefault(text, len(lists)) if text else None)
    numbered = rows.assign(**{_LIST: pd.array(numbers, dtype="Int64")})
    lines = [f"{number},{line}" for text, number in lists.items() for line in text.splitlines(keepends=True)]
    write_atomically(folder / ROWS, numbered.to_csv(index=False, lineterminator="\n").encode())
    write_atomically(folder / TENSORS, "".join((",".join((_LIST, *_OF_TENSOR)), "\n", *lines)).encode())


def kept(folder: Path) -> Tables:
    """Return the tables that `keep` wrote; empty ones where there are none."""
    if not (folder / ROWS).exists():
        return _tables([], [])
    rows = pd.read_csv(folder / ROWS, dtype=dict.fromkeys((*_SIZES, _LIST), "Int64"))
    lists = pd.read_csv(folder / TENSORS, dtype=dict.fromkeys((_LIST, "tensors"), "Int64"))
    tensors = rows[[*_KEYS, _LIST]].dropna().merge(lists, on=_LIST, sort=False)
    return rows.drop(columns=_LIST), tensors[[*_KEYS, *_OF_TENSOR]]


def read_causes(folder: Path) -> Mapping[tuple[str, str, str], str]:
    """Return what a jump comes from, found in the sources, by package, release after it, and job."""
    path = folder / CAUSES
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {(row["package"], row["release"], row["job"]): row["cause"] for row in csv.DictReader(file)}
