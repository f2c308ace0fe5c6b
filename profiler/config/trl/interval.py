"""The releases of trl that a recipe can be written for, and its trial in each of them where they differ."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from profiler.config.notes import Note, not_counted
from profiler.config.options.reading import show
from profiler.config.trl.argument_values import recipe_of
from profiler.config.trl.config import TrlReading, read_trl_config
from profiler.config.trl_releases.facts import (
    KEY,
    KEY_VERSIONS,
    MODEL_CONFIG_KEYS,
    NEWEST,
    RELEASES,
    TRAINERS,
    Versions,
    defaults_of,
    of_earlier_trainer,
    spans_text,
)
from profiler.domain.errors import Fault
from profiler.domain.trials.kernels import OtherKernels
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import key_named

_FEW = 3
"""Most keys that are named as the reason of an interval."""

_WHERE_OPEN: Mapping[str, str] = {
    "steps_per_generation": "gradient_accumulation_steps",
    "vllm_max_model_length": "the context of the model",
}
"""What an open key means where it is no constant."""


@dataclass(frozen=True, kw_only=True)
class PossibleVersions:
    """The releases that a recipe can be written for."""

    versions: Versions
    notes: tuple[Note, ...] = ()
    """What was taken for the reason; empty for every release of the trainer."""
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrlVariant:
    """A reading that holds for some releases."""

    releases: tuple[str, ...]
    reading: TrlReading


@dataclass(frozen=True, kw_only=True)
class TrlVariants:
    """The trials that a file describes in the releases it can be written for."""

    variants: tuple[TrlVariant, ...]
    """At least one, the newest releases first; no two describe the same trial."""
    notes: tuple[Note, ...]
    """The releases, and the keys of the trial that they decide."""
    faults: tuple[Fault, ...]


def possible_versions(
    values: Mapping[str, object], recipe: Recipe, *, stated: str | None = None, has_model_config: bool = True
) -> PossibleVersions:
    """Return the releases whose classes have all keys of a file.

    Args:
        values: The keys of trl's files.
        recipe: The trainer.
        stated: The release that the user names; None if the keys decide.
        has_model_config: Whether `dtype` is a key of `ModelConfig`. A script passes it to transformers.
    """
    known = _known_versions(values, recipe, has_model_config=has_model_config)
    if stated is not None:
        return _stated_versions(stated, known, recipe)
    whole = TRAINERS[recipe]
    if faults := of_earlier_trainer(known, recipe):
        return PossibleVersions(versions=whole, faults=faults)
    found: Versions | None = whole
    for versions in known.values():
        found = found & versions if found is not None else None
    if found is None:
        said = ", ".join(f"{key} of {versions}" for key, versions in _ends(known))
        text = f"trl {whole}, because no release has all keys ({said}); trl=VERSION states yours"
        return PossibleVersions(versions=whole, notes=(Note(key=KEY, text=text),))
    names = [key for key, _ in _ends(known)]
    why = f"by {' and '.join(names)}; " if names else ""
    text = f"trl {found} ({why}trl=VERSION states yours)"
    return PossibleVersions(versions=found, notes=(Note(key=KEY, text=text),))


def _known_versions(values: Mapping[str, object], recipe: Recipe, *, has_model_config: bool) -> dict[str, Versions]:
    model = {key: Versions.of(text) for key, text in MODEL_CONFIG_KEYS.items()} if has_model_config else {}
    table = {**model, **KEY_VERSIONS[recipe]}
    return {key: table[key] for key in map(str, values) if key in table}


def _ends(known: Mapping[str, Versions]) -> Sequence[tuple[str, Versions]]:
    """Return the keys that decide the first and the last release."""
    if not known:
        return ()
    latest = max(known.items(), key=lambda item: RELEASES.index(item[1].first))
    earliest = min(known.items(), key=lambda item: RELEASES.index(item[1].last))
    decides = [latest] if latest[1].first != RELEASES[0] else []
    return list(dict([*decides, *([earliest] if earliest[1].last != NEWEST else [])]).items())


def _stated_versions(stated: str, known: Mapping[str, Versions], recipe: Recipe) -> PossibleVersions:
    versions = Versions(stated, stated)
    if stated not in TRAINERS[recipe]:
        problem = f"has another {recipe.in_classes}Trainer, which has no recipe here; that of {TRAINERS[recipe]} has"
        return PossibleVersions(versions=TRAINERS[recipe], faults=(Fault(key=KEY, found=stated, problem=problem),))
    others = [f"{key} is of {found}" for key, found in known.items() if stated not in found]
    if not others:
        return PossibleVersions(versions=versions)
    note = Note(key="", text=f"trl {stated} as stated, although {', '.join(others[:_FEW])}")
    return PossibleVersions(versions=versions, notes=(note,))


def read_trl_variants(
    values: Mapping[str, object],
    *,
    strict: bool = False,
    recipe: Recipe | None = None,
    job: Mapping[str, object] | None = None,
    stated: str | None = None,
    given: Mapping[str, object] | None = None,
    settled: Collection[str] = (),
    kernels: OtherKernels | None = None,
) -> TrlVariants:
    """Return the trials that a file describes, one per group of releases that agree on it.

    Args:
        values: The content of the file.
        strict: Whether an unknown key is a fault.
        recipe: The trainer, where a script or the command names it; else the keys tell.
        job: How processes share the work, by `profiler.config.trl.parts.JOB_KEYS`.
        stated: The release that the user names; None if the keys decide.
        given: Keys of the trial that the command line states.
        settled: Keys of the trial that another note settles.
        kernels: The program that trains by trl with kernels of its own: what trl's need is not of it.
    """
    trainer = recipe or recipe_of(values)[0]
    possible = possible_versions(values, trainer, stated=stated, has_model_config=recipe is None)
    if kernels is not None and stated is None:
        versions = possible.versions & Versions(kernels.first_trl, kernels.last_trl) or possible.versions
        text = f"trl {versions} (by its keys and {kernels.program}; trl=VERSION states yours)"
        possible = replace(possible, versions=versions, notes=(Note(key=KEY, text=text),))

    def read(release: str) -> TrlReading:
        return read_trl_config(
            values, strict=strict, recipe=recipe, job=job, release=release, given=given, settled=settled
        )

    readings = {release: read(release) for release in possible.versions.releases}
    notes = (*possible.notes, *_decided(readings, trainer), *_beyond({} if kernels is not None else readings))
    return TrlVariants(variants=_grouped(readings), notes=notes, faults=possible.faults)


def _grouped(readings: Mapping[str, TrlReading]) -> tuple[TrlVariant, ...]:
    found: list[TrlVariant] = []
    for release, reading in reversed(list(readings.items())):
        same = next((each for each in found if each.reading.point == reading.point), None)
        if same is None:
            found.append(TrlVariant(releases=(release,), reading=reading))
        else:
            found[found.index(same)] = replace(same, releases=(release, *same.releases))
    return tuple(found)


def _decided(readings: Mapping[str, TrlReading], recipe: Recipe) -> Iterator[Note]:
    """Return a note per key that the releases decide: where they differ, or from the newest release."""
    todays = defaults_of(recipe, NEWEST)
    for key in dict.fromkeys(key for reading in readings.values() for key in reading.taken):
        by_value: dict[str, list[str]] = {}
        for release, reading in readings.items():
            by_value.setdefault(_as_text(key, reading.point.get(key)), []).append(release)
        meanings = dict.fromkeys(reading.taken.get(key, "") for reading in readings.values())
        if list(by_value) != [_as_text(key, todays.get(key))] or (key == "dtype" and any(meanings)):
            yield Note(key=key, text=_decided_text(key, by_value, [meaning for meaning in meanings if meaning]))


def _as_text(key: str, value: Any) -> str:  # noqa: ANN401  of any key
    if value is None:
        return _WHERE_OPEN.get(key) or show(key_named(key).assumed)
    return show(value)


def _decided_text(key: str, by_value: Mapping[str, Sequence[str]], meanings: Sequence[str]) -> str:
    if len(by_value) == 1:
        (value,) = by_value
        said = "; ".join(meanings) or "trl's default then"
        return f"{key}={value} ({said})"
    values = " or ".join(f"{value} (trl {spans_text(releases)})" for value, releases in by_value.items())
    return f"{key}={values}" + (f": {'; '.join(meanings)}" if meanings else "")


def _beyond(readings: Mapping[str, TrlReading]) -> Iterator[Note]:
    """Return a note per need of some releases that has no formula."""
    by_meaning: dict[str, list[str]] = {}
    for release, reading in readings.items():
        for meaning in reading.beyond:
            by_meaning.setdefault(meaning, []).append(release)
    for meaning, releases in by_meaning.items():
        yield not_counted(f"{meaning} (trl {spans_text(releases)})")
