"""The estimate for a configuration of verl: memory of one GPU of several."""

from collections.abc import Callable, Mapping, Sequence

from profiler.analytical.baselines.verl_baseline import baseline_view
from profiler.analytical.closed_form import refuse_experts
from profiler.analytical.sharded.verl_phases import verl_estimate
from profiler.config.reading import show
from profiler.config.specification import DEFAULT_GPU
from profiler.config.verl_config import read_verl_config
from profiler.domain.architecture import Architecture
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.gpu import KNOWN_GPUS
from profiler.estimate.command import Command, OutputFormat
from profiler.rendering.verl_table import verl_json, verl_table

_CARD = "gpu"


def verl_answer(command: Command, values: Mapping[str, object], architecture_of: Callable[[str], Architecture]) -> str:
    """Return the memory per GPU of the job in `values`, on the card of the command.

    Raises:
        UsageError: With all faults that were found.
    """
    faults = [*command.faults, *_key_faults(command.keys), *_list_faults(command.axes)]
    try:
        job = read_verl_config(values)
        architecture = architecture_of(job.model)
        refuse_experts(architecture)
    except UsageError as error:
        faults.extend(error.faults)
    if faults:
        raise UsageError(tuple(dict.fromkeys(faults)))
    found = verl_estimate(job, architecture, KNOWN_GPUS[str(command.keys.get(_CARD, DEFAULT_GPU))])
    baseline = baseline_view(found, architecture)
    return verl_json(found, baseline) if command.output_format is OutputFormat.JSON else verl_table(found, baseline)


def _list_faults(axes: Mapping[str, Sequence[object]]) -> list[Fault]:
    problem = "has several values, and a verl job is estimated for one card at a time"
    return [Fault(key=key, found=",".join(map(show, values)), problem=problem) for key, values in axes.items()]


def _key_faults(keys: Mapping[str, object]) -> list[Fault]:
    faults = [
        Fault(key=key, found=show(value), problem="is a key of a trial; a verl job is described by its file alone")
        for key, value in keys.items()
        if key != _CARD
    ]
    card = keys.get(_CARD, DEFAULT_GPU)
    if card not in KNOWN_GPUS:
        names = tuple(KNOWN_GPUS)
        hint = nearest(show(card), names)
        faults.append(Fault(key=_CARD, found=show(card), problem=f"must be one of {', '.join(names)}", hint=hint))
    return faults
