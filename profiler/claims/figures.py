"""Quantities of configurations: of stored trials, and of the closed form of a trial or of a job of verl."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from profiler.analysis.claim_trials import StoredTrials
from profiler.analysis.verdicts import Figure
from profiler.analytical.estimate import estimate, phase_instants
from profiler.analytical.explanation.explained import Fit, card_verdict
from profiler.analytical.formulas.models.parameters import parameter_count
from profiler.analytical.timeline.instants import Instant
from profiler.analytical.timeline.recipes.verl import Component, VerlEstimate, VerlPhase, verl_estimate
from profiler.config.claims.settings import keys_text, spec_of
from profiler.config.models.lookup import builtin_architecture
from profiler.config.verl.config import read_verl
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.claims import By, Configuration, End, Quantity
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category, Origin, Phase
from profiler.domain.trials.trial import Backend, TrialSpec

_ENDS: Mapping[Fit, End] = {Fit.FITS: End.FITS, Fit.TOO_LARGE: End.OOM}


@dataclass(frozen=True, kw_only=True)
class ScriptRun:
    """A kept run of a script."""

    end: End
    peaks: Mapping[Quantity, int]
    """Of a run that ran out of memory, those until then."""


ScriptPeaks = Mapping[tuple[str, str], ScriptRun]
"""Kept runs of scripts that fitted or ran out of memory, by script and backend."""


@dataclass(frozen=True)
class ClaimFigures:
    """The figures by which claims are judged."""

    stored: Sequence[StoredTrials]
    """The trials of each folder of results, the folder of the claims first."""
    scripts: ScriptPeaks
    """Kept runs of scripts."""
    counted: Mapping[str, float] = field(default_factory=dict)
    """Least seconds of counted steps, by their keys."""

    def __call__(self, configurations: Sequence[Configuration], quantity: Quantity) -> Sequence[Figure]:
        """Return a quantity of each configuration, all of one origin: estimated, unless all trials are stored."""
        if any(configuration.by is By.SCRIPT for configuration in configurations):
            return [self._of_script(configuration, quantity) for configuration in configurations]
        if any(configuration.by is By.VERL for configuration in configurations):
            return [_of_verl(configuration, quantity) for configuration in configurations]
        if any(configuration.by is By.COUNTED for configuration in configurations):
            return [self._counted(configuration) for configuration in configurations]
        specs = [spec_of(configuration) for configuration in configurations]
        if all(configuration.by is By.TRIAL for configuration in configurations):
            found = [figure for spec in specs if (figure := self._stored(spec, quantity)) is not None]
            if len(found) == len(specs) and len({figure.origin for figure in found}) == 1:
                return found
        if len(specs) > len({replace(spec, steps=1, torch_empty_cache_steps=None) for spec in specs}):
            return [_not_estimated("the closed form counts neither steps nor an emptied cache") for _ in specs]
        return [_estimated(spec, quantity) for spec in specs]

    def _of_script(self, configuration: Configuration, quantity: Quantity) -> Figure:
        backend = Backend(str(configuration.keys["backend"]))
        run = self.scripts.get((str(configuration.keys["script"]), backend.value))
        if run is None:
            return _not_estimated("no run of its script is kept")
        return Figure(value=run.peaks.get(quantity), end=run.end, origin=backend.origin)

    def _counted(self, configuration: Configuration) -> Figure:
        seconds = self.counted.get(keys_text(configuration))
        if seconds is None:
            return _not_estimated("its work was not counted")
        return Figure(value=seconds, end=None, origin=Origin.COUNTED)

    def _stored(self, spec: TrialSpec, quantity: Quantity) -> Figure | None:
        found = (trials.figure(spec, quantity) for trials in self.stored)
        return next((figure for figure in found if figure is not None), None)


def _not_estimated(problem: str) -> Figure:
    return Figure(value=None, end=None, origin=None, problem=problem)


def _estimated(spec: TrialSpec, quantity: Quantity) -> Figure:
    architecture, gpu = _architecture(spec.model), KNOWN_GPUS[spec.gpu or ""]
    try:
        found, verdict = estimate(spec, architecture), card_verdict(spec, architecture, gpu)
    except UsageError as error:
        return _not_estimated(f"there is no closed form ({error})")
    context = cuda_context_bytes(gpu.compute_capability)
    parameters = int(parameter_count(architecture))
    values = {
        Quantity.PEAK_ALLOCATED: found.peak_allocated_bytes,
        Quantity.PEAK_RESERVED: verdict.peak_reserved_bytes,
        Quantity.PEAK_DEVICE: verdict.peak_reserved_bytes + context,
        Quantity.PARAMETERS: parameters,
    }
    if quantity not in values:
        values[quantity] = _largest_size(phase_instants(spec, architecture), quantity)
    end = _ENDS.get(verdict.fit)
    problem = "" if end is not None else f"by the closed form it is {verdict.fit}, which decides nothing"
    return Figure(value=values[quantity], end=end, origin=Origin.ESTIMATED, parameters=parameters, problem=problem)


def _largest_size(instants: Mapping[Phase, Instant], quantity: Quantity) -> int:
    """Return the largest size of a category in a step, or that of the gradients at the optimizer's step."""
    if quantity is Quantity.KEPT_GRADIENTS:
        return int(instants[Phase.OPTIMIZER].sizes.get(Category.GRADIENTS, 0))
    category = Category(quantity.value)
    return max(int(instant.sizes.get(category, 0)) for instant in instants.values())


def _of_verl(configuration: Configuration, quantity: Quantity) -> Figure:
    gpu = KNOWN_GPUS[configuration.gpu or ""]
    job = read_verl(configuration.keys).job
    found = verl_estimate(job, _architecture(job.model), gpu)
    values = {
        Quantity.PEAK: found.peak_bytes,
        Quantity.TRAINING_PEAK: found.training_peak_bytes,
        Quantity.ROLLOUT_POOL: found.phases[VerlPhase.ROLLOUT].get(Component.POOL, 0),
        Quantity.UNUSED: 100 * (1 - found.peak_bytes / gpu.memory_bytes),
        Quantity.ACTIVATIONS: _largest(found, Component.ACTIVATIONS),
    }
    end = End.FITS if found.peak_bytes <= gpu.memory_bytes else End.OOM
    return Figure(value=values[quantity], end=end, origin=Origin.ESTIMATED)


def _largest(found: VerlEstimate, component: Component) -> int:
    """Return the largest size of a component while the actor is trained."""
    return found.phases[VerlPhase.UPDATE_ACTOR].get(component, 0)


@cache
def _architecture(model: str) -> Architecture:
    found = builtin_architecture(model)
    if found is None:
        raise LookupError(model)
    return found
