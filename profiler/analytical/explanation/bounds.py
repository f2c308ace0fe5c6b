"""Bounds of a job whose program trains by trl with kernels of its own, Unsloth's.

From above it is what trl's trainer needs with its fused head, what Unsloth's own head makes, and all that Unsloth keeps
and trl does not. Its kernels save no more than autograd does, and it offloads checkpoints. From below it is what no
kernel makes smaller.

Sources are files of unsloth and unsloth_zoo 2026.10.9.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from profiler.analytical.estimate import phase_instants, refuse_without_form
from profiler.analytical.explanation.explained import (
    CardVerdict,
    ExplainedEstimate,
    ExplainedPhase,
    ExplainedShare,
    Fit,
    explain,
    explained_phase,
    what_counts,
)
from profiler.analytical.formulas.models.parameters import (
    adapted_projections,
    lora_tensors,
    parameter_count,
    projections,
    query_width,
)
from profiler.analytical.formulas.models.tensor_groups import count_of
from profiler.analytical.formulas.models.trained import (
    BFLOAT16_BYTES,
    FLOAT32_BYTES,
    element_bytes,
    lora_rank,
    trainable_parameter_count,
)
from profiler.analytical.formulas.models.weights import NF4_BLOCK, nf4_bytes, weights
from profiler.analytical.formulas.rollout import kv_cache, kv_element_bytes
from profiler.analytical.formulas.sizes.rounding import Needed, with_fragments
from profiler.analytical.formulas.sizes.trial_keys import layer_kinds
from profiler.analytical.optimizers import optimizer_state
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.architectures.families import FAMILIES
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import GIB, Category, Phase
from profiler.domain.trials.kernels import Bounds, OtherKernels
from profiler.domain.trials.trial import TrialSpec, Tuning

_MODEL_TYPES = tuple(name for name, family in FAMILIES.items() if family.has_unsloth_kernels)

_ROPE_ROWS = 4 * 8192
"""Rows of the tables of the rotary embedding at first (`LlamaRotaryEmbedding.__init__` in `models/llama.py`)."""

_CACHE_ROWS = 512 + 256
"""Tokens by which a KV cache grows, and to whose multiple it is rounded (`KV_CACHE_INCREMENT`, `BUCKET`)."""

_GRAPHS_BYTES = GIB
"""ASSUMED: CUDA graphs of generation, at most: the limit that Unsloth itself sets for 172 graphs of vLLM.

Source: `approximate_vllm_memory_usage` in `unsloth_zoo/vllm_utils.py`.
"""

_LOGIT_BYTES = 16
"""Of one logit through the whole loss: `_CE_BYTES_PER_LOGIT` in `fused_losses/cross_entropy_loss.py`."""

_LOGITS_BYTES = 4 * GIB
"""Of the logits of labels that are there at once: `_CE_TARGET_GB_CAP` in the same file."""

_CHUNK_ROWS, _CHUNK_PARTS, _CHUNK_BYTES = 512, 8, 2 * GIB
"""Of the log-probabilities of completions: tokens at once at least, parts of all of them, and their bytes at 8 B each.

