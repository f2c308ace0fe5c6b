"""The estimate for a configuration of verl: memory of one GPU of several."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from profiler.analytical.baselines import BaselineView, baseline_view
from profiler.analytical.estimate import refuse_model
from profiler.analytical.explanation.boundary import VerlFit, verl_cards, verl_fit, with_reasons
from profiler.analytical.explanation.explained import CardVerdict, Fit, Unanswered
from profiler.analytical.timeline.recipes.verl import VerlEstimate, verl_estimate
from profiler.config.models.lookup import taken_by_name, taken_text
from profiler.config.notes import Note, not_counted, note_lines
from profiler.config.options.option import OutputFormat
from profiler.config.options.reading import show
from profiler.config.trials.specification import DEFAULT_GPU
from profiler.config.verl.assertions import ended_rows, refusals
from profiler.config.verl.config import VerlReading, read_verl
from profiler.config.verl.effects import doubt_of_refusal
from profiler.config.verl.keys import VERSIONS
from profiler.config.verl.sources import VerlSource
from profiler.config.verl.workers import releases_of
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu import Gpu
from profiler.domain.cards.gpu_names import gpu_named, name_card
from profiler.domain.errors import Fault, UsageError, printable, shortened
from profiler.domain.verl import Release
from profiler.estimate.command import Command
from profiler.rendering.estimate.verl_table import verl_json, verl_table
from profiler.storage.foreign.model_config import is_local

_CARD = "gpu"

_OTHER_PATHS = ("critic.model.path", "actor_rollout_ref.ref.model.path")
_PATH = "actor_rollout_ref.model.path"

_LONGEST_LIST = 2000
"""Most characters of a list of keys."""


@dataclass(frozen=True, kw_only=True)
class AnsweredVerl:
    """The estimate of a job of verl."""

    found: VerlEstimate
    fit: VerlFit
    baseline: BaselineView
    architecture: Architecture
    values: Mapping[str, object]
    """Keys of verl, as the files and the overrides state them."""
    notes: tuple[str, ...]
    """What was assumed, and what is not counted; a sentence each."""
    ignored: str
    """A line that lists the keys that verl does not have; empty if there are none."""

    def table(self, *, details: bool = False) -> str:
        """Return the answer as text of 80 columns."""
        return verl_table(self.found, self.fit, self.baseline, self.notes, details=details)

    @property
    def cards(self) -> tuple[CardVerdict, ...]:
        """The verdict by what is counted for each known card, the smallest first."""
        return verl_cards(self.found.job, self.architecture, self.found.gpu)


def verl_answer(
    command: Command,
    source: VerlSource,
    architecture_of: Callable[[str], Architecture],
    say: Callable[[str], None],
) -> tuple[str, Fit | Unanswered]:
    """Return the output for the job in `source`, on the card of the command, and whether it fits.

    Raises:
        UsageError: With all faults that were found.
    """
    answer = answered_verl(command, source, architecture_of)
    if answer.ignored:
        say(answer.ignored)
    if command.options.output_format is OutputFormat.JSON:
        return verl_json(answer.found, answer.fit, answer.baseline, answer.notes), answer.fit.fit
    return answer.table(details=command.options.details), answer.fit.fit


def answered_verl(command: Command, source: VerlSource, architecture_of: Callable[[str], Architecture]) -> AnsweredVerl:
    """Return the memory per GPU of the job in `source`, on the card of the command, and whether it fits.

    Raises:
        UsageError: With all faults that were found.
    """
    faults = [*command.faults, *source.faults, *_key_faults(command), *_list_faults(command.axes)]
    releases, of_release = releases_of(source, command.options.verl)
    try:
        values, taken = _folder_taken_by_name(source.values)
        reading = _read(command, source, values, releases[0])
        architecture = architecture_of(reading.job.model)
        _refuse(architecture, releases[0])
    except UsageError as error:
        faults.extend(error.faults)
    if faults:
        named = {fault.key for fault in source.faults}
        once = [fault for fault in faults if fault in source.faults or fault.key not in named]
        raise UsageError(tuple(dict.fromkeys(once)))
    names = shortened(", ".join(reading.unknown), _LONGEST_LIST)
    card = _card(command)
    found = verl_estimate(reading.job, architecture, card)
    notes = _notes(source, reading, architecture)
    fit = _fit(reading, architecture, card, notes)
    others = _verdicts_of_others(command, source, values, architecture, releases[1:])
    return AnsweredVerl(
        found=found,
        fit=fit,
        baseline=baseline_view(found, architecture),
        architecture=architecture,
        values=values,
        notes=(
            *note_lines([of_release, *taken, *notes]),
            *(f"With verl={each.value}: {said}." for each, said in others if said != fit.word),
        ),
        ignored=printable(f"Ignored, because verl {VERSIONS[releases[0]]} has no such keys: {names}.") if names else "",
    )


def _read(command: Command, source: VerlSource, values: Mapping[str, object], release: Release) -> VerlReading:
    """Return the job of `values`, those of the source with the model by its name."""
    return read_verl(values, megatron=source.megatron, strict=command.options.strict, release=release)


def _refuse(architecture: Architecture, release: Release) -> None:
    """Raise if no job of the release has a closed-form estimate for the model."""
    refuse_model(architecture, of_verl=True, with_experts=release is not Release.V0_8)


def _notes(source: VerlSource, reading: VerlReading, architecture: Architecture) -> list[Note]:
    """Return what was assumed of a job, and what of it is not counted."""
    is_adapted = reading.job.lora_rank and _is_mixture(architecture)
    mixed = [not_counted("adapters of a mixture of experts")] if is_adapted else []
    return [*source.notes, *reading.notes, *reading.undecided, *mixed]


def _fit(reading: VerlReading, architecture: Architecture, card: Gpu, notes: Sequence[Note]) -> VerlFit:
    refused, not_counted = refusals(reading, architecture), [note.text for note in notes if not note.is_counted]
    not_counted.extend(ended_rows(reading))
    doubt = doubt_of_refusal(notes, reading.unknown)
    if refused and doubt:
        not_counted.insert(0, f"{doubt} ({refused[0]})")
        refused = ()
    return with_reasons(
        verl_fit(reading.job, reading.job_at, architecture, card, removes_padding=reading.removes_padding),
        refused=refused,
        not_counted=not_counted,
    )


def _verdicts_of_others(
    command: Command,
    source: VerlSource,
    values: Mapping[str, object],
    architecture: Architecture,
    releases: Sequence[Release],
) -> Iterator[tuple[Release, str]]:
    """Return the verdict of each further release that the job can be of."""
    for release in releases:
        try:
            # Only the verdict is asked for, and no mean length of rows.
            reading = replace(_read(command, source, values, release), removes_padding=False)
            _refuse(architecture, release)
        except UsageError:
            yield release, "refused"
        else:
            yield release, _fit(reading, architecture, _card(command), _notes(source, reading, architecture)).word


def _is_mixture(architecture: Architecture) -> bool:
    return architecture.num_experts > 1


def _folder_taken_by_name(values: Mapping[str, object]) -> tuple[dict[str, object], list[Note]]:
    """Return the values with folders of another machine replaced by the built-in models of their names, and notes."""
    models = {key: values[key] for key in (_PATH, *_OTHER_PATHS) if key in values}
    taken = {key: taken_by_name(model) for key, model in models.items() if not is_local(str(model))}
    found = {key: builtin for key, builtin in taken.items() if builtin is not None}
    texts = dict.fromkeys(taken_text(builtin, values[key]) for key, builtin in found.items())
    return {**values, **found}, [Note(key="", text=text) for text in texts]


def _card(command: Command) -> Gpu:
    return gpu_named(name_card(show(command.keys.get(_CARD, DEFAULT_GPU))).name)


def _list_faults(axes: Mapping[str, Sequence[object]]) -> list[Fault]:
    problem = "has several values, and a verl job is estimated for one card at a time"
    return [Fault(key=key, found=",".join(map(show, values)), problem=problem) for key, values in axes.items()]


def _key_faults(command: Command) -> list[Fault]:
    keys = command.keys
    problem = "is a key of a trial; a verl job is described by verl's own keys"
    faults = [Fault(key=key, found=show(value), problem=problem) for key, value in keys.items() if key != _CARD]
    if command.any_card:
        problem = "has several values, and a verl job is estimated for one card at a time"
        faults.append(Fault(key=_CARD, found="any", problem=problem))
    text = show(keys.get(_CARD, DEFAULT_GPU))
    card = name_card(text)
    if not card.name:
        faults.append(Fault(key=_CARD, found=text, problem=card.problem, hint=card.hint))
    return faults
