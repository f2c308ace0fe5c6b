"""The large requests of a trial, simulated in a process of its own, because commands import no torch."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.machines.extras import safe_path_flags
from profiler.domain.memory import Phase
from profiler.domain.trials.trial import TrialSpec

_TIMEOUT_S = 600


@dataclass(frozen=True, kw_only=True)
class SimulatedRequest:
    """Equal requests of one phase."""

    phase: Phase
    size_bytes: int
    operation: str
    shape: tuple[int, ...]
    dtype: str
    module: str
    allocated_bytes: int
    """Memory in use at one of them: the nearest to that of the error."""


@dataclass(frozen=True, kw_only=True)
class SimulatedTrial:
    """What the simulation of a trial says of its requests; `problem` is set if there is none."""

    requests: tuple[SimulatedRequest, ...] = ()
    status: str = ""
    refused_in: Phase | None = None
    """The phase in which the simulated card refuses a request."""
    refused_bytes: int | None = None
    needed_bytes: int | None = None
    """What a full card cannot return, and the CUDA context."""
    problem: str = ""

    @property
    def refuses(self) -> bool:
        """Whether the simulated card refuses a request."""
        return not self.problem and self.refused_in is not None


def simulate_requests(spec: TrialSpec, model_config: Mapping[str, object], *, allocated_bytes: int) -> SimulatedTrial:
    """Return the simulated requests of `spec`.

    Args:
        spec: The trial.
        model_config: The `config.json` of its model.
        allocated_bytes: Memory in use at the error; the nearest of equal requests counts.
    """
    job = {"spec": spec_to_mapping(spec), "model_config": dict(model_config), "allocated_bytes": allocated_bytes}
    try:
        run = subprocess.run(
            [sys.executable, *safe_path_flags(), "-m", "profiler.worker.large_requests"],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
            check=False,
        )
        found = json.loads(run.stdout)
    except subprocess.TimeoutExpired:
        return SimulatedTrial(problem=f"it took more than {_TIMEOUT_S} s")
    except (ValueError, OSError):
        return SimulatedTrial(problem="its process ended without an answer")
    if "problem" in found:
        return SimulatedTrial(problem=str(found["problem"]))
    verdict = found["verdict"]
    unreleasable, context = verdict["required_unreleasable_bytes"], verdict["context_bytes"]
    return SimulatedTrial(
        requests=tuple(
            SimulatedRequest(**{**each, "phase": Phase(each["phase"]), "shape": tuple(each["shape"])})
            for each in found["requests"]
        ),
        status=verdict["status"],
        refused_in=Phase(verdict["phase"]) if verdict["phase"] else None,
        refused_bytes=verdict["requested_bytes"],
        needed_bytes=unreleasable + context if unreleasable is not None and context is not None else None,
    )
