"""Rows that were sent: how they are read, and what one may say.

A sent row has no text of its user: each text is a word of this program, a version, or the name of a card or a model
that is known to all. `python -m profiler.share` writes no other.
"""

import json
import re
from collections.abc import Mapping

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import Fault, UsageError
from profiler.domain.runs.outcome import PACKAGES
from profiler.domain.runs.shared import VERSION, ReadBy, Row, RowOrigin
from profiler.domain.trials.recipe import Recipe
from profiler.share.rows import (
    CAPPED,
    LONGEST_BATCH,
    OF_PROMPTS,
    PUBLIC_VERSION,
    SENT,
    architecture_of,
    impossible_peaks,
    job_of,
    refuse_texts,
    spec_of,
    trainer_of,
)
from profiler.storage.files.typed_json import JsonMismatchError, from_json

_ROW_ID = re.compile(r"sent-[0-9a-f]{16}")


def read_row(line: str) -> Row:
    """Read the line that `row_line` wrote.

    Raises:
        ValueError: It is no JSON; a `JsonMismatchError` if a field is missing, unknown or of another kind, or if the
            version is another one.
    """
    found = json.loads(line)
    if isinstance(found, dict) and found.get("schema_version", VERSION) != VERSION:
        raise JsonMismatchError(f"is {found['schema_version']!r:.100}, must be {VERSION}", ("schema_version",))
    return from_json(Row, found)


def faults_of_sent(row: Row) -> list[Fault]:
    """Return why a row cannot be sent: peaks that break physics, or a text that is none of this program's."""
    faults = [
        Fault(key=row.row_id, found=field, problem="is not what python -m profiler.share writes")
        for field, is_own in _own_texts(row).items()
        if not is_own
    ]
    try:
        spec = spec_of(row, architecture_of)
        refuse_texts(row.row_id, spec)
        if row.job != job_of(spec):
            faults.append(Fault(key=row.row_id, found="job", problem="has not every key of a trial, or others"))
    except UsageError as error:
        return [*faults, *error.faults]
    return [*faults, *impossible_peaks(row)]


def _own_texts(row: Row) -> Mapping[str, bool]:
    """Return by field whether its texts are those of this program."""
    unknown = {f"version of {name}" for name in (*PACKAGES, "driver")}
    known = {"driver", *PACKAGES}
    return {
        "row_id": _ROW_ID.fullmatch(row.row_id) is not None,
        "origin": row.origin is RowOrigin.SENT,
        "trainer": row.trainer in map(trainer_of, Recipe),
        "versions": known >= set(row.versions) and all(map(PUBLIC_VERSION.fullmatch, row.versions.values())),
        "card": row.card.name in {gpu.title for gpu in KNOWN_GPUS.values()} and not row.card.spills_to_host,
        "assumed": not row.assumed,
        "differs": {CAPPED} >= set(row.differs),
        "missing": {LONGEST_BATCH, OF_PROMPTS, *unknown} >= set(row.missing),
        "peaks": all(
            peak.unit_bytes == 1 and peak.read_by in (ReadBy.TORCH_COUNTER, ReadBy.COUNTER_AND_CONTEXT)
            for peak in row.peaks
        ),
        "source": row.source == SENT,
    }
