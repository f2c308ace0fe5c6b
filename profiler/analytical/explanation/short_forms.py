"""The short form of each number of an instant: what was multiplied with what, in 50 characters or fewer."""

from collections.abc import Mapping

from profiler.analytical.formulas.batch import micro_batch
from profiler.analytical.formulas.parameters import key_width, lora_parameter_count, parameter_count
from profiler.analytical.formulas.rollout import kv_element_bytes
from profiler.analytical.formulas.trained import (
    element_bytes,
    lora_rank,
    trainable_parameter_count,
    trained_element_bytes,
    trains_everything,
)
from profiler.analytical.timeline.instants import Instant, Moment
from profiler.domain.architecture import Architecture
from profiler.domain.memory import Category
from profiler.domain.optimizers import Optimizer
from profiler.domain.trial import Logprobs, TrialSpec, Tuning

LONGEST = 50
"""Characters of the longest short form."""

_STATES: Mapping[Optimizer, str] = {
    Optimizer.ADAMW_TORCH_FUSED: "{n} x 2 x {e} B, and 4 B a tensor",
    Optimizer.ADAMW_TORCH: "{n} x 2 x {e} B",
    Optimizer.ADAMW_8BIT: "{n} x 2 x 1 B; embeddings and small: 2 x 4 B",
    Optimizer.PAGED_ADAMW_8BIT: "scales and small tensors; states are paged out",
    Optimizer.ADAFACTOR: "(rows + columns) of each matrix x 4 B",
    Optimizer.SGD: "none",
}

_STEP_SCRATCH: Mapping[Optimizer, str] = {
    Optimizer.ADAMW_TORCH: "cuBLAS, and a square root of every matrix",
    Optimizer.ADAFACTOR: "cuBLAS, and float32 copies of the largest",
}

_GRADIENTS: Mapping[Moment, str] = {
    Moment.BACKWARD_HEAD: "{all} + head in float32 and {e} B",
    Moment.BACKWARD_NORM: "{all} + a tied head's",
    Moment.BACKWARD_LAYER: "{all} + a tied head's",
    Moment.BACKWARD_FIRST_LAYER: "{all} + a tied head's",
    Moment.BACKWARD_END: "{all} + the embedding's, fresh and tied",
}

_PASSING: Mapping[Moment, str] = {
    Moment.PREFILL: "one layer of {generated} prompts",
    Moment.GROWTH: "copies that autocast keeps",
    Moment.DECODING: "a layer's keys and values for every head",
    Moment.LAST_LOGITS: "the LM head's copy under autocast",
    Moment.SAMPLING: "copies that autocast keeps",
    Moment.SCORE_LAYER: "one layer: 4 x T x H and the MLP",
    Moment.SCORE_HEAD: "T x H and the scored N x H",
    Moment.FORWARD_LAYER: "{stack} + one layer",
    Moment.FORWARD_HEAD: "{stack} + T x H",
    Moment.BACKWARD_HEAD: "{stack} + N x H gradients",
    Moment.BACKWARD_NORM: "{stack} + 4 float32 T x H",
    Moment.BACKWARD_LAYER: "{stack} + {again}",
    Moment.BACKWARD_FIRST_LAYER: "one layer + {again}",
    Moment.BACKWARD_END: "rows whose own backward waits",
}


def short_forms(spec: TrialSpec, architecture: Architecture, instant: Instant) -> dict[Category, str]:
    """A short form for each category of `instant`. T is tokens of a micro-batch, N those scored, H the hidden size."""
    written = {
        Category.WEIGHTS: _weights(spec, architecture),
        Category.REFERENCE: _parameters(architecture, element_bytes(spec).weight),
        Category.ADAPTERS: _adapters(spec, architecture),
        Category.GRADIENTS: _gradients(spec, architecture, instant.moment),
        Category.OPTIMIZER_STATE: _states(spec, architecture),
        Category.ACTIVATIONS: _activations(spec, architecture, instant.moment),
        Category.LOGITS: _logits(spec, architecture, instant.moment),
        Category.KV_CACHE: _kv_cache(spec, architecture, instant.moment),
        Category.INPUTS: _inputs(spec),
        Category.WORKSPACE: _workspace(spec, instant.moment),
    }
    return {category: text for category, text in written.items() if instant.sizes.get(category, 0)}


