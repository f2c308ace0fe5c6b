"""The one trial that a command line and its files describe, with its reward models."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from profiler.analytical.estimate import estimate, estimate_with_replay, has_form
from profiler.analytical.explanation.explained import card_verdict
from profiler.analytical.formulas.sizes.rounding import with_fragments
from profiler.config.models.context import model_lines
from profiler.config.options.reading import show
from profiler.config.trials.key_values import NO_MEANING, OTHER_TRAINER
from profiler.config.trials.specification import parse_point
from profiler.config.trl_releases.facts import RELEASES, spans_text
from profiler.constraints.table import keys_refused_in_a_sweep
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.errors import Fault, UsageError, printable
from profiler.domain.machines.extras import TRAINING, Extra, install_hint, listed, missing
from profiler.domain.memory import MIB, gib_text
from profiler.domain.trials.kernels import OtherKernels
from profiler.domain.trials.trial import SHARDED, Logprobs, TrialSpec
from profiler.estimate.job.inputs import ArchitectureLookup, Inputs

KEY = "reward_models"


def with_reward_models(inputs: Inputs, architecture_of: ArchitectureLookup) -> tuple[Inputs, ArchitectureLookup]:
    """Return the inputs, and a lookup whose architectures carry those of the reward models.

    A model that a file names and that has no formula is left out and named; one of the command line is a fault.
    """
    names = inputs.keys.get(KEY)
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return inputs, architecture_of
    found: dict[str, Architecture] = {}
    missing: dict[str, tuple[Fault, ...]] = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = _known(name, architecture_of)
        except UsageError as error:
            missing[name] = error.faults
    if missing and KEY in inputs.stated:
        faults = [replace(fault, key=KEY) for each in missing.values() for fault in each]
        return replace(inputs, faults=(*inputs.faults, *faults)), architecture_of
    inputs = _without(inputs, tuple(missing), tuple(found))
    inputs = replace(inputs, others=tuple(_without(each, tuple(missing), tuple(found)) for each in inputs.others))
    shapes = tuple(found[name] for name in names if name in found)
    return inputs, lambda model: replace(architecture_of(model), reward_models=shapes)


def _known(name: str, architecture_of: ArchitectureLookup) -> Architecture:
    """Return the architecture of a reward model.

    Raises:
        UsageError: There is no closed form for it.
    """
    architecture = architecture_of(name)
    is_plain = architecture.num_experts <= 1 and not (
        architecture.vision or architecture.idle or architecture.quantization
    )
    if architecture.has_closed_form and is_plain:
        return architecture
    kind = architecture.quantization or architecture.model_type
    raise UsageError([Fault(key=KEY, found=name, problem=f"is {kind}, which has no formula")])


def _without(inputs: Inputs, missing: tuple[str, ...], known: tuple[str, ...]) -> Inputs:
    """Return the inputs without the reward models that are `missing`, and a line that names them."""
    if not missing:
        return inputs
    line = printable(f"Not counted: the reward model {', '.join(map(show, missing))}, which has no formula here.")
    kept = {KEY: list(known) or None}
    sharded = inputs.sharded
    if sharded is not None:
        sharded = replace(sharded, keys={**sharded.keys, **kept}, notes=(*sharded.notes, line))
    return replace(inputs, keys={**inputs.keys, **kept}, notes=(*inputs.notes, line), sharded=sharded)


_SPLIT = "cp_size"

ArchitectureOf = Callable[[str], Architecture]

STEP_BYTES = 16 * MIB
"""Below it two needs are equal."""

_NO_FORM: Mapping[bool, str] = {
    True: "Not counted: the logits of all completions at once, as trl makes them up to 1.14: "
    "this model has no formula.",
    False: "Not counted: the logits of all tokens, as trl makes them at once up to 1.6, and by 256 up to 1.14: "
    "this job has no formula.",
}
"""By whether the recipe generates completions."""


_BY_ITSELF = "Where these releases of trl differ, the dearest is answered, trial by trial."


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The trial of some releases of trl."""

    spec: TrialSpec
    notes: tuple[str, ...]
    releases: tuple[str, ...]
    said: str = ""
    """What its verdict says of the GPUs that share it; empty where all is stated and counted."""
    refusal: Fault | None = None
    """Why no verdict holds: what shards it has no formula, and is left out; None if it is counted, or nothing does."""


