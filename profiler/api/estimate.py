"""The estimate of a job."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiler.analytical.explanation.cards import CardVerdict, Fit, Unanswered
from profiler.analytical.explanation.explained import ExplainedEstimate, ExplainedPhase
from profiler.api.job import Job, answered, assumed, command_of, job_with, known
from profiler.config.trials.identity import spec_to_mapping
from profiler.config.trials.specification import attention_line
from profiler.domain.memory import Origin, Phase
from profiler.estimate.job.inputs import job_files, read_inputs
from profiler.estimate.main import explained_trial
from profiler.rendering.estimate.table import estimate_table, methods_text

if TYPE_CHECKING:
    from profiler.estimate.verl import AnsweredVerl


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The memory of a training step on one GPU, in closed form. Sizes are integers of bytes."""

    keys: Mapping[str, object]
    """Every key of the trial that was answered, with defaults; of a job of verl the keys that were stated."""
    peak_allocated_bytes: int
    """Largest memory of tensors."""
    peak_reserved_bytes: int | None
    """Largest memory of segments, as torch's allocator reserves them; None where there is no formula."""
    peak_phase: Phase
    """The phase of the peak."""
    phases: tuple[ExplainedPhase, ...]
    """The largest instant of each phase, in the order of a step, with its bytes by category."""
    cards: tuple[CardVerdict, ...]
    """The verdict of every known card by what is counted, the smallest first."""
    card: CardVerdict | None
    """The same of the job's own card, by default an H100; None for a job on a CPU."""
    fit: Fit | Unanswered | None
    """The verdict for the job's own card; of a job of verl also that verl refuses it, or that a formula is missing."""
    how_wrong: str
    """How wrong these numbers have been, and what no card has confirmed yet."""
    assumed: tuple[str, ...]
    """What was assumed, ignored or not counted; a sentence each."""
    reasons: tuple[str, ...] = ()
    """Why verl refuses the job, or what has no formula; empty where memory decides."""
    decided_by: str = ""
    """Of several possible releases of trl those that the answer is for, as a sentence; empty if all give the same."""
    explained: ExplainedEstimate | None = None
    """The trial with all its parts; None for a job of verl."""
    verl: "AnsweredVerl | None" = None
    """The job of verl with all its parts; None for one of trl."""
    origin: Origin = Origin.ESTIMATED

    def __str__(self) -> str:
        if self.verl is not None:
            return self.verl.table()
        return (
            "" if self.explained is None else estimate_table(self.explained, self.assumed, decided_by=self.decided_by)
        )


def estimate(job: Job | None = None, /, **keys: object) -> Estimate:
    """Return the estimate of a job: ``estimate(model="qwen2.5-7b", tuning="lora", gpu="a100-40gb")``.

    Args:
        job: The job; without one, `keys` describe it.
        keys: As `Job.keys`; they win.

    Raises:
        UsageError: A file or a key is wrong, or the job has no closed form; carries every fault.
    """
    command = command_of(job_with(job, keys))
    files = job_files(command)
    if files.verl is not None:
        return _of_verl(answered(command, files.verl))
    inputs, architecture_of = known(read_inputs(command, files.part))
    found = explained_trial(inputs, architecture_of)
    explained, spec = found.explained, found.explained.spec
    card = next((card for card in explained.cards if card.gpu.name == spec.gpu), None)
    return Estimate(
        keys=spec_to_mapping(spec),
        peak_allocated_bytes=explained.estimate.peak_allocated_bytes,
        peak_reserved_bytes=explained.estimate.peak_reserved_bytes,
        peak_phase=explained.estimate.peak_phase,
        phases=explained.phases,
        cards=explained.cards,
        card=card,
        fit=None if card is None else card.fit,
        how_wrong=methods_text(spec),
        assumed=assumed(inputs.ignored, (*found.notes, attention_line(spec, architecture_of(spec.model)))),
        decided_by=found.decided_by,
        explained=explained,
    )


def _of_verl(answer: "AnsweredVerl") -> Estimate:
    from profiler.analytical.explanation.verl_fit import verl_phases
    from profiler.rendering.estimate.verl_table import METHODS_TEXT

    found, card = answer.found, answer.fit.card
    return Estimate(
        keys={**answer.values, "gpu": found.gpu.name},
        peak_allocated_bytes=found.peak_bytes,
        peak_reserved_bytes=card.peak_reserved_bytes,
        peak_phase=found.instants[found.peak_phase].phase,
        phases=verl_phases(found),
        cards=answer.cards,
        card=card,
        fit=answer.fit.fit,
        how_wrong=METHODS_TEXT,
        assumed=assumed(answer.ignored, answer.notes),
        reasons=answer.fit.reasons,
        verl=answer,
    )
