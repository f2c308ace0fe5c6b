"""Estimates, what to change so that a job fits its card, and the largest values with which it fits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiler.advise.command import read_command
from profiler.advise.main import job_of
from profiler.advise.plan import Advisor
from profiler.analytical.estimate import refuse_without_form
from profiler.analytical.explanation.explained import (
    CardVerdict,
    ExplainedEstimate,
    ExplainedPhase,
    Fit,
    HostVerdict,
    Unanswered,
)
from profiler.api.job import Job, answered, assumed, command_of, job_with, known, one_trial, words_of
from profiler.config.prices import Price
from profiler.config.trials.identity import spec_to_mapping
from profiler.config.trials.specification import attention_line
from profiler.constraints.table import refuse_without_card
from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import Origin, Phase
from profiler.domain.runs.outcome import Outcome
from profiler.domain.trials.kernels import Bounds
from profiler.estimate.command import CAPABILITY, GPU, MEMORY
from profiler.estimate.job.inputs import job_files, read_inputs
from profiler.estimate.job.trial import notes_of_all, parsed_trial, refuse_open
from profiler.estimate.main import (
    ONLY_ESTIMATED,
    confirmed,
    explained_trial,
    refuse_host_of_verl,
    refuse_with_bounds,
    simulated_outcome,
)
from profiler.rendering.answers.advice import Advice, AdvisedStep, advice_text, file_lines
from profiler.rendering.estimate.table import estimate_table, gathered_text, methods_text
from profiler.solve.command import CARD, Command
from profiler.solve.command import read_command as read_solve_command
from profiler.solve.main import choice_answer, key_answer
from profiler.solve.main import job_of as solve_job_of

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
    gathered: str = ""
    """That most of the peak is what sharded GPUs gather, why, and what avoids it; empty if it is not."""
    decided_by: str = ""
    """Of several possible releases of trl those that the answer is for, as a sentence; empty if all give the same."""
    simulated: Outcome | None = None
    """The same trial, run by trl's trainer on a simulated card; None: not asked for, or only an estimate knows it."""
    host: HostVerdict | None = None
    """The memory of one node's host, and its verdict if the key `host` says its size; None for a job of verl.

    Left out are pages of files and NCCL's shared memory; libraries are as on one real card."""
    explained: ExplainedEstimate | None = None
    """The trial with all its parts; None for a job of verl."""
    verl: "AnsweredVerl | None" = None
    """The job of verl with all its parts; None for one of trl."""
    bounds: Bounds | None = None
    """Of a job whose program has kernels of its own: between what its memory lies, so that all sizes above are upper
    bounds; None: they are estimates."""
    origin: Origin = Origin.ESTIMATED

    def __str__(self) -> str:
        if self.verl is not None:
            return self.verl.table()
        if self.explained is None:
            return ""
        return estimate_table(self.explained, self.assumed, decided_by=self.decided_by, simulated=self.simulated)


def estimate(job: Job | None = None, /, *, confirm: bool = False, **keys: object) -> Estimate:
    """Return the estimate of a job: ``estimate(model="qwen2.5-7b", tuning="lora", gpu="a100-40gb")``.

    Args:
        job: The job; without one, `keys` describe it.
        confirm: Whether trl's trainer also runs on a simulated card, which takes seconds and the extra `simulate`.
        keys: As `Job.keys`; they win.

    Raises:
        UsageError: A file or a key is wrong, or the job has no closed form; carries every fault.
    """
    command = command_of(job_with(job, keys))
    files = job_files(command)
    if files.verl is not None:
        refuse_host_of_verl(command.options)
        return _of_verl(answered(command, files.verl), ONLY_ESTIMATED if confirm else "")
    read = read_inputs(command, files.part, with_bounds=True)
    if read.kernels is not None:
        refuse_with_bounds(command, read.kernels, confirm=confirm)
    inputs, architecture_of = known(read)
    found = explained_trial(inputs, architecture_of, command.options)
    explained, spec = found.explained, found.explained.spec
    card = next((card for card in explained.cards if card.gpu.name == spec.gpu), None)
    said: list[str] = []
    simulated = confirmed(spec, architecture_of, simulated_outcome, said.append) if confirm else None
    return Estimate(
        keys=spec_to_mapping(spec),
        peak_allocated_bytes=explained.estimate.peak_allocated_bytes,
        peak_reserved_bytes=explained.estimate.peak_reserved_bytes,
        peak_phase=explained.estimate.peak_phase,
        phases=explained.phases,
        cards=explained.cards,
        card=card,
        fit=None if card is None else card.fit,
        how_wrong=methods_text(explained, simulated),
        assumed=assumed(inputs.ignored, (*said, *found.notes, attention_line(spec, architecture_of(spec.model)))),
        decided_by=found.decided_by,
        simulated=simulated,
        host=explained.host,
        bounds=explained.bounds,
        gathered=gathered_text(explained),
        explained=explained,
    )