@dataclass(frozen=True, kw_only=True)
class ParsedTrial:
    """The trial that is answered."""

    spec: TrialSpec
    notes: tuple[str, ...]
    """What was assumed; a sentence each."""
    decided_by: str = ""
    """Sentences that go with the verdict: the releases of trl that it is for where they differ, and its GPUs."""
    kernels: OtherKernels | None = None
    """As of `Inputs`."""
    refusal: Fault | None = None
    """As of `Candidate`."""


def parsed_trial(common: Inputs, architecture_of: ArchitectureOf) -> ParsedTrial:
    """Return the trial, sharded where that has a closed form, and what was assumed.

    Raises:
        UsageError: With every fault of the keys and files.
    """
    first, others = _candidates(common, {}, architecture_of)
    chosen = _dearest([first, *others], architecture_of) if others else first
    peaks = tuple(_peaks_line([first, *others], chosen, architecture_of)) if others else ()
    decided_by = (
        f"That is with trl {spans_text(chosen.releases)}, the dearest of the releases that the file can be for."
    )
    if common.kernels is not None:
        return ParsedTrial(spec=chosen.spec, notes=chosen.notes, decided_by=chosen.said, kernels=common.kernels)
    said = " ".join(filter(None, (chosen.said, decided_by if peaks else "")))
    return ParsedTrial(spec=chosen.spec, notes=(*chosen.notes, *peaks), decided_by=said, refusal=chosen.refusal)


def dearest_spec(common: Inputs, changes: Mapping[str, object], architecture_of: ArchitectureOf) -> TrialSpec:
    """Return the dearest trial of the releases of trl, with other values of some keys, sharded as its files say.

    Raises:
        UsageError: With every fault of the keys, if no release allows them; or what shards the trial has no formula.
    """
    first, others = _candidates(common, changes, architecture_of)
    chosen = _dearest([first, *others], architecture_of) if others else first
    refuse_open(chosen)
    return chosen.spec


def refuse_open(parsed: Candidate | ParsedTrial) -> None:
    """Refuse a trial that leaves out what shards it, where the answer is a number or a row, and no verdict.

    Raises:
        UsageError: It does.
    """
    if parsed.refusal is not None:
        raise UsageError([parsed.refusal])


def _candidates(
    common: Inputs, changes: Mapping[str, object], architecture_of: ArchitectureOf
) -> tuple[Candidate, tuple[Candidate, ...]]:
    """Return the trial of the newest releases that allow one, and those of the others, each once.

    Raises:
        UsageError: No release allows one; with the faults of the newest.
    """
    found: list[Candidate] = []
    refused: UsageError | None = None
    for inputs in _all(common):
        try:
            candidate = candidate_of(inputs, changes, architecture_of)
        except UsageError as error:
            refused = refused or error
            continue
        same = next((each for each in found if each.spec == candidate.spec), None)
        if same is None:
            found.append(candidate)
        else:
            found[found.index(same)] = replace(same, releases=(*candidate.releases, *same.releases))
    if not found:
        assert refused is not None
        raise refused
    return found[0], tuple(found[1:])