def _count(number: object) -> str:
    """``7615616512`` as ``"7.62e9"``."""
    value = int(str(number))
    for exponent in (9, 6, 3):
        if value >= 10**exponent:
            return f"{value / 10**exponent:.3g}e{exponent}"
    return str(value)


def _parameters(architecture: Architecture, element: object) -> str:
    return f"{_count(parameter_count(architecture))} parameters x {element} B"


def _weights(spec: TrialSpec, architecture: Architecture) -> str:
    element = element_bytes(spec).weight
    if spec.tuning is Tuning.QLORA:
        return f"layers in nf4 (0.52 B), the rest {element} B each"
    return _parameters(architecture, element)


def _adapters(spec: TrialSpec, architecture: Architecture) -> str:
    rank = lora_rank(spec)
    count = lora_parameter_count(architecture, rank, spec.lora_target_modules or ())
    return f"{_count(count)} x {element_bytes(spec).adapter} B, rank {rank}"


def _gradients(spec: TrialSpec, architecture: Architecture, moment: Moment) -> str:
    element = trained_element_bytes(spec)
    everything = f"{_count(trainable_parameter_count(spec, architecture))} x {element} B"
    if not trains_everything(spec):
        return everything
    form = _GRADIENTS.get(moment, "{all}")
    if not architecture.tie_word_embeddings:
        form = form.replace(" + a tied head's", "").replace(", fresh and tied", "")
    return form.format(all=everything, e=element)


def _states(spec: TrialSpec, architecture: Architecture) -> str:
    count = _count(trainable_parameter_count(spec, architecture))
    return _STATES[spec.optim].format(n=count, e=trained_element_bytes(spec))


def _activations(spec: TrialSpec, architecture: Architecture, moment: Moment) -> str:
    layers, tokens = architecture.num_hidden_layers, micro_batch(spec).positions
    kept = f"{layers} inputs" if spec.gradient_checkpointing else f"{layers} layers"
    again = "one made anew" if spec.gradient_checkpointing else "the MLP's gradients"
    form = _PASSING.get(moment, "")
    return form.format(stack=f"{kept} of {tokens} tokens", again=again, generated=spec.generation_batch_size)


def _logits(spec: TrialSpec, architecture: Architecture, moment: Moment) -> str:
    vocabulary = architecture.vocab_size
    if moment is Moment.SAMPLING:
        return f"{spec.generation_batch_size} x {vocabulary} x 4 copies"
    if moment is Moment.LAST_LOGITS:
        return f"{spec.generation_batch_size} x {vocabulary} x 3 copies"
    batch = micro_batch(spec)
    if spec.logprobs is Logprobs.FULL:
        rows = f"{batch.rows} x {batch.completion_tokens} x {vocabulary} x {element_bytes(spec).output} B"
        return f"{rows}, and beside"
    row = spec.logprobs in (Logprobs.SLICED, Logprobs.MINIBATCH)
    scored = batch.completion_tokens if row else batch.scored_tokens
    return f"a tile, min({scored}, 4096) x 32768 x {element_bytes(spec).compute} B, ..."


def _kv_cache(spec: TrialSpec, architecture: Architecture, moment: Moment) -> str:
    prefill = moment is Moment.PREFILL
    tokens = spec.max_prompt_length + (0 if prefill else spec.max_completion_length - 1)
    width, element = key_width(architecture), kv_element_bytes(spec)
    whole = f"2 x {architecture.num_hidden_layers} x {spec.generation_batch_size} x {tokens} x {width} x {element} B"
    return f"{whole} + 1 K" if moment is Moment.GROWTH else whole


def _inputs(spec: TrialSpec) -> str:
    return f"ids and masks of {spec.generation_batch_size} rows, as int64"


def _workspace(spec: TrialSpec, moment: Moment) -> str:
    if moment is Moment.LOADED:
        return "the LM head, before it is tied"
    return _STEP_SCRATCH.get(spec.optim, "cuBLAS, 2 threads") if moment is Moment.STEP else "cuBLAS, 2 threads"
