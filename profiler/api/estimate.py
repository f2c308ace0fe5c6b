"""The estimate of a job."""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.analytical.explanation.cards import CardVerdict
from profiler.analytical.explanation.explained import ExplainedEstimate, ExplainedPhase
from profiler.api.job import Job, assumed, command_of, described, job_with
from profiler.config.trials.identity import spec_to_mapping
from profiler.config.trials.specification import attention_line
from profiler.domain.memory import Origin, Phase
from profiler.estimate.main import explained_trial
from profiler.rendering.estimate.table import estimate_table, methods_text


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The memory of a training step, in closed form. Sizes are integers of bytes."""

    explained: ExplainedEstimate
    assumed: tuple[str, ...]
    """What was assumed, ignored or not counted; a sentence each."""
    decided_by: str = ""
    """Of several possible releases of trl those that the answer is for, as a sentence; empty if all give the same."""
    origin: Origin = Origin.ESTIMATED

    @property
    def keys(self) -> Mapping[str, object]:
        """Every key of the trial that was answered, with defaults."""
        return spec_to_mapping(self.explained.spec)

    @property
    def peak_allocated_bytes(self) -> int:
        """Largest memory of tensors."""
        return self.explained.estimate.peak_allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int | None:
        """Largest memory of segments, as torch's allocator reserves them; None where there is no formula."""
        return self.explained.estimate.peak_reserved_bytes

    @property
    def peak_phase(self) -> Phase:
        """The phase of the peak."""
        return self.explained.estimate.peak_phase

    @property
    def phases(self) -> tuple[ExplainedPhase, ...]:
        """The largest instant of each phase, in the order of a step, with its bytes by category."""
        return self.explained.phases

    @property
    def cards(self) -> tuple[CardVerdict, ...]:
        """The verdict of every known card, the smallest first."""
        return self.explained.cards

    @property
    def card(self) -> CardVerdict | None:
        """The verdict of the job's own card, by default an H100; None for a job on a CPU."""
        return next((card for card in self.cards if card.gpu.name == self.explained.spec.gpu), None)

    @property
    def how_wrong(self) -> str:
        """How wrong these numbers have been, and what no card has confirmed yet."""
        return methods_text(self.explained.spec)

    def __str__(self) -> str:
        return estimate_table(self.explained, self.assumed, decided_by=self.decided_by)


def estimate(job: Job | None = None, /, **keys: object) -> Estimate:
    """Return the estimate of a job: ``estimate(model="qwen2.5-7b", tuning="lora", gpu="a100-40gb")``.

    Args:
        job: The job; without one, `keys` describe it.
        keys: As `Job.keys`; they win.

    Raises:
        UsageError: A file or a key is wrong, or the job has no closed form; carries every fault.
    """
    inputs, architecture_of = described(command_of(job_with(job, keys)))
    found = explained_trial(inputs, architecture_of)
    spec = found.explained.spec
    notes = (*found.notes, attention_line(spec, architecture_of(spec.model)))
    return Estimate(explained=found.explained, assumed=assumed(inputs, notes), decided_by=found.decided_by)
