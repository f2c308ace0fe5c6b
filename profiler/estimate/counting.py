"""Models of unknown families: counted by transformers in a process of its own, because an estimate imports no torch."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from profiler.analytical.formulas.parameters import parameter_count
from profiler.domain.architecture import Architecture
from profiler.domain.errors import Fault, UsageError, shortened
from profiler.domain.extras import listed, missing, simulation_hint

TIMEOUT_S = 120
"""Time for the import of torch and transformers and for the model."""

ParameterCounter = Callable[[Mapping[str, object]], int]
"""Returns the parameters of the model with this `config.json`; raises `CountingError` where that fails."""


class CountingError(Exception):
    """A model cannot be counted; the message is the reason."""


def counted_by_transformers(config: Mapping[str, object]) -> int:
    """Return the parameters of the model that transformers makes of `config`, on torch's meta device.

    Raises:
        CountingError: torch or transformers is missing, or there is no such model.
    """
    if absent := missing(("torch", "transformers")):
        raise CountingError(f"counting it needs {listed(absent)}, which this installation lacks")
    command = [sys.executable, "-m", "profiler.training.parameter_count"]
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
        return int(json.loads(found.stdout)["parameters"])
    except subprocess.TimeoutExpired as error:
        raise CountingError(f"transformers did not count it within {TIMEOUT_S} s") from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CountingError("transformers makes no language model of its config.json") from error


def checked(
    architecture: Architecture, config: Mapping[str, object], *, model: str, count: ParameterCounter
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
    if counted != own:
        billions = f"{counted / 1e9:.3g} billion parameters, of which the closed form counts {own / 1e9:.3g}"
        raise _refused(model, architecture, f"it has {billions}")
    return replace(architecture, has_known_layers=True)


def _refused(model: str, architecture: Architecture, reason: str) -> UsageError:
    kind = shortened(architecture.model_type, 60)
    problem = f"is of the unknown model_type {kind}, and {reason}"
    return UsageError([Fault(key="model", found=model, problem=problem, hint=simulation_hint())])
