"""The published measurements and claims. They are compared with results and never used for tuning."""

import csv
from importlib.resources import files

from profiler.analysis.compared.published import PublishedFigure
from profiler.analysis.verdicts import LookedUp
from profiler.domain.claims import Claim
from profiler.domain.text import packed_text

_YES_NO = {"true": True, "false": False, "": None}


def read_published() -> tuple[PublishedFigure, ...]:
    """Return every published figure, in the order of `profiler/published/measurements.csv`."""
    sources = {row["source"]: row for row in _rows("sources.csv")}
    return tuple(_figure(row, sources[row["source"]]) for row in _rows("measurements.csv"))


def read_published_claims() -> tuple[Claim, ...]:
    """Return every claim of `profiler/published/claims.yaml`, in order."""
    from profiler.config.claims.claims import read_claims  # a clone has it, and no installed package

    text = (files("profiler") / "published" / "claims.yaml").read_text(encoding="utf-8")
    return read_claims(text, published=[figure.id for figure in read_published()])


def read_looked_up() -> dict[tuple[str, str], LookedUp]:
    """Return the kept look-ups of claims by claim and setting; `python -m maintenance.look_up` makes them."""
    return {
        (row["claim"], row["when"]): LookedUp(is_so=row["is_so"] == "true", found=row["found"])
        for row in _rows(LOOKED_UP)
    }


LOOKED_UP = "looked_up.csv"


def read_counted() -> dict[str, float]:
    """Return the least seconds of a step by its keys (`keys_text`); `python -m maintenance.counted` counts them."""
    found: dict[str, float] = {}
    for row in _rows(COUNTED):
        found[row["configuration"]] = found.get(row["configuration"], 0.0) + float(row["seconds"])
    return found


COUNTED = "counted.csv"


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(packed_text(files("profiler") / "published", name).splitlines()))


def _figure(row: dict[str, str], source: dict[str, str]) -> PublishedFigure:
    return PublishedFigure(
        id=row["id"],
        source=row["source"],
        where=source["where"],
        trust=source["trust"],
        method=row["method"],
        model=row["model"],
        model_assumed=row["model_assumed"] or None,
        gpu=row["gpu"] or None,
        tuning=row["tuning"] or None,
        optimizer=row["optimizer"] or None,
        gradient_checkpointing=_YES_NO[row["gradient_checkpointing"]],
        printed=row["published"],
        unit=row["unit"],
        metric=row["metric"],
        note=row["note"] or None,
    )
