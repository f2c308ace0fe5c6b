"""The simulated trials against the estimates of one commit: rows, page and figure."""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd

from maintenance.samples.judgement import Judgement, Judgements
from profiler.domain.trials.trial import TrialSpec
from profiler.storage.files.atomic import write_atomically

ROWS, PAGE, FIGURE = "rows.parquet", "accuracy.md", "predictors"

JUDGEMENTS = "judgements.jsonl"
"""The first judgement of the sample, which no later one replaces, and the last: formulas that change in between know
its trials."""


def judged(specs: Sequence[TrialSpec], simulated: pd.DataFrame, judgement: Judgement, folder: Path) -> None:
    """Write rows, page and figure of simulated trials, and the judgements.

    Args:
        specs: The sample.
        simulated: Rows of `simulated_frame`.
        judgement: Its commit and sample.
        folder: Where the files are written.
    """
    from maintenance.accuracy.errors import RESERVED, Predictor, predictor_errors, predictors_figure
    from maintenance.accuracy.rows import prediction_frame
    from profiler.rendering.figures.theme import as_png

    frame = prediction_frame(specs, simulated)
    if frame.empty:
        return
    found = {summary.of: summary for summary in predictor_errors(frame)}
    ours, reserved = found.get(Predictor.ESTIMATE.value), found.get(RESERVED)
    last = replace(
        judgement,
        trials=ours.rows if ours else 0,
        p95_ratio=ours.p95_ratio if ours else 0.0,
        reserved_p95_ratio=reserved.p95_ratio if reserved else 0.0,
    )
    both = Judgements(first=_first(folder, last), last=last)
    rows = io.BytesIO()
    frame.to_parquet(rows, index=False)
    write_atomically(folder / ROWS, rows.getvalue())
    write_atomically(folder / f"{FIGURE}.png", as_png(predictors_figure(frame)))
    lines = "".join(f"{json.dumps(asdict(each))}\n" for each in (both.first, both.last))
    write_atomically(folder / JUDGEMENTS, lines.encode())
    write_atomically(folder / PAGE, page_of(simulated, frame, both).encode())


def page_of(simulated: pd.DataFrame, frame: pd.DataFrame, both: Judgements) -> str:
    """Return the page of kept rows.

    Args:
        simulated: Rows of all trials that ended.
        frame: Rows of those whose memory is simulated, with their predictions.
        both: The judgements.
    """
    from maintenance.accuracy.errors import group_errors, phase_errors, predictor_errors, worst_rows
    from maintenance.accuracy.page import accuracy_page

    return accuracy_page(
        both,
        simulated=simulated,
        frame=frame,
        predictors=predictor_errors(frame),
        groups=group_errors(frame),
        phases=phase_errors(frame),
        worst=worst_rows(frame),
        figure=f"{FIGURE}.png",
    )


def read_judgements(folder: Path) -> Judgements | None:
    """Return the kept judgements; None if the sample was not judged."""
    path = folder / JUDGEMENTS
    if not path.exists():
        return None
    first, last = (Judgement(**json.loads(line)) for line in path.read_text().splitlines())
    return Judgements(first=first, last=last)


def _first(folder: Path, last: Judgement) -> Judgement:
    """Return the first judgement of this sample, which is `last` if none is kept."""
    kept = read_judgements(folder)
    same = kept is not None and (kept.first.seed, kept.first.sampled) == (last.seed, last.sampled)
    return kept.first if kept is not None and same else last