def candidate_of(inputs: Inputs, changes: Mapping[str, object], architecture_of: ArchitectureOf) -> Candidate:
    """Return the trial of some releases, sharded where that has a closed form.

    Raises:
        UsageError: With every fault of the keys and files.
    """
    if inputs.sharded is not None and not inputs.faults:
        try:
            spec = parse_point(inputs.at(changes, sharded=True), architecture_of=architecture_of)
        except UsageError as error:
            # No answer without sharding is near that of rows that are split.
            if split := tuple(fault for fault in error.faults if fault.key == _SPLIT):
                raise UsageError(split) from error
        else:
            if (known := with_form(spec, architecture_of)) is not None:
                return Candidate(
                    spec=known,
                    notes=_notes(inputs.sharded.notes, spec, known, architecture_of),
                    releases=inputs.releases,
                    said=inputs.sharded.said,
                )
    faults = list(inputs.faults)
    try:
        spec = parse_point(inputs.at(changes), architecture_of=architecture_of)
    except UsageError as error:
        # What a file says in a way that is not read is missing, or wrong, for that reason. Which keys its trainer has
        # is not known if it is another.
        named = {fault.key for fault in faults}
        is_other = any(fault.problem.startswith(OTHER_TRAINER) for fault in faults)
        found = (fault for fault in error.faults if not (is_other and fault.problem.startswith(NO_MEANING)))
        faults.extend(fault for fault in found if fault.key not in named)
    if faults:
        raise UsageError(tuple(dict.fromkeys(faults)))
    known = (with_form(spec, architecture_of) if inputs.releases else None) or spec
    return Candidate(
        spec=known,
        notes=_notes(inputs.notes, spec, known, architecture_of),
        releases=inputs.releases,
        said=inputs.sharded.left_out if inputs.sharded is not None else "",
        refusal=inputs.sharded.refusal if inputs.sharded is not None else None,
    )


def with_form(spec: TrialSpec, architecture_of: ArchitectureOf) -> TrialSpec | None:
    """Return the trial if it has a closed form, with fused log-probabilities if only these have one; else None.

    Logits of pairs that other programs make are not fused: sharding is left out before they are.
    """
    architecture = architecture_of(spec.model)
    if has_form(spec, architecture):
        return spec
    fused = replace(spec, logprobs=Logprobs.FUSED)
    if spec.logprobs.pair_loss is not None and spec.distributed_type in SHARDED:
        return None
    return fused if not spec.logprobs.has_fused_head and has_form(fused, architecture) else None


def notes_of_all(
    common: Inputs,
    specs: Sequence[TrialSpec],
    architecture_of: ArchitectureOf,
    *,
    unsharded: Sequence[TrialSpec] = (),
) -> tuple[str, ...]:
    """Return what was assumed about several trials, each the dearest of the releases, with what is not counted.

    Args:
        common: What the trials share.
        specs: The trials.
        architecture_of: Looks up their models.
        unsharded: Those that leave out what shards them.
    """
    ways = [way for way in Logprobs if not way.has_fused_head]
    makes_logits = any(each.keys.get("logprobs") in ways for each in _all(common))
    without = (spec for spec in specs if makes_logits and _without_logits(spec, architecture_of))
    each_by_itself = (_BY_ITSELF,) if common.others else ()
    return (*_shared_notes(common, len(unsharded), len(specs)), *each_by_itself, *dict.fromkeys(map(_no_form, without)))


def _shared_notes(common: Inputs, unsharded: int, trials: int) -> Iterator[str]:
    """Yield what was assumed about all of some trials, of which some may leave out what shards them."""
    shards = common.sharded
    if shards is None or shards.refusal is None or unsharded == trials:
        yield from common.notes
        yield from () if shards is None or not shards.left_out else (shards.left_out,)
        return
    yield from filter(None, (*shards.notes, shards.said))
    if unsharded:
        yield f"Without {shards.refusal.found}, which has no formula for them: {unsharded} of {trials} trials."


def _all(common: Inputs) -> tuple[Inputs, ...]:
    return (common, *common.others)


def _without_logits(spec: TrialSpec, architecture_of: ArchitectureOf) -> bool:
    """Return whether a trial with fused log-probabilities has no closed form with others."""
    full = replace(spec, logprobs=Logprobs.FULL if spec.recipe.facts.has_rollout else Logprobs.NLL)
    return spec.logprobs is Logprobs.FUSED and not has_form(full, architecture_of(spec.model))


def _no_form(spec: TrialSpec) -> str:
    return _NO_FORM[spec.recipe.facts.has_rollout]


def _notes(
    notes: tuple[str, ...], asked: TrialSpec, answered: TrialSpec, architecture_of: ArchitectureOf
) -> tuple[str, ...]:
    without_form = () if asked.logprobs is answered.logprobs else (_no_form(answered),)
    return (*notes, *model_lines(answered, architecture_of(answered.model)), *without_form)


