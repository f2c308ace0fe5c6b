"""What to change so that training fits a card, and why it ran out of memory, as text of 80 columns and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

from profiler.analytical.explanation.explained import CardVerdict, Fit
from profiler.analytical.explanation.tensors import NamedTensor
from profiler.config.trials.identity import spec_to_mapping
from profiler.config.trl.yaml import TrlFile, yaml_lines
from profiler.domain.memory import Origin, as_gib, gib_text
from profiler.domain.trials.trial import TrialSpec
from profiler.rendering.document import Block, Code, Document, Section, Step, paragraphs
from profiler.rendering.estimate.table import CONTEXT_NOTE, fragments_text, method_text
from profiler.rendering.layouts.plain_text import WIDTH, json_text, plain_text
from profiler.rendering.memory_words import fragments_note


@dataclass(frozen=True, kw_only=True)
class AdvisedStep:
    """One change."""

    name: str
    hurts: str
    """What kind of change it is."""
    costs: str
    lines: tuple[str, ...]
    """To paste into the file of trl, or into a shell."""
    saved_bytes: int
    """Negative if it takes more, as what lets the job start may do."""
    starts: bool
    """Whether the job starts after this change only: vLLM does, or is left out."""
    card: CardVerdict
    """The verdict after this change and those before it."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The changes by which a trial fits its card."""

    spec: TrialSpec
    card: CardVerdict
    """The verdict before any change."""
    margin: float
    more_bytes: int
    """What the job needs by its simulation beyond the estimate; 0 where the estimate decides."""
    steps: tuple[AdvisedStep, ...]
    alone: tuple[AdvisedStep, ...]
    """What each other lever saves alone."""
    after: TrialSpec
    fits: bool
    smallest: str | None
    """If nothing fits: the smallest card on which the trial fits with all changes; None if there is none."""
    smallest_unchanged: str | None
    """The smallest card on which the trial fits as it is."""
    file: TrlFile

    @property
    def last(self) -> CardVerdict:
        """The verdict after all changes."""
        return self.steps[-1].card if self.steps else self.card


def advice_text(advice: Advice, notes: Sequence[str]) -> str:
    """Return the advice as text of 80 columns."""
    return plain_text(Document(title=advice.spec.model, blocks=advice_blocks(advice, notes)))


def advice_blocks(advice: Advice, notes: Sequence[str]) -> Sequence[Block]:
    """Return the changes with what they save and cost, the others, and the file of trl."""
    sections: list[Block] = [paragraphs(*notes, _headline(advice))]
    if advice.steps:
        sections.append(paragraphs("What to change, what hurts least first, each after those above it:"))
    sections += [Section("", [_step(number, step)]) for number, step in enumerate(advice.steps, start=1)]
    last = _conclusion(advice)
    if advice.alone:
        others = ", ".join(f"{step.name} ({gib_text(step.saved_bytes)})" for step in advice.alone)
        last.append(f"Not needed, with what each saves alone: {others}.")
    note = fragments_note([advice.card, *(step.card for step in advice.steps)])
    sections.append(paragraphs(*last, f"Estimated. {note} {CONTEXT_NOTE}"))
    sections.append(Section("", [Code("\n".join(file_lines(advice.after, advice.file)), language="yaml")]))
    return sections


def file_lines(spec: TrialSpec, file: TrlFile) -> list[str]:
    """Return a file that trl accepts, with what does not belong into it as comments."""
    lines = [f"# {spec.recipe.in_classes}Config, for `trl {spec.recipe} --config FILE` (trl 1.16)"]
    lines += [f"# export {key}={value}" for key, value in file.environment.items()]
    if spec.recipe.facts.has_prompts:
        bound = "most" if spec.recipe.facts.has_rollout else "least"
        lines.append(f"# with prompts of at {bound} {spec.max_prompt_length} tokens")
    if spec.num_processes > 1:
        lines.append(f"# on {spec.num_processes} GPUs ({spec.distributed_type})")
    if file.left_out:
        named = f"left out of your file (unknown to trl 1.16, long or secret): {', '.join(file.left_out)}"
        lines.append(fill(named, WIDTH, initial_indent="# ", subsequent_indent="# "))
    lines += yaml_lines(file.training)
    lines.append("# ModelConfig, of which trl makes the model and its LoraConfig")
    return [*lines, *yaml_lines(file.model)]


def advice_json(advice: Advice, notes: Sequence[str]) -> str:
    """Return the same as one object. Sizes are integers of bytes."""
    return json_text(advice_object(advice, notes))


def advice_object(advice: Advice, notes: Sequence[str]) -> dict[str, object]:
    """Return the advice as values of JSON."""
    return {
        "origin": Origin.ESTIMATED.value,
        "notes": list(notes),
        "trial": spec_to_mapping(advice.spec),
        "gpu": advice.card.gpu.name,
        "margin": advice.margin,
        "more_by_simulation_bytes": advice.more_bytes,
        "before": _card_object(advice.card),
        "steps": [_step_object(step) for step in advice.steps],
        "alone": [_step_object(step) for step in advice.alone],
        "after": _card_object(advice.last),
        "fits": advice.fits,
        "smallest_gpu": advice.smallest,
        "smallest_gpu_unchanged": advice.smallest_unchanged,
        "trial_after": spec_to_mapping(advice.after),
        "config": advice.file.values,
        "environment": dict(advice.file.environment),
    }


def _headline(advice: Advice) -> str:
    card, rows = advice.card, f"{advice.spec.per_device_train_batch_size} x {advice.spec.gradient_accumulation_steps}"
    what = f"{advice.spec.model}, {method_text(advice.spec)}, {rows} rows"
    whole = f"{gib_text(card.gpu.memory_bytes)} of {card.gpu.name}"
    return f"{what}: needs {_needs(card)} of the {whole}{_with_margin(advice.margin)}. {_fit_word(advice, card)}"


