"""An out-of-memory error of a log, compared with the estimate and the simulation of its job."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from profiler.advise.oom.cause import Cause, Explained, SimulatedTrial, explained
from profiler.allocator import AllocatorConfig
from profiler.allocator.model.card_memory import size_text
from profiler.allocator.oom_message import OomMessage, OomReport
from profiler.allocator.settings import block_bytes, segment_bytes
from profiler.analytical.explanation.explained import CardVerdict, Fit
from profiler.analytical.explanation.tensors import NamedTensor, named_tensors
from profiler.config.trl_releases.behaviours import LAST_WITH_LABEL_LOGITS, LAST_WITH_LOGITS
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.memory import GIB, Phase, gib_text
from profiler.domain.runs.step_shape import LargeRequest
from profiler.domain.trials.trial import Logprobs, TrialSpec
from profiler.rendering.answers.advice import Advice, RefusalAnswer

_MOST_REQUESTS = 4
"""Most simulated requests that are named."""

_EXPANDABLE = "expandable_segments:True"
_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
"""Read by every torch: since 2.9 as another name of PYTORCH_ALLOC_CONF, which earlier ones ignore without a word."""


def diagnosis(
    report: OomReport, advice: Advice, architecture: Architecture, trial: SimulatedTrial | None
) -> RefusalAnswer:
    """Return what the first error of a log matches, and what to change.

    Args:
        report: The error.
        advice: The advice for the job on the card of the error.
        architecture: Its model.
        trial: The simulation of the job; None if nothing was simulated.
    """
    message, spec = report.message, advice.spec
    tensors = named_tensors(spec, architecture)
    found, why = matching(message, tensors), explained(message)
    phase = phase_of(report.functions)
    return RefusalAnswer(
        said=_said(report, why),
        cause=why.cause.value,
        why=why.sentence,
        phase=phase.value if phase is not None else None,
        tensors=found,
        nearest=nearest_tensor(message, tensors),
        reading="" if found else _reading(message, spec, architecture),
        simulated=_simulated_lines(message, trial),
        job=f"{_job(advice, why.cause)}{_decides(advice, trial)}",
        change=_change(why, report, advice),
    )


def diagnosis_alone(report: OomReport, hint: str) -> RefusalAnswer:
    """Return what the first error of a log says by itself, without the job that ran.

    Args:
        report: The error.
        hint: What else to give for the rest of the answer.
    """
    why, phase = explained(report.message), phase_of(report.functions)
    return RefusalAnswer(
        said=_said(report, why),
        cause=why.cause.value,
        why=why.sentence,
        phase=phase.value if phase is not None else None,
        tensors=None,
        nearest=None,
        reading="",
        simulated=(),
        job="",
        change=(*_change_of(why, report), hint),
    )


def _said(report: OomReport, why: Explained) -> str:
    message, phase = report.message, phase_of(report.functions)
    parts = [
        f"{gib_text(size, 2)} {name}"
        for size, name in (
            (message.total_bytes, "in all"),
            (message.allocated_bytes, "allocated"),
            (message.unallocated_bytes, "cached but unused"),
            (message.free_bytes, "free"),
            (message.in_use_bytes if why.others is not None and why.others.is_named else None, "of this process"),
            (sum(message.processes_bytes) or None, _processes_text(message, why)),
            (message.private_bytes, "in private pools"),
        )
        if size is not None
    ]
    where = f" in {phase} (by its traceback)" if phase is not None else ""
    more = f" It is the first of {report.count} such errors." if report.count > 1 else ""
    sizes = f": {', '.join(parts)}" if parts else ""
    return f"The card refused {message.requested_text or 'a request'}{where}{sizes}.{more}"


def _processes_text(message: OomMessage, why: Explained) -> str:
    """Return whose the memory of the processes is that torch lists by their number."""
    count = len(message.processes_bytes)
    are = "1 process" if count == 1 else f"{count} processes"
    if why.others is not None and why.others.others == count:
        return f"of {are.replace('process', 'other process')}"
    is_among = why.others is not None and why.others.others == count - 1
    return f"of {are}, of which {'one is' if is_among else 'one may be'} this program"


def _reading(message: OomMessage, spec: TrialSpec, architecture: Architecture) -> str:
    """Return how many positions logits of the size of the request would have; empty if they are no logits."""
    rows = spec.per_device_train_batch_size
    positions = positions_of_logits(message, rows=rows, vocabulary=architecture.vocab_size)
    if positions is None:
        return ""
    shape = f"[{rows}, {positions}, {architecture.vocab_size}]"
    return f"It is the size of float32 logits of every position, {shape}: rows of about {positions} tokens."


def _simulated_lines(message: OomMessage, trial: SimulatedTrial | None) -> tuple[str, ...]:
    if trial is None:
        return ()
    if trial.problem:
        return (f"The job could not be simulated: {trial.problem}.",)
    found = [request for request in trial.requests if asks_for(request.size_bytes, message)]
    if not found:
        lines = ["Simulation: nothing asks for that size."]
    else:
        known = message.allocated_bytes
        ordered = found if known is None else sorted(found, key=lambda each: abs(each.allocated_bytes - known))
        lines = [f"Simulation: {_request_text(request)}." for request in _distinct(ordered)]
    refused = trial.refused_in
    if refused is not None and trial.refused_bytes is not None:
        lines.append(f"The simulated card refuses {gib_text(trial.refused_bytes, 2)} in {refused}.")
    elif trial.needed_bytes is not None:
        lines.append(f"The simulated job fits, with {gib_text(trial.needed_bytes, 2)} at least.")
    return tuple(lines)


def _distinct(requests: Sequence[LargeRequest]) -> Sequence[LargeRequest]:
    """Return the first requests, one per phase and operation."""
    found: dict[tuple[str, str], LargeRequest] = {}
    for request in requests:
        found.setdefault((request.phase, request.operation), request)
    return list(found.values())[:_MOST_REQUESTS]


def _request_text(request: LargeRequest) -> str:
    shape = f"[{', '.join(map(str, request.shape))}] {request.dtype}".rstrip()
    of = f" of {request.module}" if request.module.strip(": ") else ""
    allocated = gib_text(request.allocated_bytes, 2)
    return f"{request.operation}{of} asks for {shape} in {request.phase}, with {allocated} allocated"


_FITS = {
    Cause.OTHERS: "so it fits a card of its own",
    Cause.LIMIT: "so it fits the whole card",
    Cause.FRAGMENTS: "so it fits, fragments of usual size included",
}
"""What it says that the job fits by the estimate, where something else than need was the cause."""


def _job(advice: Advice, cause: Cause) -> str:
    card = advice.card
    needs = f"{gib_text(card.least_bytes)} to {gib_text(card.needed_bytes)}"
    whole = f"{gib_text(card.gpu.memory_bytes)} of {card.gpu.name}"
    tensors_fit = card.peak_allocated_bytes + card.outside_bytes <= card.gpu.memory_bytes
    verdict = {
        Fit.FITS: _FITS.get(cause, "so it fits, and the job that ran needed more than its configuration says"),
        Fit.TIGHT: "so it is tight",
        Fit.UNDECIDED: "which does not decide it",
        Fit.TOO_LARGE: "so it does not fit" if tensors_fit else "so it does not fit, whatever the fragments",
        Fit.NO_ENGINE: "and vLLM does not start there",
        Fit.NO_KERNEL: "and one of its kernels does not run there",
    }[card.fit]
    return f"The whole job needs {needs} of the {whole} by the estimate, {verdict}."


def more_by_simulation(trial: SimulatedTrial, card: CardVerdict) -> int:
    """Return what a job needs by its simulation beyond the estimate, where the simulated card refuses a request.

    At least so much that the job does not fit by both: the estimate's own number is then too small.
    """
    needed = trial.needed_bytes if trial.needed_bytes is not None else 0
    return max(needed - card.needed_bytes, card.left_bytes + 1)


def _decides(advice: Advice, trial: SimulatedTrial | None) -> str:
    """Return which of estimate and simulation decides where they differ; empty otherwise.

    The job ran out of memory, so the dearer of the two is nearer to it.
    """
    if trial is None or trial.problem:
        return ""
    if advice.more_bytes:
        return (
            " Its simulation contradicts that and decides, because the job did run out of memory: the changes are "
            "searched for what it needs."
        )
    if not trial.refuses and advice.card.fit is Fit.TOO_LARGE:
        return " Its simulation fits; the estimate decides, because the job did run out of memory."
    return ""


_END_OTHERS = (
    "What to change: end the other processes on the card, or, if they are ranks of this job, use one card for each "
    "rank (torch.cuda.set_device(LOCAL_RANK))."
)
_OWN_LIMIT = (
    "What to change: the limit of the program (torch.cuda.set_per_process_memory_fraction, or "
    "per_process_memory_fraction of PYTORCH_ALLOC_CONF), or its need."
)
_DRIVER_LIMIT = (
    "What to change: ask the machine for the limit (the slice of the GPU, `nvidia-smi`), or run again alone."
)


def _expandable(report: OomReport) -> str:
    """Return the line that sets expandable segments, with the variable that the torch of the message reads."""
    line = f"export {report.variable or _VARIABLE}={_EXPANDABLE}"
    return line if report.has_expandable_segments else f"{line}, after an update to torch 2.1 or later"


def _change_of(why: Explained, report: OomReport) -> tuple[str, ...]:
    """Return what to change by the message alone; nothing where it is the job that has to change."""
    match why.cause:
        case Cause.OTHERS:
            return (_END_OTHERS,)
        case Cause.LIMIT:
            return (_OWN_LIMIT if report.message.allowed_bytes is not None else _DRIVER_LIMIT,)
        case Cause.FRAGMENTS:
            return (f"What to change: {_expandable(report)}",)
    return ()


def _version(spec: TrialSpec) -> str:
    if spec.recipe.facts.has_rollout:
        return (
            f"check the prompt lengths and the version of trl: up to {LAST_WITH_LOGITS} "
            "log-probabilities need logits of all completions."
        )
    return (
        f"check the lengths of the rows and the version of trl: up to {LAST_WITH_LABEL_LOGITS} "
        "the loss needs logits of all tokens."
    )


def _change(why: Explained, report: OomReport, advice: Advice) -> tuple[str, ...]:
    cause, found = why.cause, _change_of(why, report)
    fits = advice.card.fit is not Fit.TOO_LARGE and not advice.more_bytes
    is_small = "expandable_segments" in advice.spec.alloc_conf
    if cause in (Cause.OTHERS, Cause.LIMIT):
        return (*found, *(() if fits else ("The job does not fit the card alone either; see below.",)))
    if cause is Cause.FRAGMENTS and not is_small:
        tail = "." if fits else ", which serves this request; the job needs the changes below as well."
        return (f"{found[0]}{tail}",)
    if advice.spec.logprobs is Logprobs.FUSED and fits and cause is not Cause.UNKNOWN:
        return (f"What to change: {_version(advice.spec)} trl=VERSION with config=FILE counts those of your release.",)
    return ("What to change is below.",) if advice.steps else ()


# ---- what an error says of itself ------------------------------------------------------------------------------------

_ROUNDING_BYTES = GIB // 200
"""Half of the last digit of a size in GiB as torch prints it."""

_FUNCTIONS: tuple[tuple[Phase, frozenset[str]], ...] = (
    (Phase.EVALUATION, frozenset({"evaluate", "evaluation_loop", "prediction_step"})),
    (Phase.OPTIMIZER, frozenset({"optimizer_step", "clip_grad_norm_", "_optimizer_step", "adamw"})),
    (Phase.BACKWARD, frozenset({"backward", "_engine_run_backward"})),
    (Phase.ROLLOUT, frozenset({"generate", "_sample", "_generate_single_turn"})),
    (Phase.REWARD, frozenset({"_calculate_rewards"})),
    (Phase.SCORE, frozenset({"_generate_and_score_completions"})),
    (Phase.FORWARD, frozenset({"compute_loss", "_compute_loss"})),
    (Phase.LOAD, frozenset({"from_pretrained", "_load_pretrained_model", "_move_model_to_device", "get_peft_model"})),
)
"""Functions of trl, transformers and torch that run in one phase only. The first that a traceback has counts."""


def phase_of(functions: Iterable[str]) -> Phase | None:
    """Return the phase in which a traceback ends; None if it names none."""
    names = set(functions)
    return next((phase for phase, known in _FUNCTIONS if names & known), None)


def card_of(message: OomMessage) -> Gpu | None:
    """Return the known card with the memory that the message states; None if there is none."""
    total = message.total_bytes
    if total is None:
        return None
    near = [card for card in KNOWN_GPUS.values() if abs(card.memory_bytes - total) <= 2 * _ROUNDING_BYTES]
    return min(near, key=lambda card: abs(card.memory_bytes - total), default=None)


Tensor = TypeVar("Tensor")


def matching(message: OomMessage, tensors: Sequence[NamedTensor]) -> tuple[NamedTensor, ...]:
    """Return the tensors whose request torch would print as the message does."""
    return tuple(each for each in tensors if asks_for(each.size_bytes, message))


def asks_for(size_bytes: int, message: OomMessage) -> bool:
    """Return whether torch prints a refused request of `size_bytes` as the message does: as a segment, two digits."""
    block = block_bytes(max(1, size_bytes), AllocatorConfig())
    texts = {size_text(size_bytes), size_text(segment_bytes(block, AllocatorConfig()))}
    return message.requested_text in texts


def nearest_tensor(message: OomMessage, tensors: Sequence[NamedTensor]) -> NamedTensor | None:
    """Return the tensor of this version of trl whose size is nearest to the request."""
    if message.requested_bytes is None:
        return None
    asked = message.requested_bytes
    own = [each for each in tensors if each.happens]
    return min(own, key=lambda each: abs(each.size_bytes - asked), default=None)


def positions_of_logits(message: OomMessage, *, rows: int, vocabulary: int) -> int | None:
    """Return the positions per row for which float32 logits have the size of the request; None if it is none.

    By hand, 1.90 GiB, 4 rows, 128,256 entries: 994.
    """
    if message.requested_bytes is None:
        return None
    positions = round(message.requested_bytes / (4 * rows * vocabulary))
    return positions if positions > 1 and asks_for(rows * positions * vocabulary * 4, message) else None


def where_text(report: OomReport) -> str:
    """Return the phase that the traceback of a report names, as a clause; empty if it names none."""
    phase = phase_of(report.functions)
    return f" in {phase.value}, by its traceback" if phase is not None else ""
