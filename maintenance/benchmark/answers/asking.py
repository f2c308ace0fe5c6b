"""Answers of the predictors: asked here or in the environment of their package, and kept as files of the set."""

import csv
import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from maintenance.benchmark.adapters.question import NotCoveredError, Question, Said
from maintenance.benchmark.answers.predictors import Predictor
from maintenance.benchmark.rows.jobs import FOLDER, architecture_of, config_of, spec_of
from profiler.analytical import model_of_recipe, parameter_count
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.errors import UsageError
from profiler.domain.runs.shared import Metric, Row
from profiler.storage.files.atomic import write_atomically

ANSWERS = FOLDER / "answers"
COSTS = ANSWERS / "costs.json"
_METRICS = tuple(metric.value for metric in Metric)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a predictor says of a row."""

    row_id: str
    said: Said
    """Bytes by metric; empty where it does not cover the job."""
    not_covered: str
    seconds: float


def question_of(row: Row) -> Question:
    """Return what is asked about a row.

    Raises:
        NotCoveredError: The job has something that no key can say, or its keys are refused.
    """
    try:
        spec = spec_of(row)
    except UsageError as error:
        raise NotCoveredError(error.faults[0].sentence()) from error
    return Question(
        row_id=row.row_id,
        job=spec_to_mapping(spec),
        config=config_of(spec.model),
        parameters=int(parameter_count(model_of_recipe(spec.recipe, architecture_of(spec.model)))),
        card=row.card.name,
        card_bytes=row.card.memory_bytes,
    )


def ask(predictor: Predictor, rows: Iterable[Row], *, python: Path | None = None) -> list[Answer]:
    """Return the answers of a predictor; one with a package needs the Python of its environment."""
    if predictor.package and python is not None:
        return _asked_there(predictor, rows, python)
    return [_asked_here(predictor, row) for row in rows]


def _asked_here(predictor: Predictor, row: Row) -> Answer:
    start = time.perf_counter()
    said: Said = {}
    reason = ""
    try:
        if predictor.from_row is not None:
            said = predictor.from_row(row)
        elif predictor.from_question is not None:
            said = predictor.from_question(question_of(row))
    except NotCoveredError as error:
        reason = str(error)
    return Answer(row_id=row.row_id, said=said, not_covered=reason, seconds=time.perf_counter() - start)


def _asked_there(predictor: Predictor, rows: Iterable[Row], python: Path) -> list[Answer]:
    questions, refused = [], []
    for row in rows:
        try:
            questions.append(question_of(row))
        except NotCoveredError as error:
            refused.append(Answer(row_id=row.row_id, said={}, not_covered=str(error), seconds=0.0))
    done = subprocess.run(
        (str(python), "-m", "maintenance.benchmark.answers.asked", predictor.key),
        input="".join(json.dumps(asdict(question)) + "\n" for question in questions),
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        text=True,
        check=True,
    )
    return [*(Answer(**json.loads(line)) for line in done.stdout.splitlines()), *refused]


def keep(predictor: Predictor, answers: Sequence[Answer], *, install_bytes: int) -> None:
    """Write the answers of a predictor, and what they cost."""
    costs = json.loads(COSTS.read_text()) if COSTS.exists() else {}
    answered = [answer.seconds for answer in answers if answer.said]
    costs[predictor.key] = {
        "seconds": predictor.seconds() if predictor.seconds else _median(answered),
        "install_bytes": install_bytes,
    }
    write_atomically(ANSWERS / f"{predictor.key}.csv", answers_text(answers).encode())
    write_atomically(COSTS, (json.dumps(dict(sorted(costs.items())), indent=1) + "\n").encode())


def _median(seconds: Sequence[float]) -> float | None:
    return round(statistics.median(seconds), 6) if seconds else None


def answers_text(answers: Iterable[Answer]) -> str:
    """Return answers as the text of their file, by the names of the rows."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("row_id", *(f"{name}_bytes" for name in _METRICS), "not_covered"))
    for answer in sorted(answers, key=lambda answer: answer.row_id):
        sizes = [answer.said.get(name, "") for name in _METRICS]
        writer.writerow((answer.row_id, *sizes, answer.not_covered))
    return file.getvalue()


def kept_answers(key: str) -> Mapping[str, Said]:
    """Return the kept answers of a predictor by the names of the rows; none where it does not cover the job."""
    with (ANSWERS / f"{key}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        row["row_id"]: {name: int(row[f"{name}_bytes"]) for name in _METRICS if row[f"{name}_bytes"]} for row in rows
    }


def kept_costs() -> Mapping[str, Mapping[str, float | None]]:
    """Return seconds per answer and bytes of the installation, by the key of the predictor."""
    found: Mapping[str, Mapping[str, float | None]] = json.loads(COSTS.read_text())
    return found
