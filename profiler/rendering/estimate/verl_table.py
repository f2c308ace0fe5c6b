"""Memory per GPU of a sharded job, by component and phase, compared with a public report; 80 columns."""

import json
from collections.abc import Sequence

from profiler.analytical.baselines.verl_baseline import BaselineView
from profiler.analytical.baselines.verl_report import CLAIMED_GB, REPORT_ROWS, report_models_bytes, report_sharded_gb
from profiler.analytical.explanation.cards import Fit
from profiler.analytical.explanation.verl_fit import Unanswered, VerlFit
from profiler.analytical.timeline.recipes.verl import Component, VerlEstimate
from profiler.domain.memory import Origin
from profiler.domain.units import gib_text
from profiler.domain.verl import Strategy, VerlJob
from profiler.rendering.document import Block, Document, Section, Table, number_columns, paragraphs, preformatted
from profiler.rendering.layouts.plain_text import plain_text
from profiler.rendering.memory_words import gib_number

TAG = "estimated, not yet measured"

_MOST_REASONS = 4
_GB = 1_000_000_000


def verl_table(found: VerlEstimate, fit: VerlFit, baseline: BaselineView, notes: Sequence[str] = ()) -> str:
    """Return the verdict, components as rows and phases as columns, and each difference to the report's rule.

    Args:
        found: The estimate.
        fit: Whether it fits.
        baseline: The rule of the public report.
        notes: What was assumed, and what is not counted; a sentence each.
    """
    blocks: list[Block] = [
        paragraphs(_reasons(fit), _peak(found, fit), _lengths(fit)),
        paragraphs(f"{_title(found.job)}. GiB (2^30 bytes) per GPU, {TAG}:"),
        Section("", [_components(found)]),
        paragraphs(_pool(found)),
        *([paragraphs(*notes)] if notes else ()),
        preformatted(_baseline(baseline)),
        preformatted(_report()),
    ]
    return plain_text(Document(title=found.job.model, blocks=blocks))


def _components(found: VerlEstimate) -> Table:
    """Return a row per component, and their sums."""
    phases = [phase.value for phase in found.phases]
    rows = []
    for component in Component:
        numbers = [parts.get(component, 0) for parts in found.phases.values()]
        if any(numbers):
            rows.append([component.value, *(gib_number(number) if number else "." for number in numbers)])
    rows.append(["all", *(gib_number(sum(parts.values())) for parts in found.phases.values())])
    return Table(number_columns("", phases), rows)


def verl_json(found: VerlEstimate, fit: VerlFit, baseline: BaselineView, notes: Sequence[str] = ()) -> str:
    """Return the same as JSON, with `notes` on what was assumed; sizes are integers of bytes."""
    content = {
        "origin": Origin.ESTIMATED.value,
        "tag": TAG,
        "notes": list(notes),
        "model": found.job.model,
        "gpu": found.gpu.name,
        "n_gpus": found.job.n_gpus,
        "peak_phase": found.peak_phase.value,
        "peak_bytes": found.peak_bytes,
        "training_peak_bytes": found.training_peak_bytes,
        "fit": fit.fit.value,
        **({"reasons": list(fit.reasons)} if fit.reasons else {}),
        **({"fit_of_counted": fit.counted.value} if fit.counted is not None else {}),
        "longest_row": fit.longest_row,
        "mean_row_that_fits": fit.fits_up_to,
        "mean_row_that_is_tight": fit.tight_up_to,
        "phases": {
            phase.value: {component.value: size for component, size in parts.items()}
            for phase, parts in found.phases.items()
        },
        "engine_weights_bytes": found.engine_weights_bytes,
        "kv_demand_bytes": found.kv_demand_bytes,
        "report_bytes": baseline.report_bytes,
        "differences": [{"reason": each.reason, "bytes": each.size_bytes} for each in baseline.differences],
    }
    return json.dumps(content, indent=2) + "\n"


