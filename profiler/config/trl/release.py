"""A file of trl with the defaults of one release, and what that release did otherwise than today's."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from profiler.config.trl.arguments.keys import KEY_OF
from profiler.config.trl_releases.behaviours import EFFECTS, UNCOUNTED, Described
from profiler.config.trl_releases.facts import defaults_of
from profiler.config.trl_releases.versions import NEWEST
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import key_named


def with_defaults(
    file: Mapping[str, object], recipe: Recipe, release: str, settled: Collection[str]
) -> tuple[dict[str, object], dict[str, str]]:
    """Return the keys of the trial with the defaults of a release, and the keys that the file leaves open.

    Args:
        file: Keys of trl's files.
        recipe: The trainer.
        release: The release of trl.
        settled: Keys of the trial that have the default of the newest release instead.
    """
    newest, found = defaults_of(recipe, NEWEST), defaults_of(recipe, release)
    defaults = {
        key: newest.get(key, value) if key in settled else value
        for key, value in found.items()
        if recipe in key_named(key).recipes
    }
    stated = {
        KEY_OF[key]: value
        for key, value in file.items()
        if key in KEY_OF and value is not None and recipe in key_named(KEY_OF[key]).recipes
    }
    point = {**defaults, "recipe": recipe.value, **stated}
    return point, {key: "" for key in defaults if key not in stated and key not in settled}


def effects_of(
    described: Described, recipe: Recipe, release: str, *, untouched: Collection[str]
) -> dict[str, tuple[object, str]]:
    """Return the keys of the trial that a release changes: the value, and what it does.

    Args:
        described: The job, with the defaults of the release.
        recipe: The trainer.
        release: The release of trl.
        untouched: Keys of the trial that stay as they are.
    """
    changed: dict[str, tuple[object, str]] = {}
    for effect in EFFECTS:
        if recipe not in effect.recipes or release not in effect.versions or effect.key in untouched:
            continue
        value = effect.value(described)
        if value is not None:
            changed[effect.key] = (value, effect.meaning)
            described = replace(described, point={**described.point, effect.key: value})
    return changed


def uncounted(described: Described, recipe: Recipe, release: str) -> tuple[str, ...]:
    """Return what a release needs in addition to today's, without a formula here."""
    rows = (row for row in UNCOUNTED if recipe in row.recipes and release in row.versions)
    return tuple(row.meaning for row in rows if row.applies(described))
