"""What `solve gpu`, `num_processes` and `model` choose from, in an order of preference."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from profiler.analytical.estimate import refuse_without_form
from profiler.analytical.explanation.bounds import without_sharding
from profiler.analytical.explanation.explained import all_cards, card_verdict, explain
from profiler.constraints.table import refuse_without_card
from profiler.domain.cards.gpu_names import gpu_named
from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import gib_text
from profiler.domain.models.builtin_models import BUILTIN_MODELS, find_builtin
from profiler.domain.trials.trial import DistributedType, TrialSpec
from profiler.estimate.job.inputs import ArchitectureLookup, Inputs
from profiler.estimate.job.trial import dearest_spec, parsed_trial
from profiler.rendering.answers.solve import Choice
from profiler.rendering.memory_words import CATEGORY_TITLES
from profiler.solve.command import COUNT, MODEL

MOST_GPUS = 512
"""Largest number of GPUs that is tried (our choice)."""

_TYPE = "distributed_type"
_FSDP_ASSUMED = "Assumed: more than one GPU train with FSDP (distributed_type=fsdp)."
_DDP_SHARDS_NOTHING = "DDP shards nothing, so more GPUs need as much memory each; distributed_type=fsdp shards."


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The values with their verdicts."""

    spec: TrialSpec
    """One of the trials: with the card of the command."""
    choices: tuple[Choice, ...]
    """The best first."""
    notes: tuple[str, ...] = ()
    """What was assumed; a sentence each."""
    unsharded: tuple[TrialSpec, ...] = ()
    """The trial, if it leaves out what shards it, so that only a card with room for that fits."""


def cards(inputs: Inputs, architecture_of: ArchitectureLookup) -> Choices:
    """Return all cards, the smallest first.

    Raises:
        UsageError: With every fault of the keys.
    """
    parsed = parsed_trial(inputs, architecture_of)
    spec = parsed.spec
    verdicts = all_cards(spec, architecture_of(spec.model))
    if parsed.refusal is not None:
        verdicts = without_sharding(verdicts, spec, architecture_of(spec.model))
    choices = tuple(Choice(value=card.gpu.name, verdict=card) for card in verdicts)
    return Choices(spec=spec, choices=choices, unsharded=() if parsed.refusal is None else (spec,))


def rented(found: Choices) -> Choices:
    """Return the cards that are rented."""
    kept = tuple(each for each in found.choices if each.verdict is None or each.verdict.gpu.is_rented)
    return replace(found, choices=kept)


def counts(inputs: Inputs, architecture_of: ArchitectureLookup) -> Choices:
    """Return numbers of GPUs, powers of two from 1 on, as the files or the keys shard; with FSDP if neither says how.

    One GPU trains without FSDP, and by DeepSpeed where that is named: it keeps float32 copies on one too.

    Raises:
        UsageError: With every fault of the keys, if rules allow no number, or several GPUs have no closed form.
    """
    shards = inputs.keys if inputs.sharded is None else inputs.sharded.keys
    # A launch of several processes that nothing shards is DDP.
    kind = shards.get(_TYPE) or (DistributedType.MULTI_GPU.value if inputs.keys.get(COUNT) not in (None, 1) else None)
    several = {} if kind is not None else {_TYPE: DistributedType.FSDP.value}
    alone = (inputs, {}) if kind == DistributedType.DEEPSPEED else (_unsharded(inputs), {_TYPE: None})
    found = [_tried(*alone, 1, architecture_of)]
    found += [_tried(inputs, several, 2**power, architecture_of) for power in range(1, MOST_GPUS.bit_length())]
    specs = [spec for _, spec in found if isinstance(spec, TrialSpec)]
    if not specs:
        raise UsageError([fault for _, error in found if isinstance(error, UsageError) for fault in error.faults][:1])
    refuse_without_card(specs[0])
    choices = tuple(_choice(number, spec, architecture_of) for number, spec in found)
    if all(each.verdict is None for each in choices[1:]):
        refuse_without_form(specs[-1], architecture_of(specs[-1].model))
    notes = () if kind is not None else (_FSDP_ASSUMED,)
    if specs[-1].distributed_type is DistributedType.MULTI_GPU:
        notes = (*notes, _DDP_SHARDS_NOTHING)
    return Choices(spec=specs[-1], choices=choices, notes=notes)


def _tried(
    inputs: Inputs, changes: Mapping[str, object], number: int, architecture_of: ArchitectureLookup
) -> tuple[int, TrialSpec | UsageError]:
    """Return a number of GPUs with its trial, or with what rules say of it."""
    try:
        return number, dearest_spec(inputs, {**changes, COUNT: number}, architecture_of)
    except UsageError as error:
        return number, error


def _unsharded(inputs: Inputs) -> Inputs:
    """Return the inputs as if no file said what shards the job."""
    return replace(inputs, sharded=None, others=tuple(map(_unsharded, inputs.others)))


def members(inputs: Inputs, architecture_of: ArchitectureLookup) -> Choices:
    """Return the built-in models of the family of the job's model, the largest first.

    Raises:
        UsageError: With every fault of the keys, or the model is not built in.
    """
    asked = dearest_spec(inputs, {}, architecture_of)
    refuse_without_card(asked)
    refuse_without_form(asked, architecture_of(asked.model))
    builtin = find_builtin(asked.model)
    if builtin is None:
        problem = "is not built in, so its family is not known; name a built-in model"
        raise UsageError([Fault(key=MODEL, found=asked.model, problem=problem)])
    family = [model for model in BUILTIN_MODELS.values() if _family(model.name) == _family(builtin.name)]
    found: list[tuple[str, TrialSpec | UsageError]] = []
    for model in sorted(family, key=lambda each: each.parameters, reverse=True):
        try:
            found.append((model.name, dearest_spec(inputs, {MODEL: model.name}, architecture_of)))
        except UsageError as error:
            found.append((model.name, error))
    return Choices(spec=asked, choices=tuple(_choice(name, spec, architecture_of) for name, spec in found))


def _family(name: str) -> str:
    """Return ``"qwen2.5"`` of ``"qwen2.5-7b"``."""
    return name.rpartition("-")[0]


def _choice(value: object, spec: TrialSpec | UsageError, architecture_of: ArchitectureLookup) -> Choice:
    if isinstance(spec, UsageError):
        return Choice(value=value, verdict=None, refusal=spec.faults[0].sentence())
    architecture = architecture_of(spec.model)
    try:
        refuse_without_form(spec, architecture)
    except UsageError as error:
        return Choice(value=value, verdict=None, refusal=error.faults[0].sentence())
    return Choice(value=value, verdict=card_verdict(spec, architecture, gpu_named(str(spec.gpu)), replays=True))


def peak_text(spec: TrialSpec, architecture_of: ArchitectureLookup) -> str:
    """Return what most of the peak is, which no further GPU makes smaller, as a sentence."""
    explained = explain(spec, architecture_of(spec.model))
    phase = next(each for each in explained.phases if each.phase is explained.estimate.peak_phase)
    largest = max(phase.shares, key=lambda share: share.size_bytes)
    title, size = CATEGORY_TITLES[largest.category], gib_text(largest.size_bytes)
    return f"With {spec.num_processes} GPUs the peak is in {phase.phase}: {title} {size}, {largest.short_form}."