def _title(job: VerlJob) -> str:
    algorithm = "GRPO" if job.critic is None else "PPO"
    if job.strategy is Strategy.MEGATRON:
        how = f"tensor {job.tensor_model_parallel_size} x pipeline {job.pipeline_model_parallel_size}"
    else:
        how = f"sharded over {job.fsdp_size}, {'ZeRO-3' if job.reshard_after_forward else 'ZeRO-2'}"
    kept = f", LoRA rank {job.lora_rank}" if job.lora_rank else ""
    tokens = f"{job.actor.max_tokens} tokens per backward"
    return f"{job.model}, verl {algorithm}{kept} on {job.n_gpus} GPUs, {job.strategy.value} {how}, {tokens}"


def _pool(found: VerlEstimate) -> str:
    return (
        f"The pool holds {gib_text(found.engine_weights_bytes)} of weights; a KV cache for all sequences at once would "
        f"need {gib_text(found.kv_demand_bytes)}, and the engine serves as many as fit."
    )


def _peak(found: VerlEstimate, fit: VerlFit) -> str:
    """Return the peak, and the verdict where memory decides or would decide."""
    size, card = gib_text(found.peak_bytes), f"{found.gpu.name} ({gib_text(found.gpu.memory_bytes)})"
    training = f"Training alone {gib_text(found.training_peak_bytes)}."
    where = f"in {found.peak_phase.value}, every row at its maximum"
    if fit.fit is Unanswered.NOT_POSSIBLE:
        return f"If it ran: {size} {where}, of {card}. {training}"
    counted = " of what is counted" if fit.fit is Unanswered.UNDECIDED else ""
    verdict = f"{(fit.counted or fit.fit).value} on {card}"
    return f"Peak {size}{counted} {where}: {verdict}, with fragments and the CUDA context, NCCL apart. {training}"


def _reasons(fit: VerlFit) -> str:
    """Return why memory alone does not decide; empty where it does."""
    if not fit.reasons:
        return ""
    shown = "; ".join(fit.reasons[:_MOST_REASONS])
    others = len(fit.reasons) - _MOST_REASONS
    more = f"; and {others} more" if others > 0 else ""
    if fit.fit is Unanswered.UNDECIDED:
        return f"Verdict: {fit.fit.value}, because this changes memory and has no formula: {shown}{more}."
    return f"Verdict: {fit.fit.value}. verl refuses this job: {shown}{more}."


def _lengths(fit: VerlFit) -> str:
    """Return which mean length of rows fits; empty where that is no other answer."""
    if fit.fit is Fit.FITS or fit.tight_up_to is None:
        return ""
    rows = f"Padding is removed, so the mean length of rows counts (at most {fit.longest_row:,} tokens): "
    fits = f"{fit.fits_up_to:,} tokens fit" if fit.fits_up_to is not None else "none fits"
    return f"{rows}{fits}, and up to {fit.tight_up_to:,} are tight."


def _baseline(baseline: BaselineView) -> list[str]:
    lines = ["The public report's rule, and ours, in the actor's update (GB of 10^9 bytes):"]
    lines.append(f"{_gb(baseline.report_bytes)}  the report: 4 x weights, the reference, activations, 2 GB")
    lines += [f"{_gb(each.size_bytes, signed=True)}  {each.reason}" for each in baseline.differences]
    return [*lines, f"{_gb(baseline.ours_bytes)}  ours"]


def _report() -> list[str]:
    ppo, grpo = (report_models_bytes(7 * _GB, has_reference=True, has_critic=critic) for critic in (True, False))
    saving = 1 - grpo / ppo
    lines = [f"The report's own table: 7B PPO {ppo / _GB:.0f} GB, GRPO {grpo / _GB:.0f} GB, {saving:.0%} saved."]
    for row in REPORT_ROWS:
        lines.append(
            f"  {row.model} in all {row.printed_total_gb:g} GB; sharded, per GPU: {row.printed_sharded_gb:g} printed, "
            f"{report_sharded_gb(row):g} by its own parts"
        )
    claims = ", ".join(f"{name} {size}" for name, size in CLAIMED_GB.items())
    return [*lines, f"  its claims for 7B on 8 GPUs, per GPU: {claims} GB"]


def _gb(size_bytes: int, *, signed: bool = False) -> str:
    return f"{size_bytes / _GB:+.1f}".rjust(7) if signed else f"{size_bytes / _GB:.1f}".rjust(7)