Source: `chunked_logprob_rows` in `fused_losses/chunked_logprob.py`.
"""


def explain_bounds(spec: TrialSpec, architecture: Architecture, kernels: OtherKernels) -> ExplainedEstimate:
    """Return the upper bound of a job as an estimate with its reasons, and both bounds.

    Raises:
        UsageError: There are no bounds for such a job, or trl's own has no closed form.
    """
    if faults := _faults(spec, architecture, kernels):
        raise UsageError(faults)
    refuse_without_form(spec, architecture)
    least = least_bytes(spec, architecture)
    found = explain(spec, architecture)
    phases = _phases(_with_attention(spec), architecture, kernels)
    peak = max(phases, key=lambda phase: phase.peak_allocated_bytes)
    alike = {what_counts(spec, card.gpu): replace(spec, gpu=card.gpu.name) for card in found.cards}
    most = {each: _peak_bytes(_with_attention(on_card), architecture, kernels) for each, on_card in alike.items()}
    cards = tuple(_verdict(card, least, most[what_counts(spec, card.gpu)], kernels) for card in found.cards)
    return replace(
        found,
        estimate=replace(found.estimate, peak_allocated_bytes=peak.peak_allocated_bytes, peak_phase=peak.phase),
        phases=phases,
        cards=cards,
        host=None,
        bounds=Bounds(kernels=kernels, least_bytes=least, most_bytes=peak.peak_allocated_bytes),
    )


def _with_attention(spec: TrialSpec) -> TrialSpec:
    """Return the same on a card whose attention makes no scores, which xformers spares below 8.0: Unsloth requires it.

    There it computes in float16, of which a value has as many bytes as one of bfloat16.
    """
    gpu = find_gpu(spec.gpu)
    if gpu is None or gpu.chip.has_flash_attention:
        return spec
    return replace(spec, gpu=f"{gpu.memory_bytes / GIB:.2f}GiB@8.0")


def _faults(spec: TrialSpec, architecture: Architecture, kernels: OtherKernels) -> list[Fault]:
    """Return why there are no bounds for a job."""
    found = []
    if architecture.model_type not in _MODEL_TYPES:
        problem = f"is loaded by other code of {kernels.program}, whose memory has no bound here"
        found.append(
            Fault(key="model", found=architecture.model_type, problem=f"{problem}; {_listed(_MODEL_TYPES)} is")
        )
    if problem := kernels.problem_of(spec.recipe):
        found.append(Fault(key="recipe", found=spec.recipe.value, problem=problem))
    if spec.num_processes > 1:
        problem = f"has no bound with {kernels.program}, which is bounded on one GPU"
        found.append(Fault(key="num_processes", found=str(spec.num_processes), problem=problem))
    if spec.tuning is Tuning.FULL:
        problem = f"has no bound with {kernels.program}, whose weights are then in another type"
        found.append(Fault(key="tuning", found="full", problem=problem))
    return found


def _listed(values: Sequence[str]) -> str:
    return f"one of {', '.join(values)}"


def least_bytes(spec: TrialSpec, architecture: Architecture) -> int:
    """Return what is there in the optimizer's step whatever the kernels: weights, adapters, gradients and states.

    Weights of 4 bits are all in nf4 with double quantisation, and an embedding without a tied head may be on the host
    (`offload_embedding`). Adapters and their gradients are in float32 (`prepare_model_for_training` in
    `unsloth_zoo/training_utils.py`). Of vLLM only the weights count, which the trainer shares.

    By hand, qwen2.5-0.5b, rank 16 on all linear layers, 4 bits, adamw_8bit: 457,187,808 B, 8,798,208 x 8 B, and states
    of 18,458,112 B are 546,031,584 B.
    """
    nf4 = replace(spec, bnb_4bit_use_double_quant=True)
    base = int(weights(nf4, architecture).size)
    if not architecture.tie_word_embeddings:
        base -= architecture.vocab_size * architecture.hidden_size * int(element_bytes(spec).weight)
    adapters = lora_tensors(architecture, lora_rank(spec), spec.lora_target_modules or ())
    states = int(optimizer_state(spec.optim, adapters, FLOAT32_BYTES).size)
    return base + 2 * FLOAT32_BYTES * int(count_of(adapters)) + states


def _phases(spec: TrialSpec, architecture: Architecture, kernels: OtherKernels) -> tuple[ExplainedPhase, ...]:
    """Return the upper bound of each phase: trl's largest instant, and what Unsloth adds as a category."""
    found = []
    always = sum(added_bytes(spec, architecture, kernels).values())
    for phase, instant in phase_instants(spec, architecture).items():
        explained = explained_phase(instant)
        more = always + added_in_phase(spec, architecture, phase)
        share = ExplainedShare(category=Category.OTHER, size_bytes=more, short_form=f"{kernels.program}, at most")
        found.append(
            replace(
                explained,
                peak_allocated_bytes=explained.peak_allocated_bytes + more,
                shares=(*explained.shares, share),
            )
        )
    return tuple(found)


def _peak_bytes(spec: TrialSpec, architecture: Architecture, kernels: OtherKernels) -> int:
    return max(phase.peak_allocated_bytes for phase in _phases(spec, architecture, kernels))