def _of_verl(answer: "AnsweredVerl", said: str) -> Estimate:
    from profiler.analytical.explanation.boundary import verl_phases
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
        assumed=assumed(answer.ignored, (*([said] if said else ()), *answer.notes)),
        reasons=answer.fit.reasons,
        verl=answer,
    )


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
    refuse_open(parsed)
    refuse_without_form(parsed.spec, architecture_of(parsed.spec.model))
    refuse_without_card(parsed.spec)
    given = files.part.values if files.part is not None else {}
    found = Advisor(command.options.margin, architecture_of).advice(parsed.spec, given)
    return Recommendation(advice=found, assumed=assumed(inputs.ignored, parsed.notes))


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The boundary of one key, by the estimate alone: `grpo-vram solve` asks the simulation as well."""

    key: str
    largest: int | None
    """The largest value that fits; None if none does."""
    beyond: int | None
    """The next value that is allowed and does not fit; None if every allowed value fits."""
    at_largest: CardVerdict | None
    at_beyond: CardVerdict | None
    assumed: tuple[str, ...]
    """What was assumed, ignored or not counted; a sentence each."""
    origin: Origin = Origin.ESTIMATED


@dataclass(frozen=True, kw_only=True)
class SmallestCard:
    """The smallest card that is large enough, by the estimate."""

    card: CardVerdict | None
    """None if no card is large enough."""
    cards: tuple[CardVerdict, ...]
    """The verdict of every known card that is rented, the smallest first."""
    cheapest: CardVerdict | None
    """The cheapest that is large enough, of those with a price."""
    prices: Mapping[str, Price]
    """The lowest price of each card, by name: of public lists, with source and date."""
    assumed: tuple[str, ...]
    """What was assumed, ignored or not counted; a sentence each."""
    origin: Origin = Origin.ESTIMATED


def solve(key: str, job: Job | None = None, /, *, margin: float = 0.0, **keys: object) -> Limit:
    """Return the largest value of a key with which a job fits: ``solve("max_completion_length", job)``.

    Args:
        key: A count that memory grows with, such as ``num_generations``.
        job: The job; without one, `keys` describe it.
        margin: Part of the card that has to stay free, such as 0.05.
        keys: As `Job.keys`; they win.

    Raises:
        UsageError: A file or a key is wrong, or the job has no closed form or no card; carries every fault.
    """
    if key == CARD:
        problem = "is no count; grpo_vram.smallest_card finds the smallest card"
        raise UsageError([Fault(key="key", found=key, problem=problem)])
    command = _command(key, job, margin, keys)
    inputs, architecture_of = known(solve_job_of(command))
    answer = key_answer(command, {}, inputs, architecture_of)
    boundary = answer.boundary
    return Limit(
        key=key,
        largest=boundary.largest,
        beyond=boundary.beyond,
        at_largest=boundary.at_largest,
        at_beyond=boundary.at_beyond,
        assumed=assumed(inputs.ignored, notes_of_all(inputs, list(answer.specs.values()), architecture_of)),
    )


def smallest_card(job: Job | None = None, /, *, margin: float = 0.0, **keys: object) -> SmallestCard:
    """Return the smallest card on which a job fits: ``smallest_card(model="qwen2.5-7b", tuning="lora")``.

    Args:
        job: The job, whose own card does not matter; without one, `keys` describe it.
        margin: Part of the card that has to stay free, such as 0.05.
        keys: As `Job.keys`; they win.

    Raises:
        UsageError: A file or a key is wrong, or the job has no closed form; carries every fault.
    """
    without_card = job_with(job, keys).without_keys(GPU, MEMORY, CAPABILITY)
    command = _command(CARD, without_card, margin, {})
    inputs, architecture_of = known(solve_job_of(command))
    answer, notes = choice_answer(command, inputs, architecture_of)
    card = None if answer.best is None else answer.best.verdict
    cheapest = None if answer.cheapest is None else answer.cheapest.verdict
    return SmallestCard(
        card=card,
        cards=answer.verdicts,
        cheapest=cheapest,
        prices=answer.prices,
        assumed=assumed(inputs.ignored, notes),
    )


def _command(key: str, job: Job | None, margin: float, keys: Mapping[str, object]) -> Command:
    """Return the command line of a job.

    Raises:
        UsageError: A key is wrong; carries every fault.
    """
    command = read_solve_command([key, f"margin={margin}", *words_of(job_with(job, keys))])
    one_trial(command.rest, *command.faults)
    return command