def _fit_word(advice: Advice, card: CardVerdict) -> str:
    if not advice.steps and advice.fits:
        return "It fits as it is."
    if card.no_engine:
        return card.no_engine
    if card.left_bytes >= 0 > card.left_bytes - advice.more_bytes:
        return f"It does not fit, because by its simulation it needs {gib_text(advice.more_bytes)} more."
    if card.left_bytes >= 0:
        return "It fits, but leaves less free than you asked for."
    return "Tight." if card.fit is Fit.TIGHT else "It does not fit."


def _step(number: int, step: AdvisedStep) -> Step:
    change = f"saves {gib_text(step.saved_bytes)}" if step.saved_bytes >= 0 else f"takes {gib_text(-step.saved_bytes)}"
    start = "the job starts, " if step.starts else ""
    return Step(
        number,
        f"{step.name}: {start}{change}, then {_needs(step.card)}",
        f"{step.hurts.capitalize()}. Costs: {step.costs}.",
        step.lines,
    )


def _conclusion(advice: Advice) -> list[str]:
    card = advice.last
    refusal = [card.refusal_text] if not card.starts else []
    if advice.fits:
        left = gib_text(card.gpu.memory_bytes - card.needed_bytes - advice.more_bytes)
        most = gib_text(card.needed_bytes + advice.more_bytes)
        return [f"It fits {card.gpu.name}: {most} with {fragments_text(card)}, and {left} are left.", *refusal]
    lines = [*refusal, f"Nothing makes it fit {card.gpu.name}: with all of this it needs {_needs(card)}."]
    if advice.smallest is not None:
        lines.append(f"With all of this the smallest card that it fits is {advice.smallest}.")
    unchanged = advice.smallest_unchanged
    lines.append(f"As it is, {f'it fits {unchanged}' if unchanged is not None else 'no known card is large enough'}.")
    return lines


def _needs(card: CardVerdict) -> str:
    if card.needed_bytes == card.least_bytes:
        return gib_text(card.needed_bytes)
    return f"{as_gib(card.least_bytes):.1f} to {gib_text(card.needed_bytes)}"


def _with_margin(margin: float) -> str:
    return f", with {100 * margin:g} % left" if margin else ""


def _card_object(card: CardVerdict) -> dict[str, object]:
    return {"verdict": card.word, "least_bytes": card.least_bytes, "needed_bytes": card.needed_bytes}


def _step_object(step: AdvisedStep) -> dict[str, object]:
    return {
        "name": step.name,
        "kind": step.hurts,
        "costs": step.costs,
        "lines": list(step.lines),
        "saved_bytes": step.saved_bytes,
        "then": _card_object(step.card),
    }


@dataclass(frozen=True, kw_only=True)
class RefusalAnswer:
    """What a log says, and what it matches."""

    said: str
    """The message in short."""
    cause: str
    """The word for why the request was refused."""
    why: str
    phase: str | None
    """By the traceback; None if it names none."""
    tensors: tuple[NamedTensor, ...] | None
    """Of the estimate, with the size of the request; None if no job was named."""
    nearest: NamedTensor | None
    reading: str
    """What the request may have been if no tensor matches; empty otherwise."""
    simulated: tuple[str, ...]
    """Lines of the simulation; empty if nothing was simulated."""
    job: str
    """What the whole job needs of that card; empty if no job was named."""
    change: tuple[str, ...]
    """What to change, as sentences."""

    def texts(self) -> list[str]:
        """Return the answer as paragraphs; some may be empty."""
        return [self.said, self.why, *self._tensor_texts(), *self.simulated, self.job, *self.change]

    def as_object(self) -> dict[str, object]:
        """Return the answer as values of JSON."""
        return {
            "said": self.said,
            "cause": self.cause,
            "why": self.why,
            "phase": self.phase,
            "tensors": [_object(tensor) for tensor in self.tensors or ()],
            "nearest": _object(self.nearest) if self.nearest is not None and not self.tensors else None,
            "reading": self.reading,
            "simulated": list(self.simulated),
            "job": self.job,
            "change": list(self.change),
        }

    def _tensor_texts(self) -> list[str]:
        if self.tensors is None:
            return []
        if self.tensors:
            return [f"Estimate: the request has the size of {tensor_text(tensor)}." for tensor in self.tensors]
        found = ["Estimate: no tensor of this job has the size of the request."]
        if self.nearest is not None:
            found.append(f"The nearest is {tensor_text(self.nearest)}.")
        return [" ".join([*found, self.reading]).rstrip()]


def refusal_text(answer: RefusalAnswer, advice: Sequence[Block] = ()) -> str:
    """Return the answer as text, and the blocks of the advice for its job."""
    return plain_text(Document(title=answer.said, blocks=[paragraphs(*answer.texts()), *advice]))


def tensor_text(tensor: NamedTensor) -> str:
    """Return a tensor in words: ``"logits of the completions, [4, 787, 151936] of 4 B, 1.78 GiB, in forward"``."""
    shape = ", ".join(map(str, tensor.shape))
    phases = ", ".join(tensor.phases)
    old = "" if tensor.happens else ", as earlier versions of trl make them"
    size = gib_text(tensor.size_bytes, 2)
    return f"{tensor.name}, [{shape}] of {tensor.element_bytes} B, {size}, in {phases}{old}"


def _object(tensor: NamedTensor) -> dict[str, object]:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "bytes": tensor.size_bytes,
        "phases": [phase.value for phase in tensor.phases],
        "of_this_version": tensor.happens,
    }
