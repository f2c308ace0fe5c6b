"""A sample of trials that are emulated: how its trials are drawn, and what was known before."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from maintenance.samples.sampling import FIXED, Narrowed, sample_trials
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import TrialSpec

_ADDED = {Recipe.SFT: ("logprobs",)}
"""Keys that a recipe has since the first three samples were written down; in all samples they have their default."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Trials that are sampled, emulated and compared."""

    name: str
    """Also the folder of its results."""
    count: int
    seed: int
    axes: Mapping[str, Sequence[object]]
    narrowed: Sequence[Narrowed] = ()
    """See `sample_trials`."""
    is_wanted: Callable[[TrialSpec], bool]
    """Whether a trial is kept."""
    earlier: str
    """What was known before the sample was written down."""
    added: Mapping[Recipe, Sequence[str]] = field(default_factory=lambda: _ADDED)
    """Keys that a recipe did not have when the sample was written down."""
    what: str = "several GPUs"
    """What the trials have in common, for the title of the page."""
    is_judged_once: bool = False
    """Whether the estimates that are kept stay as they are, because the code that made them had seen no trial."""

    @property
    def fixed(self) -> Mapping[str, object]:
        """Values of the keys that are no axes."""
        fixed = {**FIXED, "rollout": "synthetic"}
        return {key: value for key, value in fixed.items() if key not in self.axes}


def sample(chosen: Sample, *, count: int | None = None) -> tuple[TrialSpec, ...]:
    """Return the trials of a sample, or the first `count`; they depend only on the seed."""
    number = chosen.count if count is None else count
    return sample_trials(
        number,
        seed=chosen.seed,
        axes=chosen.axes,
        fixed=chosen.fixed,
        is_wanted=chosen.is_wanted,
        added=chosen.added,
        narrowed=chosen.narrowed,
    )
