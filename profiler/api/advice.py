"""What to change so that a job fits its card."""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.advise.advisor import Advisor
from profiler.advise.command import read_command
from profiler.advise.main import job_of
from profiler.analytical.closed_form import refuse_without_form
from profiler.analytical.explanation.cards import CardVerdict
from profiler.api.job import Job, assumed, job_with, known, one_trial, words_of
from profiler.config.trials.identity import spec_to_mapping
from profiler.constraints.table import refuse_without_card
from profiler.domain.memory import Origin
from profiler.estimate.job.trial import parsed_trial
from profiler.rendering.answers.advice import Advice, AdvisedStep, advice_text, file_lines


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The changes by which a job fits its card, what hurts least first, by the estimate."""

    advice: Advice
    assumed: tuple[str, ...]
    """What was assumed, ignored or not counted; a sentence each."""
    origin: Origin = Origin.ESTIMATED

    @property
    def fits(self) -> bool:
        """Whether the job fits after all changes."""
        return self.advice.fits

    @property
    def steps(self) -> tuple[AdvisedStep, ...]:
        """The changes, each after those before it; empty if the job fits as it is."""
        return self.advice.steps

    @property
    def before(self) -> CardVerdict:
        """The verdict without a change."""
        return self.advice.card

    @property
    def after(self) -> CardVerdict:
        """The verdict after all changes."""
        return self.advice.last

    @property
    def keys(self) -> Mapping[str, object]:
        """Every key of the changed trial, with defaults."""
        return spec_to_mapping(self.advice.after)

    @property
    def yaml(self) -> str:
        """The changed configuration of trl."""
        return "\n".join(file_lines(self.advice.after, self.advice.file)) + "\n"

    def __str__(self) -> str:
        return advice_text(self.advice, self.assumed)


def advise(job: Job | None = None, /, *, margin: float = 0.0, **keys: object) -> Recommendation:
    """Return what to change so that a job fits its card: ``advise(read_recipe("grpo.yaml"), gpu="4090")``.

    Args:
        job: The job; without one, `keys` describe it.
        margin: Part of the card that has to stay free, such as 0.05.
        keys: As `Job.keys`; they win.

    Raises:
        UsageError: A file or a key is wrong, or the job has no closed form; carries every fault.
    """
    command = read_command([f"margin={margin}", *words_of(job_with(job, keys))])
    one_trial(command.rest, *command.faults)
    files, read = job_of(command, None)
    inputs, architecture_of = known(read)
    parsed = parsed_trial(inputs, architecture_of)
    refuse_without_form(parsed.spec, architecture_of(parsed.spec.model))
    refuse_without_card(parsed.spec)
    given = files.part.values if files.part is not None else {}
    found = Advisor(command.options.margin, architecture_of).advice(parsed.spec, given)
    return Recommendation(advice=found, assumed=assumed(inputs.ignored, parsed.notes))