def _dearest(candidates: Sequence[Candidate], architecture_of: ArchitectureOf) -> Candidate:
    """Return what needs most of its card; a job that does not start is dearer than any that does.

    A replay takes ten times as long as all else. What needs less at most than another one needs at least has none.
    """
    known = [each for each in candidates if has_form(each.spec, architecture_of(each.spec.model))]
    if not known:
        return candidates[0]
    bounds = [_bounds(each.spec, architecture_of) for each in known]
    floor = max(least for least, _ in bounds)
    possible = [each for each, (_, most) in zip(known, bounds, strict=True) if most >= floor]
    return possible[0] if len(possible) == 1 else max(possible, key=lambda each: _needs(each.spec, architecture_of))


def _needs(spec: TrialSpec, architecture_of: ArchitectureOf) -> tuple[bool, int, int]:
    gpu, architecture = find_gpu(spec.gpu), architecture_of(spec.model)
    if gpu is None:
        allocated, reserved = _peaks(spec, architecture)
        return (False, allocated // STEP_BYTES, reserved)
    card = card_verdict(spec, architecture, gpu, replays=True)
    # Optimizers differ in step counters of a few kilobytes, which decide nothing.
    return (not card.starts, card.needed_bytes // STEP_BYTES, card.peak_reserved_bytes)


def _bounds(spec: TrialSpec, architecture_of: ArchitectureOf) -> tuple[tuple[bool, int], tuple[bool, int]]:
    """Return what `_needs` begins with, at least and at most, whatever a replay finds."""
    gpu, architecture = find_gpu(spec.gpu), architecture_of(spec.model)
    if gpu is None:
        steps = estimate(spec, architecture).peak_allocated_bytes // STEP_BYTES
        return (False, steps), (False, steps)
    card = card_verdict(spec, architecture, gpu)
    most_bytes = int(with_fragments(card.peak_allocated_bytes)) + card.outside_bytes
    return (not card.starts, card.least_bytes // STEP_BYTES), (not card.starts, most_bytes // STEP_BYTES)


def _peaks(spec: TrialSpec, architecture: Architecture) -> tuple[int, int]:
    """Return allocated and reserved memory at the peak."""
    found = estimate_with_replay(spec, architecture)
    return found.peak_allocated_bytes, found.reserved_bytes


def _peaks_line(candidates: Sequence[Candidate], chosen: Candidate, architecture_of: ArchitectureOf) -> Iterator[str]:
    """Return the peaks of each group of releases, the oldest first; none if they are equal."""
    by_text: dict[str, list[str]] = {}
    for each in sorted(candidates, key=lambda one: RELEASES.index(one.releases[0])):
        if has_form(each.spec, architecture_of(each.spec.model)):
            allocated, reserved = _peaks(each.spec, architecture_of(each.spec.model))
            by_text.setdefault(f"{gib_text(allocated)} / {gib_text(reserved)}", []).extend(each.releases)
    if len(by_text) > 1:
        parts = ", ".join(f"{text} with trl {spans_text(releases)}" for text, releases in by_text.items())
        yield f"Peaks, allocated / reserved: {parts}. The answer is the dearest: trl {spans_text(chosen.releases)}."


def why_not_simulated(
    specs: Iterable[TrialSpec], architecture_of: ArchitectureLookup, *, known: Collection[str] = ()
) -> str:
    """Return why trials are not simulated, as a sentence; empty if they can be.

    Args:
        specs: The trials.
        architecture_of: Looks up their models.
        known: Keys that a sweep refuses and the caller simulates.
    """
    if refused := [key for key in keys_refused_in_a_sweep(specs, architecture_of) if key not in known]:
        return f"Not simulated, because only an estimate knows {', '.join(refused)} yet."
    if absent := missing(TRAINING):
        are = "is" if len(absent) == 1 else "are"
        return f"Not simulated, because {listed(absent)} {are} not installed. {install_hint(Extra.SIMULATE)}"
    return ""
