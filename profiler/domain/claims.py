"""The claims of public texts: what each says, and how it is judged."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Check(StrEnum):
    """How a claim is judged."""

    VALUE = "value"
    """A quantity of one configuration is the claimed one."""
    CHANGE = "change"
    """A quantity changes by the claimed percentage."""
    ENABLES = "enables"
    """One configuration runs out of memory and another does not."""
    ARITHMETIC = "arithmetic"
    """A printed figure follows from the text's own parts."""
    LOOKED_UP = "looked_up"
    """Something is in a library, or an experiment on the CPU ends as claimed."""
    UNDECIDABLE = "undecidable"
    """It cannot be decided here."""


class By(StrEnum):
    """Where the figures of a configuration come from."""

    TRIAL = "trial"
    """A trial of a sweep."""
    ESTIMATE = "estimate"
    """The closed form of a trial."""
    VERL = "verl"
    """The closed form of a job of verl, per GPU."""
    SCRIPT = "script"
    """The kept run of somebody's script, unmodified, with the libraries that it names."""
    COUNTED = "counted"
    """The kept count of a simulated step's work: a lower bound of its time on the card."""


class Quantity(StrEnum):
    """What is compared."""

    PEAK_ALLOCATED = "peak_allocated"
    """Of a trial, on a card of unlimited memory where it ran out of memory and this is known."""
    PEAK_RESERVED = "peak_reserved"
    PEAK_DEVICE = "peak_device"
    """Reserved memory and the CUDA context."""
    WEIGHTS = "weights"
    REFERENCE = "reference"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATIONS = "activations"
    """The largest size of the category in a step, as those above are of theirs."""
    KEPT_GRADIENTS = "kept_gradients"
    """Gradients during the optimizer's step, without the buffers in which they are accumulated."""
    PARAMETERS = "parameters"
    PEAK = "peak"
    """Of a job of verl, the largest phase."""
    TRAINING_PEAK = "training_peak"
    """Of a job of verl, the largest phase except the rollout."""
    ROLLOUT_POOL = "rollout_pool"
    """Of a job of verl, the memory that its rollout engine takes."""
    UNUSED = "unused"
    """Of a job of verl, the part of the card that its largest phase leaves free."""
    STEP_TIME = "step_time"
    """Least time of an optimizer step without its rollout, by the counted work."""


TRIAL_QUANTITIES = (
    Quantity.PEAK_ALLOCATED,
    Quantity.PEAK_RESERVED,
    Quantity.PEAK_DEVICE,
    Quantity.WEIGHTS,
    Quantity.REFERENCE,
    Quantity.GRADIENTS,
    Quantity.OPTIMIZER_STATE,
    Quantity.ACTIVATIONS,
    Quantity.KEPT_GRADIENTS,
    Quantity.PARAMETERS,
)
"""Quantities of a trial, and of its closed form."""

SCRIPT_QUANTITIES = (Quantity.PEAK_ALLOCATED, Quantity.PEAK_RESERVED, Quantity.PEAK_DEVICE)
"""Quantities of the kept run of a script."""

COUNTED_QUANTITIES = (Quantity.STEP_TIME,)
"""Quantities of counted work."""

VERL_QUANTITIES = (
    Quantity.PEAK,
    Quantity.TRAINING_PEAK,
    Quantity.ROLLOUT_POOL,
    Quantity.UNUSED,
    Quantity.ACTIVATIONS,
)
"""Quantities of a job of verl."""


class End(StrEnum):
    """How a configuration is claimed to end."""

    FITS = "fits"
    OOM = "oom"


class Loss(StrEnum):
    """Ways to average a loss over micro-batches."""

    PER_COMPLETION = "per_completion"
    """Over the tokens of each completion, then over completions, then over micro-batches."""
    PER_TOKEN = "per_token"
    """Over all tokens of a micro-batch, then over micro-batches."""
    PER_TOKEN_OF_BATCH = "per_token_of_batch"
    """Over all tokens of all micro-batches."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """A claimed figure: at least `low` and at most `high`."""

    low: float | None
    high: float | None

    def widened(self, by: float) -> "Range":
        """Return the range that holds with a tolerance on both sides."""
        low = None if self.low is None else self.low - by
        return Range(low=low, high=None if self.high is None else self.high + by)

    def contains(self, value: float) -> bool:
        """Return whether `value` is within the range."""
        above = self.low is None or value >= self.low
        return above and (self.high is None or value <= self.high)

    @property
    def largest(self) -> float:
        """The end that is farther from zero."""
        return max(abs(end) for end in (self.low, self.high) if end is not None)


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What is run or estimated."""

    by: By
    keys: Mapping[str, object]
    """Untyped keys of a trial, or of a configuration of verl."""
    gpu: str | None
    """The card of a job of verl; a trial has it as a key."""


@dataclass(frozen=True, kw_only=True)
class SourceLook:
    """A search in the files of one version of a repository."""

    repository: str
    version: str
    """A tag or a commit."""
    path: str
    """A file, or a pattern of git."""
    pattern: str
    """A regular expression of Python; `^` and `$` match at lines."""


@dataclass(frozen=True, kw_only=True)
class CompositionLook:
    """A configuration that one version of verl composes with Hydra, or refuses."""

    composed: str
    """The name of its main configuration."""
    repository: str
    version: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ExperimentLook:
    """A comparison of gradients on the CPU: one batch against two micro-batches."""

    loss: Loss


Look = SourceLook | CompositionLook | ExperimentLook


@dataclass(frozen=True, kw_only=True)
class Single:
    """One configuration with its claimed figure."""

    when: str
    claimed: Range | End | None
    published: str | None
    """Id of the published figure in `measurements.csv` that takes the place of `claimed`."""
    configuration: Configuration


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two configurations that isolate a claim."""

    when: str
    before: Configuration
    after: Configuration


@dataclass(frozen=True, kw_only=True)
class Line:
    """A sum of a text."""

    when: str
    sum_text: str
    value: float
    """What the sum makes."""
    printed: float


@dataclass(frozen=True, kw_only=True)
class Looked:
    """Something to look up; the claim is that it is there, or that the experiment ends as claimed."""

    when: str
    look: Look


Setting = Single | Pair | Line | Looked
"""One setting in which a claim is judged. `when` completes "Holds only when: "."""


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """A public text."""

    id: str
    title: str
    where: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of a text."""

    id: str
    source: TextSource
    says: str
    """A paraphrase."""
    figure: str
    """The claimed figure, as shown in tables."""
    check: Check
    quantity: Quantity | None
    """Of `value` and `change`."""
    unit: str
    """Of `value` and `arithmetic`; a change is in percent."""
    claimed: Range | None
    """Of `change`."""
    tolerance: float
    """`value`: percent of the claimed figure; `change`: percentage points; `arithmetic`: in the unit of the figure."""
    settings: tuple[Setting, ...]
    because: str
    """Why an undecidable claim is so."""

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """Every configuration of its settings, in order."""
        found: list[Configuration] = []
        for setting in self.settings:
            if isinstance(setting, Single):
                found.append(setting.configuration)
            elif isinstance(setting, Pair):
                found += [setting.before, setting.after]
        return tuple(found)
