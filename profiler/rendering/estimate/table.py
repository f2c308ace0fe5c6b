"""An explained estimate as a table of 80 columns in plain text, and as JSON."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from profiler.analytical.explanation.explained import (
    CardVerdict,
    ExplainedEstimate,
    ExplainedPhase,
    Fit,
)
from profiler.analytical.replayed.trial import has_replay
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.cards.gpu_names import gpu_named
from profiler.domain.memory import Category, Origin, Phase, gib_text
from profiler.domain.runs.outcome import Outcome, Status
from profiler.domain.trials.labels import constructed_words, sharding_word
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import DistributedType, TrialSpec, Tuning
from profiler.rendering.document import Cell, Document, Row, Section, Table, paragraphs
from profiler.rendering.estimate.host import HOST_NOTE, PHASE_COLUMNS, host_object, host_table, host_text, is_shown
from profiler.rendering.layouts.plain_text import json_text, plain_text
from profiler.rendering.memory_words import (
    CATEGORY_TITLES,
    FRAGMENTS_NOTE,
    bounds_text,
    cards_by_verdict,
    cards_in_one_line,
    compared_text,
    fragments_note,
    gib_number,
    percent,
    reserved_note,
)

CONTEXT_NOTE = "The CUDA context is assumed, by compute capability."


_MORE = "details=true shows every phase and every card."


def estimate_table(
    explained: ExplainedEstimate,
    notes: Sequence[str] = (),
    *,
    decided_by: str = "",
    details: bool = False,
    simulated: Outcome | None = None,
) -> str:
    """Return the answer as text of 80 columns: the verdict, the phase of the peak, what was assumed, and the cards.

    Args:
        explained: The estimate.
        notes: What was assumed, and what is not counted; a sentence each.
        decided_by: Which of several possible trials this is, as a sentence; empty if there is one.
        details: Whether every phase and every card is shown, and not only the phase of the peak.
        simulated: The same trial, simulated; None: it was not asked for.
    """
    return plain_text(estimate_document(explained, notes, decided_by=decided_by, details=details, simulated=simulated))


def estimate_document(
    explained: ExplainedEstimate,
    notes: Sequence[str] = (),
    *,
    decided_by: str = "",
    details: bool = False,
    simulated: Outcome | None = None,
) -> Document:
    """Return the same as a document."""
    spec, peak_phase, host = explained.spec, explained.estimate.peak_phase, explained.host
    host_note = f" {HOST_NOTE}" if is_shown(host) else ""
    phases = [each for each in explained.phases if details or each.phase is peak_phase]
    own = [card for card in explained.cards if card.gpu.name == spec.gpu]
    verdicts, servers = [verdict_text(card) for card in own], [card.server for card in own if card.server]
    if simulated is not None:
        verdicts = [simulated_verdict_text(simulated, spec), *map(_second_verdict, verdicts)]
    others = "" if details else other_phases_text(explained.phases, peak_phase)
    if explained.bounds is not None:
        others = others.replace("Other phases:", "Other phases, at most:")
    cards = cards_by_verdict(explained.cards) if details else [cards_in_one_line(explained.cards)]
    return Document(
        title=spec.model,
        blocks=[
            paragraphs(" ".join([*verdicts, decided_by]).strip(), *servers, gathered_text(explained), host_text(host)),
            paragraphs(_title(explained)),
            Section("", [phase_table(phases, peak_phase)]),
            *(
                [host_table(host)]
                if host is not None and (host.fit is not None or (details and is_shown(host)))
                else ()
            ),
            paragraphs(_peaks(explained), *_simulated_peaks(explained, simulated), others),
            *([paragraphs(*notes)] if notes else ()),
            paragraphs(*cards, f"{methods_text(explained, simulated)}{host_note}", "" if details else _MORE),
        ],
    )


def other_phases_text(phases: Sequence[ExplainedPhase], peak_phase: Phase) -> str:
    """Return the peaks of the phases other than that of the peak, in order."""
    others = [
        f"{each.phase.value} {gib_number(each.peak_allocated_bytes)}" for each in phases if each.phase is not peak_phase
    ]
    return f"Other phases: {', '.join(others)}." if others else ""


def methods_text(explained: ExplainedEstimate, simulated: Outcome | None = None) -> str:
    """Return how wrong the numbers of an estimate have been, and what no card has confirmed yet.

    Args:
        explained: The estimate.
        simulated: As of `estimate_table`.
    """
    spec = explained.spec
    if explained.bounds is not None:
        return f"No card has confirmed these bounds. {FRAGMENTS_NOTE} {CONTEXT_NOTE}"
    notes = [reserved_note(spec), fragments_note(explained.cards), CONTEXT_NOTE, *_uncompared(spec)]
    if simulated is not None and simulated.needed_bytes is not None:
        notes.append(f"Simulations: {compared_text(lambda found: found.simulated)}")
    return " ".join(notes)


def _uncompared(spec: TrialSpec) -> list[str]:
    """Return how far estimates were from real cards, or what no card has confirmed yet."""
    notes = []
    if spec.recipe is Recipe.GRPO and spec.num_processes == 1 and not spec.use_vllm and not spec.images_per_prompt:
        notes.append(compared_text(lambda found: found.replayed if has_replay(spec) else found.estimated))
    if spec.use_vllm:
        notes.append("The parts of vLLM have been compared with emulated trials and with logs of real cards only.")
    if spec.num_processes > 1:
        notes.append("Several GPUs have been compared with emulated trials only; NCCL's memory is assumed.")
    return notes


def method_text(spec: TrialSpec, *, varied: Collection[str] = ()) -> str:
    """Return how the model is trained: ``"lora, rank 16, adamw_torch_fused, checkpointing, ZeRO-3 on 8 GPUs"``.

    A key in `varied` has several values and is left out.
    """
    how = [spec.tuning.value, spec.optim.value]
    if spec.tuning is not Tuning.FULL and "lora_rank" not in varied:
        how.insert(1, f"rank {spec.lora_rank}")
    if spec.gradient_checkpointing:
        how.append("checkpointing")
    how += [words for key, words in constructed_words(vars(spec)).items() if key not in varied]
    if spec.distributed_type is not DistributedType.NO and "num_processes" not in varied:
        gpus = "one GPU" if spec.num_processes == 1 else f"{spec.num_processes} GPUs"
        how.append(f"{sharding_word(vars(spec), without=varied)} on {gpus}".lstrip())
    return ", ".join(how)


def _title(explained: ExplainedEstimate) -> str:
    spec = explained.spec
    how = f"{spec.model}, {method_text(spec)}, {_rows(spec)}"
    if explained.bounds is not None:
        return f"{how}. Upper bounds, GiB (2^30 bytes) of allocated memory:"
    return f"{how}. Estimated, GiB (2^30 bytes) of allocated memory:"


def _rows(spec: TrialSpec) -> str:
    count = f"{spec.per_device_train_batch_size} x {spec.gradient_accumulation_steps}"
    if spec.num_processes > 1:
        count = f"on each {count}"
    facts = spec.recipe.facts
    if not facts.rows_are_single:
        count = f"{count} pairs"
    elif facts.has_prompts:
        count = f"{count} completions"
    else:
        count = f"{count} rows"
    prompt = f"{spec.max_prompt_length} + " if facts.has_prompts else ""
    return f"{count} of {prompt}{spec.longest} tokens"


def phase_table(
    phases: Sequence[ExplainedPhase], peak_phase: Phase, titles: Mapping[Category, str] = CATEGORY_TITLES
) -> Table:
    """Return the largest instant of each phase, and below it the categories with what they are made of.

    Args:
        phases: Those that are shown.
        peak_phase: The phase of the peak.
        titles: Of categories; others have that of any trial.
    """
    rows = [row for each in phases for row in _phase_rows(each, peak_phase, {**CATEGORY_TITLES, **titles})]
    return Table(PHASE_COLUMNS, rows, has_titles=False)


def _phase_rows(phase: ExplainedPhase, peak_phase: Phase, titles: Mapping[Category, str]) -> Iterator[Row]:
    mark = "  <- the peak" if phase.phase is peak_phase else ""
    yield phase.phase.value, gib_number(phase.peak_allocated_bytes), f"{phase.instant.value}{mark}"
    for share in phase.shares:
        title = Cell(text=titles[share.category], is_part=True)
        yield title, gib_number(share.size_bytes), share.short_form


def _peaks(explained: ExplainedEstimate) -> str:
    found = explained.estimate
    if explained.bounds is not None:
        return bounds_text(explained.bounds)
    allocated = f"Peak allocated {gib_text(found.peak_allocated_bytes)}, in {found.peak_phase}"
    return f"{allocated}{_reserved_text(explained)}; by the blog's rule of thumb {gib_text(found.peak_rule_bytes)}."


def _reserved_text(explained: ExplainedEstimate) -> str:
    """Return the peak of reserved memory, and that a card without room for it gives its cache back."""
    size_bytes = explained.estimate.peak_reserved_bytes
    if size_bytes is None:
        return ""
    card = next((card for card in explained.cards if card.gpu.name == explained.spec.gpu), None)
    is_enough = card is None or size_bytes + card.outside_bytes <= card.gpu.memory_bytes
    return f"; reserved {gib_text(size_bytes)}{'' if is_enough else _ON_A_LARGER_CARD}"


_ON_A_LARGER_CARD = " where there is room (a full card gives its cache back before it runs out)"


def _nccl_text(card: CardVerdict) -> str:
    return f" and {gib_text(card.nccl_bytes, 2)} of NCCL" if card.nccl_bytes else ""


def fragments_text(card: CardVerdict) -> str:
    """Return what is needed beyond tensors: ``"fragments and context"``; of several GPUs what NCCL takes too."""
    return f"fragments, context{_nccl_text(card)}" if card.nccl_bytes else "fragments and context"


def verdict_text(card: CardVerdict) -> str:
    """Return whether a job fits a card, and what is left or missing."""
    whole = f"{gib_text(card.gpu.memory_bytes)} of {card.gpu.name}"
    least, most = gib_text(card.least_bytes), gib_text(card.needed_bytes)
    nccl, fragments = _nccl_text(card), fragments_text(card)
    match card.fit:
        case Fit.FITS:
            (upper, lower), left = ("at most ", "at least ") if card.has_bounds else ("", ""), gib_text(card.left_bytes)
            return f"Fits: {upper}{most} with {fragments}, {lower}{left} of the {whole} are left."
        case Fit.TIGHT:
            return f"Tight: {least} to {most} of the {whole}, depending on fragments."
        case Fit.UNDECIDED:
            needed = f"it needs at least {least} and at most {most}" if card.has_bounds else f"{least} to {most}"
            return f"Not decided: {needed} with {fragments}, of the {whole}."
        case Fit.TOO_LARGE:
            missing = gib_text(card.least_bytes - card.gpu.memory_bytes)
            return f"Does not fit: at least {least} with context{nccl}, {missing} more than the {whole}."
        case Fit.NO_ENGINE | Fit.NO_KERNEL:
            return card.refusal_text


_HINTS: Mapping[tuple[DistributedType, Phase], str] = {
    (
        DistributedType.DEEPSPEED,
        Phase.ROLLOUT,
    ): "trl gathers the model to generate: use_vllm=true gathers one tensor at "
    "a time, and ds3_gather_for_generation=false, which is not counted here, one layer.",
    (DistributedType.FSDP, Phase.SCORE): "trl makes the reference one unit, so that it is gathered whole: beta=0 and "
    "LoRA need none.",
}
"""Why something is gathered, and what avoids it. Sources: `Zero` and `Fsdp` of `profiler.analytical`."""


def gathered_text(explained: ExplainedEstimate) -> str:
    """Return that most of the peak is what sharded GPUs gather, why, and what avoids it; empty if it is not."""
    share, peak, sharding = explained.gathered, explained.peak_phase, explained.spec.distributed_type
    if share is None:
        return ""
    part, whole = gib_text(share.size_bytes), gib_text(peak.peak_allocated_bytes)
    text = f"Most of the peak, in {peak.phase}, is gathered: {part} of {whole} ({share.short_form})."
    has_why = peak.phase is not Phase.SCORE or explained.spec.keeps_reference_model
    why = _HINTS.get((sharding, peak.phase), "") if has_why else ""
    if not explained.spec.recipe.facts.has_rollout:
        why = why.replace("beta=0", "precompute_ref_log_probs=true")
    return f"{text} {why}".strip()


def _second_verdict(text: str) -> str:
    """Return ``"Fits: 12.3 GiB."`` as ``"Estimated: fits, 12.3 GiB."``."""
    verdict, colon, rest = text.partition(": ")
    return f"Estimated: {verdict[:1].lower()}{verdict[1:]}, {rest}" if colon else f"Estimated: {text}"


def simulated_verdict_text(outcome: Outcome, spec: TrialSpec) -> str:
    """Return whether the simulated trial fits its card, and what is left or missing."""
    if outcome.needed_bytes is None:
        return f"Not simulated: {outcome.message}"
    needed, gpu = outcome.needed_bytes, gpu_named(str(spec.gpu))
    whole = f"{gib_text(gpu.memory_bytes)} of {gpu.name}"
    if outcome.status is Status.OK:
        left = gib_text(gpu.memory_bytes - needed)
        return f"Simulated: fits, {gib_text(needed)} with fragments and context, {left} of the {whole} are left."
    phase = f" in {outcome.verdict.oom.phase}" if outcome.verdict.oom is not None else ""
    more = f", {gib_text(needed - gpu.memory_bytes)} more than the {whole}" if needed > gpu.memory_bytes else ""
    return f"Simulated: does not fit, out of memory{phase}; at least {gib_text(needed)} with context{more}."


def _simulated_peaks(explained: ExplainedEstimate, outcome: Outcome | None) -> list[str]:
    """Return the peaks of a simulated trial on a card of unlimited memory, and how far the estimate is from them."""
    if outcome is None or outcome.unlimited is None:
        return []
    peaks, estimated = outcome.unlimited, explained.estimate
    phase = "" if outcome.status is not Status.OK or outcome.peaks.phase is None else f", in {outcome.peaks.phase}"
    text = f"Simulated: peak allocated {gib_text(peaks.required_allocated_bytes, 2)}{phase}"
    text += _against(estimated.peak_allocated_bytes, peaks.required_allocated_bytes)
    if peaks.required_reserved_bytes is not None:
        text += f"; reserved {gib_text(peaks.required_reserved_bytes, 2)}"
        text += _against(estimated.peak_reserved_bytes, peaks.required_reserved_bytes)
    return [f"{text}. trl's trainer ran on a simulated card."]


def _against(estimated_bytes: int | None, simulated_bytes: int) -> str:
    """Return how far an estimate is from a simulation: ``" (estimate 1.2 % higher)"``."""
    if estimated_bytes is None:
        return ""
    ratio = estimated_bytes / simulated_bytes - 1
    return f" (the estimate is {percent(abs(ratio))} {'lower' if ratio < 0 else 'higher'})"


def estimate_json(
    explained: ExplainedEstimate,
    *,
    notes: Sequence[str] = (),
    simulated: Outcome | None = None,
    by_lengths: object = None,
) -> str:
    """Return one object: the trial, its peaks, the phases with their categories, the verdict for each card.

    Args:
        explained: The estimate.
        notes: What was assumed, and what is not counted.
        simulated: As of `estimate_table`; the object has it only where it was asked for.
        by_lengths: What parts of the steps need, likewise.
    """
    found, bounds = explained.estimate, explained.bounds
    content: dict[str, object] = {
        "origin": Origin.ESTIMATED.value,
        "trial": spec_to_mapping(explained.spec),
        "notes": list(notes),
        "peak_allocated_bytes": None if bounds else found.peak_allocated_bytes,
        "peak_reserved_bytes": None if bounds else found.peak_reserved_bytes,
        "peak_rule_bytes": None if bounds else found.peak_rule_bytes,
        "peak_phase": found.peak_phase.value,
        "peak_gathered": gathered_text(explained),
        "phases_at_most" if bounds else "phases": [
            {
                "phase": phase.phase.value,
                "moment": phase.instant.value,
                "peak_allocated_bytes": phase.peak_allocated_bytes,
                "categories": [
                    {"category": share.category.value, "bytes": share.size_bytes, "formula": share.short_form}
                    for share in phase.shares
                ],
            }
            for phase in explained.phases
        ],
        "gpus": [
            {
                "gpu": card.gpu.name,
                "verdict": card.word,
                "reason": card.refusal_text,
                **({"engine": card.server} if card.server else {}),
                "memory_bytes": card.gpu.memory_bytes,
                "peak_allocated_bytes": None if bounds else card.peak_allocated_bytes,
                "peak_reserved_bytes": None if bounds else card.peak_reserved_bytes,
                "assumed_context_bytes": card.context_bytes,
                "assumed_nccl_bytes": card.nccl_bytes,
                "least_bytes": card.least_bytes,
                "needed_bytes": card.needed_bytes,
                "left_bytes": card.left_bytes,
            }
            for card in explained.cards
        ],
    }
    if explained.host is not None:
        content["host"] = host_object(explained.host)
    if bounds is not None:
        text = bounds_text(bounds)
        content["bounds"] = {"least_bytes": bounds.least_bytes, "most_bytes": bounds.most_bytes, "text": text}
    if simulated is not None:
        content["simulated"] = _simulated_object(simulated)
    if by_lengths is not None:
        content["by_lengths"] = by_lengths
    return json_text(content)


def _simulated_object(outcome: Outcome) -> dict[str, object]:
    peaks = outcome.unlimited
    return {
        "origin": Origin.SIMULATED.value,
        "status": outcome.status.value,
        "message": outcome.message,
        "required_allocated_bytes": None if peaks is None else peaks.required_allocated_bytes,
        "required_reserved_bytes": None if peaks is None else peaks.required_reserved_bytes,
        "needed_bytes": outcome.needed_bytes,
        "phases": [
            {
                "phase": each.phase.value,
                "peak_allocated_bytes": each.peak_allocated_bytes,
                "peak_reserved_bytes": each.peak_reserved_bytes,
            }
            for each in outcome.peaks.phases
        ],
    }
