"""Settings of a claim, and the mappings that the list of claims is made of."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

from profiler.config.models.lookup import builtin_architecture
from profiler.config.options.reading import FieldReader, show, unknown_key
from profiler.config.trials.specification import parse_point
from profiler.config.verl.config import read_verl
from profiler.constraints.table import faults_in_a_sweep
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu import KNOWN_GPUS, ROOFLINES
from profiler.domain.claims import (
    By,
    Check,
    CompositionLook,
    Configuration,
    End,
    ExperimentLook,
    Line,
    Look,
    Looked,
    Loss,
    Pair,
    Range,
    Setting,
    Single,
    SourceLook,
)
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.text import sum_of
from profiler.domain.trials.trial import SPEC_KEYS, Backend, TrialSpec


class Faults:
    """Faults of the whole list, each with the place of its part."""

    def __init__(self) -> None:
        self._found: dict[Fault, None] = {}

    @property
    def found(self) -> tuple[Fault, ...]:
        """Every fault, each once."""
        return tuple(self._found)

    def add(self, place: str, value: object, problem: str, hint: str = "") -> None:
        """Keep one fault."""
        self.take("", [Fault(key=place, found=show(value), problem=problem, hint=hint)])

    def take(self, place: str, faults: Sequence[Fault]) -> None:
        """Keep faults of a part that does not know its place."""
        prefix = f"{place}." if place else ""
        self._found.update((replace(fault, key=f"{prefix}{fault.key}"), None) for fault in faults)

    def mapping(self, place: str, value: object) -> Mapping[str, object]:
        """Return a mapping with text keys; anything else is a fault, and empty."""
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return cast(Mapping[str, object], value)
        self.add(place, value, "must be a mapping of names to values")
        return {}

    def parts(self, place: str, value: object) -> list[Mapping[str, object]]:
        """Return a list of at least one mapping."""
        if isinstance(value, list) and value:
            return [self.mapping(f"{place}[{number}]", part) for number, part in enumerate(value, start=1)]
        self.add(place, value, "must be a list of at least one entry")
        return []

    @contextmanager
    def part(
        self, place: str, values: Mapping[str, object], *, needed: Sequence[str], allowed: Sequence[str] = ()
    ) -> Iterator[FieldReader]:
        """Read one part within the block, of which the keys are `needed` or `allowed`."""
        known = (*needed, *allowed)
        for key in values:
            if key not in known:
                problem = f"is unknown here; the keys are {', '.join(known)}"
                self.add(f"{place}.{key}", values[key], problem, nearest(key, known))
        for key in needed:
            if key not in values:
                self.add(f"{place}.{key}", None, "is needed here")
        reader = FieldReader({key: value for key, value in values.items() if key in known})
        yield reader
        self.take(place, [fault for fault in reader.faults if fault.key in values])


_SIDES = ("from", "to")


def read_range(reader: FieldReader, key: str) -> Range:
    """Return a claimed number, or the range ``{from: , to: }``, of which one side can be left out."""
    value = reader.value(key)
    if _is_number(value):
        return Range(low=float(cast(float, value)), high=float(cast(float, value)))
    if isinstance(value, Mapping) and value and set(value) <= set(_SIDES) and all(map(_is_number, value.values())):
        low, high = (None if value.get(side) is None else float(value[side]) for side in _SIDES)
        if low is None or high is None or low <= high:
            return Range(low=low, high=high)
    reader.fail(key, "must be a number, or a range {from: NUMBER, to: NUMBER} of which one side can be left out")
    return Range(low=0.0, high=0.0)


def read_figure(reader: FieldReader, key: str) -> Range | End:
    """Return a claimed number above 0 or range, or how a configuration is claimed to end."""
    value = reader.value(key)
    if isinstance(value, str):
        return reader.choice(key, End)
    found = read_range(reader, key)
    if found.largest == 0 and reader.sound(key):
        reader.fail(key, "must be above 0, because its tolerance is a part of it")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Keys that configurations share."""

    by: By
    gpu: str | None
    keys: Mapping[str, object]


def read_setting(
    check: Check, values: Mapping[str, object], place: str, *, setup: Setup | None, faults: Faults
) -> Setting | None:
    """Return one setting of a claim; None if it is too wrong to be one, with a fault."""
    if check is Check.ARITHMETIC:
        return _line(values, place, faults)
    if check is Check.LOOKED_UP:
        return _looked(values, place, faults)
    if setup is None:
        return None
    if check is Check.VALUE:
        return _single(values, place, setup, faults)
    return _pair(values, place, setup, faults)


def spec_of(configuration: Configuration) -> TrialSpec:
    """Return the trial of a configuration by a trial or its closed form, with backend=simulated.

    Raises:
        UsageError: Its keys are wrong; carries every fault.
    """
    return parse_point({"backend": Backend.SIMULATED.value, **configuration.keys}, architecture_of=_builtin)


def keys_text(configuration: Configuration) -> str:
    """Return the keys of a configuration by a trial as one text, equal for equal keys."""
    keys = configuration.keys
    return f"{{{', '.join(f'{key}: {show(keys[key])}' for key in SPEC_KEYS if key in keys)}}}"


def _builtin(model: str) -> Architecture:
    found = builtin_architecture(model)
    if found is None:
        raise UsageError([Fault(key="model", found=model, problem="is not built in, and a claim needs such a model")])
    return found


