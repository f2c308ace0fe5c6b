"""Memory per GPU of a job of verl as text of 80 columns and as JSON, compared with a public report."""

from collections.abc import Sequence

from profiler.analytical.baselines import CLAIMED_GB, REPORT_ROWS, BaselineView, report_models_bytes, report_sharded_gb
from profiler.analytical.explanation.boundary import VerlFit, verl_phases
from profiler.analytical.explanation.explained import Fit
from profiler.analytical.timeline.recipes.verl import VerlEstimate
from profiler.domain.memory import Category, Origin, Phase, gib_text
from profiler.domain.verl import VLLM, Strategy, VerlJob
from profiler.rendering.document import Align, Block, Column, Details, Document, Section, Table, Text, paragraphs
from profiler.rendering.estimate.table import (
    CONTEXT_NOTE,
    other_phases_text,
    phase_table,
    verdict_text,
)
from profiler.rendering.layouts.plain_text import json_text, plain_text
from profiler.rendering.memory_words import FRAGMENTS_NOTE

TAG = "estimated, not yet measured"

METHODS_TEXT = f"{FRAGMENTS_NOTE} {CONTEXT_NOTE} So is NCCL's memory, of one group of GPUs."
"""How wrong the numbers can be."""

_MORE = "details=true shows every phase."

_MOST_REASONS = 4
_GB = 1_000_000_000
_BASELINE_COLUMNS = (Column(title="GB", width=7), Column(title="what", align=Align.LEFT))


def verl_table(
    found: VerlEstimate, fit: VerlFit, baseline: BaselineView, notes: Sequence[str] = (), *, details: bool = False
) -> str:
    """Return the verdict, the phase of the peak as for any trial, and each difference to the report's rule.

    Args:
        found: The estimate.
        fit: Whether it fits.
        baseline: The rule of the public report.
        notes: What was assumed, and what is not counted; a sentence each.
        details: Whether every phase is shown, and not only the phase of the peak.
    """
    phases, peak_phase = verl_phases(found), found.instants[found.peak_phase].phase
    shown = [each for each in phases if details or each.phase is peak_phase]
    others = "" if details else other_phases_text(phases, peak_phase)
    blocks: list[Block] = [
        paragraphs(*_verdict(fit), _lengths(fit)),
        paragraphs(f"{_title(found.job)}. GiB (2^30 bytes) per GPU, {TAG}:"),
        Section("", [phase_table(shown, peak_phase, {Category.ENGINE: found.job.engine.title})]),
        paragraphs(_peaks(found, peak_phase), others, _pool(found)),
        *([paragraphs(*notes)] if notes else ()),
        Section("", _baseline(baseline)),
        Section("", _report()),
        paragraphs(METHODS_TEXT, "" if details else _MORE),
    ]
    return plain_text(Document(title=found.job.model, blocks=blocks))


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
        "fit": fit.word,
        **({"reasons": list(fit.reasons)} if fit.reasons else {}),
        **({"no_engine": fit.card.no_engine} if fit.card.no_engine else {}),
        **({"fit_of_counted": fit.card.word} if fit.counted is not None else {}),
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
    return json_text(content)


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
    if not found.job.engine.has_pool:
        return ""
    return (
        f"The pool holds {gib_text(found.engine_weights_bytes)} of weights; a KV cache for all sequences at once would "
        f"need {gib_text(found.kv_demand_bytes)}, and the engine serves as many as fit.{_asleep(found.job)}"
    )


def _asleep(job: VerlJob) -> str:
    """Return what the process of a sleeping engine of vLLM keeps, as emulated (docs/evidence.md)."""
    if job.engine != VLLM or not job.free_cache_engine:
        return ""
    return " Not counted: asleep, its process keeps a CUDA context and 0.2 to 0.4 GiB of buffers."


def _peaks(found: VerlEstimate, peak_phase: Phase) -> str:
    peak, training = gib_text(found.peak_bytes), gib_text(found.training_peak_bytes)
    return f"Peak allocated {peak}, in {peak_phase}, every row at its maximum; training alone {training}."


def _verdict(fit: VerlFit) -> list[str]:
    """Return the verdict, and why memory alone does not decide."""
    if not fit.reasons:
        return [verdict_text(fit.card)]
    shown = "; ".join(fit.reasons[:_MOST_REASONS])
    others = len(fit.reasons) - _MOST_REASONS
    more = f"; and {others} more" if others > 0 else ""
    if fit.fit is Fit.UNDECIDED:
        why = f"Not decided, because this changes memory and has no formula: {shown}{more}. What is counted:"
        return [why, verdict_text(fit.card)]
    return [f"Not possible: verl refuses this job: {shown}{more}. The numbers below are what it would need."]


def _lengths(fit: VerlFit) -> str:
    """Return which mean length of rows fits; empty where that is no other answer."""
    if fit.fit is Fit.FITS or fit.tight_up_to is None:
        return ""
    rows = f"Padding is removed, so the mean length of rows counts (at most {fit.longest_row:,} tokens): "
    fits = f"{fit.fits_up_to:,} tokens fit" if fit.fits_up_to is not None else "none fits"
    return f"{rows}{fits}, and up to {fit.tight_up_to:,} are tight."


def _baseline(baseline: BaselineView) -> list[Block]:
    rows = [
        (f"{baseline.report_bytes / _GB:.1f}", "the report: 4 x weights, the reference, activations, 2 GB"),
        *((f"{each.size_bytes / _GB:+.1f}", each.reason) for each in baseline.differences),
        (f"{baseline.ours_bytes / _GB:.1f}", "ours"),
    ]
    title = "The public report's rule, and ours, in the actor's update (GB of 10^9 bytes):"
    return [Text(title), Table(_BASELINE_COLUMNS, rows, has_titles=False)]


def _report() -> list[Block]:
    ppo, grpo = (report_models_bytes(7 * _GB, has_reference=True, has_critic=critic) for critic in (True, False))
    saving = 1 - grpo / ppo
    rows = [
        f"{row.model} in all {row.printed_total_gb:g} GB; sharded, per GPU: {row.printed_sharded_gb:g} printed, "
        f"{report_sharded_gb(row):g} by its own parts"
        for row in REPORT_ROWS
    ]
    claims = ", ".join(f"{name} {size}" for name, size in CLAIMED_GB.items())
    rows.append(f"its claims for 7B on 8 GPUs, per GPU: {claims} GB")
    title = f"The report's own table: 7B PPO {ppo / _GB:.0f} GB, GRPO {grpo / _GB:.0f} GB, {saving:.0%} saved."
    return [Details(title, list(map(Text, rows)))]
