"""Models of unknown families: counted by transformers in a process of its own, because an estimate imports no torch."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from profiler.analytical.formulas.models.parameters import parameter_count
from profiler.config.models.architecture import has_other_senses, read_architecture
from profiler.config.options.reading import show
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.architectures.model_count import ModelCount
from profiler.domain.errors import Fault, UsageError, shortened
from profiler.domain.machines.child_python import safe_path_flags
from profiler.domain.machines.extras import listed, missing, simulation_hint
from profiler.domain.units import gib_text

TIMEOUT_S = 120
"""Time for the import of torch and transformers and for the model."""

ModelCounter = Callable[[Mapping[str, object]], ModelCount]
"""Returns the counts of the model with this `config.json`; raises `CountingError` where that fails."""

_SCRIPT_HINT = "To see what your script needs, run it: python -m profiler.run gpu=CARD train.py."

_RANK = 16
"""The rank of the LoRA whose size a refusal states: the default of `lora_rank`."""

_STATES = 2
"""Tensors that AdamW keeps per parameter."""

_BFLOAT16_BYTES, _FLOAT32_BYTES = 2, 4
"""Of weights, and of what peft trains: it makes adapters in float32."""


class CountingError(Exception):
    """A model cannot be counted; the message is the reason."""


def counted_by_transformers(config: Mapping[str, object]) -> ModelCount:
    """Return the counts of the model that transformers makes of `config`, on torch's meta device.

    Raises:
        CountingError: torch or transformers is missing, or there is no such model.
    """
    if absent := missing(("torch", "transformers")):
        raise CountingError(f"counting it needs {listed(absent)}, which this installation lacks")
    command = [sys.executable, *safe_path_flags(), "-m", "profiler.training.models.parameter_count"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        found = subprocess.run(
            command,
            input=json.dumps(config),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=environment,
            check=False,
        )
        said = json.loads(found.stdout)
        return ModelCount(**{**said, "linear_names": tuple(said["linear_names"])})
    except subprocess.TimeoutExpired as error:
        raise CountingError(f"transformers did not count it within {TIMEOUT_S} s") from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CountingError("transformers makes no language model of its config.json") from error


def read_and_counted(config: Mapping[str, object], *, model: str, count: ModelCounter) -> Architecture:
    """Return the architecture of a `config.json`, counted by transformers where its layers are unknown.

    Raises:
        UsageError: There is no closed form. The sentence says what is known of the model.
    """
    if has_other_senses(config) and not config.get("auto_map"):
        raise _with_towers(config, model=model, count=count)
    return checked(read_architecture(config, model=model), config, model=model, count=count)


def checked(
    architecture: Architecture, config: Mapping[str, object], *, model: str, count: ModelCounter
) -> Architecture:
    """Return `architecture` with known layers, if the closed form counts as many parameters as transformers.

    Raises:
        UsageError: It does not, or the model cannot be counted.
    """
    if architecture.has_known_layers or architecture.num_experts > 1:
        return architecture
    if config.get("auto_map"):
        raise _refused(model, architecture, "its layers are code of its repository, which is not run")
    own = int(parameter_count(architecture))
    try:
        counted = count(config)
    except CountingError as error:
        raise _refused(model, architecture, str(error)) from error
    if counted.parameters != own:
        billions = f"it has {_billions(counted.parameters)}, of which the closed form counts {own / 1e9:.3g}"
        raise _refused(model, architecture, f"{billions}. {_known(counted)}")
    return replace(architecture, has_known_layers=True)


def _with_towers(config: Mapping[str, object], *, model: str, count: ModelCounter) -> UsageError:
    """Return the refusal of a model with towers for images or sound, with what is known of it."""
    try:
        read_architecture(config, model=model)
    except UsageError as refused:
        try:
            counted = count(config)
        except CountingError as error:
            (fault,) = refused.faults
            return UsageError([replace(fault, problem=f"{fault.problem} ({error})")])
    kind = shortened(show(config.get("model_type", "unknown")), 60)
    problem = (
        f"has towers for images or sound (model_type {kind}), whose activations have no formula. It has "
        f"{_billions(counted.parameters)}, {counted.in_towers / 1e9:.3g} of them in the towers. {_known(counted)}"
    )
    return UsageError([Fault(key="model", found=model, problem=problem, hint=_SCRIPT_HINT)])


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.3g} billion parameters"


def _known(counted: ModelCount) -> str:
    """Return what training needs at least, by the parameters alone, without the full stop of the sentence."""
    weights = counted.parameters * _BFLOAT16_BYTES
    trained = _RANK * counted.lora_per_rank
    adapters = weights + trained * _FLOAT32_BYTES * (2 + _STATES)
    return (
        f"Without any activation, bfloat16 weights take {gib_text(weights)}, with gradients and AdamW's states "
        f"{gib_text(weights * (2 + _STATES))}; with LoRA of rank {_RANK} on its {counted.linear_layers} linear layers "
        f"({shortened(', '.join(counted.linear_names), 160)}), {trained / 1e6:,.1f} million parameters, "
        f"{gib_text(adapters)}"
    )


def _refused(model: str, architecture: Architecture, reason: str) -> UsageError:
    kind = shortened(architecture.model_type, 60)
    problem = f"is of the unknown model_type {kind}, and {reason}"
    return UsageError([Fault(key="model", found=model, problem=problem, hint=simulation_hint())])