def _single(values: Mapping[str, object], place: str, setup: Setup, faults: Faults) -> Single:
    with faults.part(place, values, needed=("when", "trial"), allowed=("with", "claimed", "published")) as reader:
        when = _when(reader)
        is_published = "published" in values
        if is_published == ("claimed" in values):
            faults.add(place, when, "needs either `claimed` or `published`")
        published = reader.text("published", "the id of a published figure") if is_published else None
        claimed = read_figure(reader, "claimed") if "claimed" in values else None
    configuration = _configuration(values, "trial", place, setup, faults)
    return Single(when=when, claimed=claimed, published=published, configuration=configuration)


def _pair(values: Mapping[str, object], place: str, setup: Setup, faults: Faults) -> Pair:
    with faults.part(place, values, needed=("when", "before", "after"), allowed=("with",)) as reader:
        when = _when(reader)
    before = _configuration(values, "before", place, setup, faults)
    after = _configuration(values, "after", place, setup, faults)
    if before == after and "before" in values and "after" in values:
        faults.add(place, when, "has the same configuration before and after")
    return Pair(when=when, before=before, after=after)


def _when(reader: FieldReader) -> str:
    return reader.text("when", "a phrase that names the setting")


def _configuration(values: Mapping[str, object], name: str, place: str, setup: Setup, faults: Faults) -> Configuration:
    own = {part: faults.mapping(f"{place}.{part}", values[part]) for part in ("with", name) if part in values}
    keys = {**setup.keys, **own.get("with", {}), **own.get(name, {})}
    gpu = setup.gpu
    if setup.by is By.VERL:
        card = keys.pop("gpu", gpu)
        gpu = card if isinstance(card, str) else gpu
        if card not in KNOWN_GPUS:
            faults.add(f"{place}.{name}.gpu", card, f"must be one of {', '.join(KNOWN_GPUS)}")
    configuration = Configuration(by=setup.by, keys=keys, gpu=gpu)
    try:
        _CHECKS[setup.by](configuration)
    except UsageError as error:
        faults.take(f"{place}.{name}", error.faults)
    return configuration


def _check_trial(configuration: Configuration) -> None:
    refused = faults_in_a_sweep([spec_of(configuration)], builtin_architecture)
    if refused:
        raise UsageError(refused)


def _check_counted(configuration: Configuration) -> None:
    _check_trial(configuration)
    gpu = spec_of(configuration).gpu
    if gpu not in ROOFLINES:
        problem = f"has no known peaks; those with peaks are {', '.join(ROOFLINES)}"
        raise UsageError([Fault(key="gpu", found=str(gpu), problem=problem)])


def _check_estimate(configuration: Configuration) -> None:
    spec_of(configuration)


def _check_verl(configuration: Configuration) -> None:
    _builtin(read_verl(configuration.keys, strict=True).job.model)


def _check_script(configuration: Configuration) -> None:
    reader = FieldReader(configuration.keys)
    reader.text("script", "the name of a script that was run")
    reader.choice("backend", Backend)
    faults = [
        *reader.faults,
        *(unknown_key(key, configuration.keys[key], _SCRIPT_KEYS) for key in _unknown(configuration)),
    ]
    if faults:
        raise UsageError(faults)


def _unknown(configuration: Configuration) -> list[str]:
    return [key for key in configuration.keys if key not in _SCRIPT_KEYS]


_SCRIPT_KEYS = ("script", "backend")

_CHECKS: Mapping[By, Callable[[Configuration], None]] = {
    By.TRIAL: _check_trial,
    By.ESTIMATE: _check_estimate,
    By.VERL: _check_verl,
    By.SCRIPT: _check_script,
    By.COUNTED: _check_counted,
}


def _line(values: Mapping[str, object], place: str, faults: Faults) -> Line:
    with faults.part(place, values, needed=("when", "sum", "printed")) as reader:
        text, printed = reader.text("sum", "a sum of numbers"), reader.number("printed")
        value = 0.0
        try:
            value = sum_of(text)
        except ValueError:
            reader.fail("sum", "must be a sum of numbers, with + - * / ** and parentheses")
        return Line(when=_when(reader), sum_text=text, value=value, printed=printed)


def _looked(values: Mapping[str, object], place: str, faults: Faults) -> Looked:
    with faults.part(place, values, needed=("when", "look")) as reader:
        when = _when(reader)
    parts = faults.mapping(f"{place}.look", values.get("look"))
    return Looked(when=when, look=_look(parts, f"{place}.look", faults))


def _look(values: Mapping[str, object], place: str, faults: Faults) -> Look:
    if "experiment" in values:
        with faults.part(place, values, needed=("experiment", "loss")) as reader:
            reader.word("experiment", ("gradient",))
            return ExperimentLook(loss=reader.choice("loss", Loss))
    if "composed" in values:
        with faults.part(place, values, needed=("composed", "repository", "version", "overrides")) as reader:
            return CompositionLook(
                composed=reader.text("composed", "the name of a main configuration"),
                repository=reader.text("repository", "owner/name"),
                version=reader.text("version", "a tag or a commit"),
                overrides=reader.names("overrides"),
            )
    with faults.part(place, values, needed=("repository", "version", "path", "pattern")) as reader:
        pattern = reader.text("pattern", "a regular expression")
        try:
            re.compile(pattern)
        except re.error as error:
            reader.fail("pattern", f"is not a regular expression ({error})")
        return SourceLook(
            repository=reader.text("repository", "owner/name"),
            version=reader.text("version", "a tag or a commit"),
            path=reader.text("path", "a file or a pattern of files"),
            pattern=pattern,
        )
