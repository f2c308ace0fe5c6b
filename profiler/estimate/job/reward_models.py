"""Models that score completions: their shapes go with that of the policy, so that every formula sees them."""

from dataclasses import replace

from profiler.config.options.reading import show
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import Fault, UsageError, printable
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
    is_plain = architecture.num_experts <= 1 and architecture.vision is None and not architecture.quantization
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
