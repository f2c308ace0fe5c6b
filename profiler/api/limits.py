"""The largest value of a key with which a job fits its card, and the smallest card."""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.analytical.explanation.cards import CardVerdict
from profiler.api.job import Job, assumed, job_with, known, one_trial, words_of
from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import Origin
from profiler.estimate.cards import CAPABILITY, GPU, MEMORY
from profiler.estimate.job.trial import notes_of_all
from profiler.solve.command import CARD, Command, read_command
from profiler.solve.main import card_answer, job_of, key_answer


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
    """The verdict of every known card, the smallest first."""
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
    inputs, architecture_of = known(job_of(command))
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
    inputs, architecture_of = known(job_of(command))
    answer, notes = card_answer(command, inputs, architecture_of)
    return SmallestCard(card=answer.smallest, cards=answer.cards, assumed=assumed(inputs.ignored, notes))


def _command(key: str, job: Job | None, margin: float, keys: Mapping[str, object]) -> Command:
    """Return the command line of a job.

    Raises:
        UsageError: A key is wrong; carries every fault.
    """
    command = read_command([key, f"margin={margin}", *words_of(job_with(job, keys))])
    one_trial(command.rest, *command.faults)
    return command
