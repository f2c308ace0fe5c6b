"""Settings of a claim: the configurations, sums and look-ups in which it is judged."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from profiler.config.claims.parts import Faults, read_figure
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
    ExperimentLook,
    Line,
    Look,
    Looked,
    Loss,
    Pair,
    Setting,
    Single,
    SourceLook,
)
from profiler.domain.errors import Fault, UsageError
from profiler.domain.text.sums import sum_of
from profiler.domain.trials.trial import SPEC_KEYS, Backend, TrialSpec


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