def added_bytes(spec: TrialSpec, architecture: Architecture, kernels: OtherKernels) -> Mapping[str, int]:
    """Return what Unsloth keeps in addition to trl at any instant, at most, by what it is.

    By hand, qwen2.5-0.5b in 4 bits, rank 16 on all linear layers: 32,768 rows of 64 x 4 tables in float32 are
    33,554,432 B.
    """
    hidden, tokens = architecture.hidden_size, spec.training_rows * spec.row_tokens
    element = int(element_bytes(spec).weight)
    kinds = layer_kinds(architecture)
    linear = [(int(part.weights), int(kind.num_hidden_layers)) for kind in kinds for part in projections(kind)]
    largest = max(values for values, _ in linear)
    adapters = lora_tensors(architecture, lora_rank(spec), spec.lora_target_modules or ())
    layers = 1 if spec.gradient_checkpointing else architecture.num_hidden_layers
    found = {
        # Cosine and sine, of a short and a long context (`LongRopeRotaryEmbedding`).
        "rotary tables": 4 * max(_ROPE_ROWS, spec.row_tokens) * architecture.head_dim * FLOAT32_BYTES,
        # Two buffers of one input of a layer (`GPU_BUFFERS` in `unsloth_zoo/gradient_checkpointing.py`).
        "checkpoint buffers": 2 * max(tokens * hidden * element, 2**21) if spec.gradient_checkpointing else 0,
        # Without xformers: a mask in 16 bits of padded rows, or keys, values and results of all heads, row by row
        # (`_run_attention` and `_sdpa_packed_segments` in `utils/attention_dispatch.py`).
        "attention masks": element * tokens * spec.row_tokens,
        "attention heads": 3 * element * tokens * int(query_width(architecture)) * layers,
    }
    if spec.tuning is Tuning.QLORA:
        # `WEIGHT_BUFFERS` and `ABSMAX_BUFFERS` in `kernels/utils.py`.
        found["dequantised weight"] = largest * element + FLOAT32_BYTES * -(-largest // NF4_BLOCK)
        found["float32 adapters"] = _more_of_adapters(spec, architecture)
        found["inputs of adapters"] = _inputs_of_adapters(spec, architecture)
        if kernels.has_mixed_weights:
            packed = (int(nf4_bytes(values, double_quant=spec.bnb_4bit_use_double_quant)) for values, _ in linear)
            pairs = zip(linear, packed, strict=True)
            found["layers in 16 bits"] = sum(copies * (values * element - size) for (values, copies), size in pairs)
    if spec.use_vllm:
        # Copies that the engine gets (`load_lora` in `unsloth_zoo/vllm_utils.py`).
        found["adapters for vLLM"] = FLOAT32_BYTES * int(count_of(adapters))
    if spec.recipe.facts.has_rollout:
        found["CUDA graphs"] = _GRAPHS_BYTES
    return found


def _more_of_adapters(spec: TrialSpec, architecture: Architecture) -> int:
    """Return by how much adapters, gradients, states and copies are larger than over trl's 4-bit weights.

    trl casts adapters to bfloat16 there; Unsloth keeps them in float32, and its kernels copy them.
    """
    tensors = lora_tensors(architecture, lora_rank(spec), spec.lora_target_modules or ())
    own = int(element_bytes(spec).adapter)
    states = [int(optimizer_state(spec.optim, tensors, element).size) for element in (FLOAT32_BYTES, own)]
    return int(count_of(tensors)) * (2 * (FLOAT32_BYTES - own) + own) + states[0] - states[1]


def _inputs_of_adapters(spec: TrialSpec, architecture: Architecture) -> int:
    """Return the float32 copies, what dropout keeps of them and its masks: with dropout peft computes the adapters."""
    if not spec.lora_dropout:
        return 0
    kinds = layer_kinds(architecture)
    widths = [
        (sum(part.in_features for part in adapted_projections(kind, spec.lora_target_modules or ())), kind)
        for kind in kinds
    ]
    layers = [
        int(width) * (1 if spec.gradient_checkpointing else int(kind.num_hidden_layers)) for width, kind in widths
    ]
    return spec.training_rows * spec.row_tokens * sum(layers) * (2 * FLOAT32_BYTES + 1)


def added_in_phase(spec: TrialSpec, architecture: Architecture, phase: Phase) -> int:
    """Return what Unsloth needs in addition to trl in one phase, at most.

    While it generates, its KV cache has free rows, and a row of scores per layer. Each layer frees its cache in its
    next forward (`LlamaAttention_fast_forward`). Completions of all micro-batches may be scored at once
    (`autotune_batch_and_chunks` in `unsloth_zoo/rl_replacements.py`).
    """
    more = 0
    if spec.recipe.facts.has_rollout and not spec.use_vllm:
        rows, tokens = spec.generation_batch_size, spec.max_prompt_length + spec.max_completion_length
        element = int(kv_element_bytes(spec))
        whole = _cache_bytes(architecture, rows, tokens + _CACHE_ROWS, element)
        scores = architecture.num_hidden_layers * rows * architecture.num_attention_heads * (tokens + _CACHE_ROWS)
        scratch = rows * (3 * architecture.hidden_size * FLOAT32_BYTES + 2 * architecture.intermediate_size * element)
        if phase is Phase.ROLLOUT:
            # The tensors of the prefill are there while the cache is made of them.
            prompts = _cache_bytes(architecture, rows, spec.max_prompt_length, element)
            more += whole - _cache_bytes(architecture, rows, tokens - 1, element) + prompts
            more += scores * element + 3 * scratch
        elif phase in (Phase.SCORE, Phase.FORWARD):
            more += whole + scores * element + 3 * scratch
    if phase is Phase.SCORE:
        more += _more_of_scoring(spec, architecture) + head_bytes(spec, architecture, spec.generation_batch_size)
    if phase in (Phase.FORWARD, Phase.BACKWARD):
        more += head_bytes(spec, architecture, spec.training_rows)
    return more


def _cache_bytes(architecture: Architecture, rows: int, tokens: int, element: int) -> int:
    return int(kv_cache(architecture, sequences=rows, tokens=tokens, element=element).size)


def _more_of_scoring(spec: TrialSpec, architecture: Architecture) -> int:
    """Return by how much it needs more to score all rows of a generation at once than those of a micro-batch."""
    rows = spec.generation_batch_size
    if rows == spec.per_device_train_batch_size:
        return 0
    at_once = replace(spec, per_device_train_batch_size=rows, gradient_accumulation_steps=1, steps_per_generation=1)
    whole, part = (int(phase_instants(each, architecture)[Phase.SCORE].total_bytes) for each in (at_once, spec))
    return max(0, whole - part)


def head_bytes(spec: TrialSpec, architecture: Architecture, rows: int) -> int:
    """Return what Unsloth's head makes at once of some rows, at most: logits, copies and gradients of its input.

    By hand, V = 151,936, SFT of 2 rows of 2,048 tokens, H = 896: 4 GiB, less than 4,096 x V x 16 B, and 4,096 x 896 x
    8 B. GRPO of 8 completions of 200 tokens: 512 x V x 16 B = 1,244,659,712 B, more than an eighth of 1,600, and 1,600
    x 896 x 8 B.
    """
    is_online, vocabulary = spec.recipe.facts.has_rollout, architecture.vocab_size
    tokens = rows * (spec.max_completion_length if is_online else spec.row_tokens)
    at_once = tokens
    if is_online:
        at_once = min(tokens, max(_CHUNK_ROWS, -(-tokens // _CHUNK_PARTS)), max(2, _CHUNK_BYTES // (8 * vocabulary)))
    logits = at_once * vocabulary * _LOGIT_BYTES
    return min(logits, _LOGITS_BYTES) + tokens * architecture.hidden_size * 2 * FLOAT32_BYTES


def without_sharding(
    cards: Sequence[CardVerdict], spec: TrialSpec, architecture: Architecture
) -> tuple[CardVerdict, ...]:
    """Return verdicts of an estimate without what shards the job: it fits with room for all that this may add."""
    added = most_added_by_sharding(spec, architecture)
    return tuple(replace(card, fit=open_fit(card.fit, is_certain=card.left_bytes >= added)) for card in cards)


def open_fit(fit: Fit, *, is_certain: bool) -> Fit:
    """Return a verdict where something is left out: memory decides it only with room for that."""
    return Fit.UNDECIDED if fit in (Fit.FITS, Fit.TIGHT, Fit.TOO_LARGE) and not is_certain else fit


def most_added_by_sharding(spec: TrialSpec, architecture: Architecture) -> int:
    """Return what sharding adds to a trial at most.

    That is the whole model gathered in bfloat16, and of each trained parameter a copy, its gradient and two states in
    float32.

    By hand, 1e9 parameters of which 1e6 are trained: 2,016,000,000 B.
    """
    trained = int(trainable_parameter_count(spec, architecture))
    return BFLOAT16_BYTES * int(parameter_count(architecture)) + _COPIES_OF_TRAINED * FLOAT32_BYTES * trained


_COPIES_OF_TRAINED = 4
"""Weights, gradients and two states of Adam."""


def _verdict(card: CardVerdict, least: int, most: int, kernels: OtherKernels) -> CardVerdict:
    """Return the verdict for a card between the bounds: Unsloth needs neither trl's kernels nor its engine of vLLM."""
    reserved = int(with_fragments(most))
    bounded = replace(
        card,
        fit=Fit.UNDECIDED,
        peak_allocated_bytes=most,
        peak_reserved_bytes=reserved,
        needed=Needed(least_bytes=least, likely_bytes=most, most_bytes=reserved),
        has_bounds=True,
        missing=None,
        no_engine="",
        server="",
    )
    if bounded.least_bytes > card.gpu.memory_bytes:
        return replace(bounded, fit=Fit.TOO_LARGE)
    if bounded.left_bytes >= 0 and kernels.counts_everything:
        return replace(bounded, fit=Fit.FITS)
    return bounded
