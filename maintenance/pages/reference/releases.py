"""The page of what changed between releases of trl, made from the tables of facts and behaviours."""

from collections.abc import Iterable, Mapping

from maintenance.pages.members import marked, meanings_of, table
from profiler.config.options.reading import show
from profiler.config.trl_releases.behaviours import (
    EFFECTS,
    FIRST_FUSED,
    LABEL_LOSSES,
    LAST_WITH_LABEL_LOGITS,
    LOGPROBS,
    UNCOUNTED,
    LogprobsRow,
)
from profiler.config.trl_releases.facts import DEFAULTS, KEY_VERSIONS, NEWEST, RELEASES, TRAINERS, Versions
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Logprobs

_HEAD = f"""\
# Releases of trl

What a recipe leaves open, and what it asks for, depends on the release of trl that it is written for, {RELEASES[0]} to
{NEWEST}. [How to describe a job](../how_to/recipe.md#releases-of-trl) says how the release is found. Sources are files
of trl by tag; `python -m maintenance.trl_history` compares these tables with them."""

_LOGITS = f"""\
Logits of all completions of a micro-batch are made at once by these releases, unless Liger computes the loss; from
{FIRST_FUSED} on `fused` makes none."""

_LABEL_LOGITS = f"""\
With `recipe=sft`, logits of all tokens of a micro-batch, or of chunks of them, are made by these releases, unless Liger
computes the loss. Those with chunks make all at once with `loss_type: nll`, as {LAST_WITH_LABEL_LOGITS} does."""


def releases_page() -> str:
    """Return the whole page."""
    changed = [
        (f"`{row.key}`", f"`{show(row.value)}`", _interval(row.versions), _recipes(row.recipes), marked(row.source))
        for row in DEFAULTS
    ]
    effects = [
        (f"`{row.key}`", marked(row.meaning), _interval(row.versions), _recipes(row.recipes), marked(row.source))
        for row in EFFECTS
        if row.key != "logprobs"
    ]
    uncounted = [
        (marked(row.meaning), _interval(row.versions), _recipes(row.recipes), marked(row.source)) for row in UNCOUNTED
    ]
    trainers = "; ".join(f"`{recipe}` {_interval(versions)}" for recipe, versions in TRAINERS.items())
    blocks = [
        _HEAD,
        f"Trainers that are answered: {trainers}.",
        "## Defaults",
        table(("key", "default", "releases", "recipes", "source"), changed),
        "## Behaviours",
        table(("key", "what the release does", "releases", "recipes", "source"), effects),
        "## Log-probabilities",
        _LOGITS,
        _logprobs(LOGPROBS),
        _LABEL_LOGITS,
        _logprobs(LABEL_LOSSES),
        "## Not counted",
        table(("what", "releases", "recipes", "source"), uncounted),
        "## Keys that not every release has",
        *(f"### {recipe}\n\n{_keys(versions)}" for recipe, versions in KEY_VERSIONS.items() if versions),
    ]
    return "\n\n".join(blocks) + "\n"


def _interval(versions: Versions) -> str:
    return f"{versions.first} to {versions.last}" if versions.first != versions.last else versions.first


def _recipes(recipes: Iterable[Recipe]) -> str:
    found = set(recipes)
    return "all" if found == set(Recipe) else ", ".join(f"`{recipe}`" for recipe in Recipe if recipe in found)


def _logprobs(rows: Iterable[LogprobsRow]) -> str:
    meanings = meanings_of(Logprobs)
    cells = [
        (
            f"`{row.logprobs}`",
            _interval(row.versions),
            marked(meanings[row.logprobs].partition(": ")[2]),
            marked(row.source),
        )
        for row in rows
    ]
    return table(("`logprobs`", "releases", "what it does", "source"), cells)


def _keys(versions: Mapping[str, Versions]) -> str:
    by_interval: dict[str, list[str]] = {}
    for name, interval in versions.items():
        by_interval.setdefault(_interval(interval), []).append(f"`{name}`")
    return table(("releases", "keys"), [(each, ", ".join(sorted(names))) for each, names in by_interval.items()])
