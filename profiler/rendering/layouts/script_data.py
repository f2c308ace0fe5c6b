"""The data of the scripts of `report.html`, as JSON in parts, and tables as CSV: a sweep can have 100,000 trials."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from markupsafe import Markup

from profiler.domain.memory import Category, Phase
from profiler.domain.text import plain
from profiler.rendering.document import ListedTrial, Tone, TrialList
from profiler.rendering.memory_words import CATEGORY_TITLES

if TYPE_CHECKING:
    import pandas as pd

_METRICS = ("allocated, tensors", "reserved, torch's cache", "device, with the context")
_TEXTS_AT_ONCE = 2_000

Texts: TypeAlias = Callable[[], Iterable[str]]
"""Returns the texts of a list, again with each call, so that they need not be kept."""


@dataclass(kw_only=True)
class ScriptData:
    """What the scripts of the page read. Names that all trials share are in it once."""

    is_in_full: bool
    """Whether it has the phases and categories of each trial."""
    trials: int = 0
    """Number of trials so far."""
    details: list[Texts] = field(default_factory=list)
    """The details of each trial of a section, as JSON; the number of a trial is its place among all."""
    rows: dict[str, Texts] = field(default_factory=dict)
    """The rows that are not in the page from the start, as JSON, by the id of their table."""
    long: dict[str, Texts] = field(default_factory=dict)
    """All rows of lists that are shown in parts."""

    def add(self, trials: TrialList, *, most: int) -> str:
        """Add a list of which the page itself has the rows of `most` trials; return the id of its table."""
        first, count = self.trials, trials.count
        is_long = count > most and not self.is_in_full
        self.trials += count
        self.details.append(partial(_details, trials, is_in_full=self.is_in_full))
        table_id = f"trials-{len(self.details)}"
        self.rows[table_id] = partial(_rows, trials, first, start=count if is_long else most)
        if is_long:
            self.long[table_id] = partial(_rows, trials, first, start=0)
        return table_id

    def parts(self) -> Iterable[Markup]:
        """Yield the JSON of the details, and of rows that can be added."""
        names = {
            "phases": tuple(Phase),
            "categories": tuple(CATEGORY_TITLES[category] for category in Category),
            "metrics": _METRICS,
        }
        yield _for_script(json_text(names)[:-1] + ',"trials":[')
        yield from _joined(text for details in self.details for text in details())
        yield Markup('],"rows":')
        yield from _lists(self.rows)
        yield Markup("}")

    def long_parts(self) -> Iterable[Markup]:
        """Yield the JSON of the lists that are shown in parts."""
        return _lists(self.long)


def _details(trials: TrialList, *, is_in_full: bool) -> Iterable[str]:
    return map(json_text, trials.details(is_in_full))


def _rows(trials: TrialList, first: int, *, start: int) -> Iterable[str]:
    """Yield the rows of a list from one on; the details of its first trial have the number `first`."""
    numbered = enumerate(trials.rows(), start=first)
    return (json_text(_row(number, trial)) for number, trial in islice(numbered, start, None))


def _row(number: int, trial: ListedTrial) -> list[object]:
    return [number, kind(trial.tone), trial.fields]


def kind(tone: Tone) -> str:
    """Return the class of a row or cell."""
    return "bad" if tone in (Tone.BAD, Tone.WARNING) else ""


def _lists(lists: Mapping[str, Texts]) -> Iterable[Markup]:
    """Yield an object of JSON with a list per name."""
    yield Markup("{")
    for number, (name, texts) in enumerate(lists.items()):
        yield _for_script(f"{',' if number else ''}{json_text(name)}:[")
        yield from _joined(texts())
        yield Markup("]")
    yield Markup("}")


def _joined(texts: Iterable[str]) -> Iterable[Markup]:
    """Yield texts of JSON with commas between them, some thousand at a time."""
    waiting, comma = iter(texts), ""
    while some := list(islice(waiting, _TEXTS_AT_ONCE)):
        yield _for_script(comma + ",".join(some))
        comma = ","


def json_text(value: object) -> str:
    """Return a value as JSON without spaces."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def _for_script(text: str) -> Markup:
    """Return JSON for a script element, without characters that could end the element or begin another."""
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


_FORMULA = ("=", "+", "-", "@")
"""Beginnings of a cell that a spreadsheet computes."""


def as_csv(table: "pd.DataFrame") -> str:
    """Return a table as CSV with a header. Text that a spreadsheet would compute begins with an apostrophe."""
    import pandas as pd

    safe = table.copy()
    for name in table.columns:
        if isinstance(table[name].dtype, pd.StringDtype):
            safe[name] = table[name].map(_computed_by_none, na_action="ignore")
    return safe.to_csv(index=False, lineterminator="\n")


def _computed_by_none(text: str) -> str:
    safe = plain(text)
    return f"'{safe}" if safe.lstrip().startswith(_FORMULA) else safe
