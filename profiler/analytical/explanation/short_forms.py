"""Short forms: the factors of each number of an instant, in at most 50 characters."""

from collections.abc import Mapping
from dataclasses import replace

from profiler.analytical.formulas.models.parameters import (
    is_mixture,
    key_width,
)
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    element_bytes,
    trainable_parameter_count,
    trained_element_bytes,
    trains_everything,
)
from profiler.analytical.formulas.models.value_models import critic_count
from profiler.analytical.formulas.rollout import kv_element_bytes
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.recipes.registry import micro_batch
from profiler.constraints.closed_form import SHARDED
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.memory import Category, Phase
from profiler.domain.text.count_text import count_text
from profiler.domain.trials.trial import Logprobs, TrialSpec

_SHARDED_CATEGORIES = (Category.GRADIENTS, Category.OPTIMIZER_STATE)

_GRADIENTS: Mapping[InstantName, str] = {
    InstantName.BACKWARD_HEAD: "{all} + head in float32 and {e} B",
    InstantName.BACKWARD_NORM: "{all} + a tied head's",
    InstantName.BACKWARD_LAYER: "{all} + a tied head's",
    InstantName.BACKWARD_FIRST_LAYER: "{all} + a tied head's",
    InstantName.BACKWARD_END: "{all} + the embedding's, fresh and tied",
}

_TRANSIENT: Mapping[InstantName, str] = {
    InstantName.PREFILL: "one layer of {generated} prompts",
    InstantName.GROWTH: "copies that autocast keeps",
    InstantName.DECODING: "a layer's keys and values for every head",
    InstantName.LAST_LOGITS: "the LM head's copy under autocast",
    InstantName.SAMPLING: "copies that autocast keeps",
    InstantName.SCORE_LAYER: "one layer: 4 x T x H and the MLP",
    InstantName.SCORE_HEAD: "T x H and the scored N x H",
    InstantName.VALUES: "one layer: 4 x T x H and the MLP",
    InstantName.REWARD_MODEL: "one layer of {generated} completions",
    InstantName.EVALUATION_ROLLOUT: "one layer, or copies that autocast keeps",
    InstantName.EVALUATION_REWARD: "one layer of {generated} completions",
    InstantName.EVALUATION_LOSS: "one layer, or T x H and the scored N x H",
    InstantName.FORWARD_LAYER: "{stack} + one layer",
    InstantName.FORWARD_HEAD: "{stack} + T x H",
    InstantName.BACKWARD_HEAD: "{stack} + N x H gradients",
    InstantName.BACKWARD_NORM: "{stack} + 4 float32 T x H",
    InstantName.BACKWARD_LAYER: "{stack} + {again}",
    InstantName.REDUCTION: "up to {stack} + {again}",
    InstantName.BACKWARD_FIRST_LAYER: "one layer + {again}",
    InstantName.BACKWARD_END: "rows whose own backward waits",
}


def short_forms(spec: TrialSpec, architecture: Architecture, instant: Instant) -> dict[Category, str]:
    """Return a short form per category of `instant`.

    T is the number of tokens of a micro-batch, N of those that are scored, H the hidden size.
    """
    if instant.phase is Phase.EVALUATION and spec.per_device_eval_batch_size is not None:
        spec = replace(spec, per_device_train_batch_size=spec.per_device_eval_batch_size, steps_per_generation=1)
    written = {
        Category.GRADIENTS: (
            f"{_of_critic(architecture)} x {trained_element_bytes(spec)} B"
            if instant.phase is Phase.CRITIC
            else _gradients(spec, architecture, instant.name)
        ),
        Category.OPTIMIZER_STATE: _states(spec, architecture),
        Category.ACTIVATIONS: _activations(spec, architecture, instant.name),
        Category.LOGITS: _logits(spec, architecture, instant.name),
        Category.KV_CACHE: _kv_cache(spec, architecture, instant.name),
        Category.INPUTS: _inputs(spec),
        Category.ENGINE: _engine(spec, instant.name),
        Category.WORKSPACE: _workspace(spec, instant.name),
    }
    if spec.distributed_type in SHARDED:
        # What is sharded has the words of its formula.
        written = {key: text for key, text in written.items() if key not in _SHARDED_CATEGORIES}
    words = instant.words()
    return {category: written.get(category, text) for category, text in words.items()}


def _of_critic(architecture: Architecture) -> str:
    return count_text(critic_count(architecture))


def _gradients(spec: TrialSpec, architecture: Architecture, name: InstantName) -> str:
    everything = _every_gradient(spec, architecture)
    if not trains_everything(spec):
        return everything
    form = _GRADIENTS.get(name, "{all}")
    if not architecture.tie_word_embeddings:
        form = form.replace(" + a tied head's", "").replace(", fresh and tied", "")
    return form.format(all=everything, e=trained_element_bytes(spec))


def _every_gradient(spec: TrialSpec, architecture: Architecture) -> str:
    return f"{count_text(trainable_parameter_count(spec, architecture))} x {trained_element_bytes(spec)} B"


def _states(spec: TrialSpec, architecture: Architecture) -> str:
    count = trainable_parameter_count(spec, architecture)
    if spec.critic:
        count = count + critic_count(architecture)
    return spec.optim.traits.state_text.format(n=count_text(count), e=trained_element_bytes(spec))


def _activations(spec: TrialSpec, architecture: Architecture, name: InstantName) -> str:
    layers, tokens = architecture.num_hidden_layers, micro_batch(spec).positions
    kept = f"{layers} inputs" if spec.gradient_checkpointing else f"{layers} layers"
    again = "one recomputed" if spec.gradient_checkpointing else "the MLP's gradients"
    form = _TRANSIENT.get(name, "")
    if name is InstantName.DECODING and is_mixture(architecture):
        return f"weights of the experts of {spec.generation_batch_size * architecture.experts_per_token} pairs"
    return form.format(stack=f"{kept} of {tokens} tokens", again=again, generated=spec.generation_batch_size)


def _logits(spec: TrialSpec, architecture: Architecture, name: InstantName) -> str:
    vocabulary = architecture.vocab_size
    if name in (InstantName.SAMPLING, InstantName.EVALUATION_ROLLOUT):
        return f"{spec.generation_batch_size} x {vocabulary} x 4 copies"
    if name is InstantName.LAST_LOGITS:
        return f"{spec.generation_batch_size} x {vocabulary} x 3 copies"
    batch = micro_batch(spec)
    if spec.logprobs.makes_all_logits:
        tokens, element = batch.completion_tokens, element_bytes(spec).output
        if spec.logprobs.label_loss is not None:
            tokens, element = batch.width, FLOAT32_BYTES
        rows = f"{batch.rows} x {tokens} x {vocabulary} x {element} B"
        return f"{rows}, ..."
    row = spec.logprobs in (Logprobs.SLICED, Logprobs.MINIBATCH)
    scored = batch.completion_tokens if row else batch.scored_tokens
    return f"a tile, min({scored}, 4096) x 32768 x {element_bytes(spec).compute} B, ..."


def _kv_cache(spec: TrialSpec, architecture: Architecture, name: InstantName) -> str:
    prefill = name is InstantName.PREFILL
    tokens = spec.max_prompt_length + (0 if prefill else spec.max_completion_length - 1)
    if name in (InstantName.REWARD_MODEL, InstantName.EVALUATION_REWARD):
        return f"all layers, {spec.generation_batch_size} x {tokens + 1} tokens"
    width, element = key_width(architecture), kv_element_bytes(spec)
    whole = f"2 x {architecture.num_hidden_layers} x {spec.generation_batch_size} x {tokens} x {width} x {element} B"
    return f"{whole} + 1 K" if name is InstantName.GROWTH else whole


def _inputs(spec: TrialSpec) -> str:
    if spec.recipe.facts.has_rollout:
        return f"ids and masks of {spec.generation_batch_size} rows, as int64"
    rows = spec.per_device_train_batch_size * spec.gradient_accumulation_steps
    return f"ids, masks and labels of {rows} rows, as int64"


def _engine(spec: TrialSpec, name: InstantName) -> str:
    whole = f"{spec.vllm_gpu_memory_utilization} of {spec.gpu}"
    if name is InstantName.ENGINE:
        return whole
    if spec.vllm_enable_sleep_mode and name is not InstantName.ENGINE_START:
        return "asleep: buffers of its graphs and sampler"
    return f"{whole} less activations"


def _workspace(spec: TrialSpec, name: InstantName) -> str:
    if name is InstantName.LOADED:
        return "the LM head, before it is tied"
    scratch = spec.optim.traits.scratch_text if name is InstantName.STEP else ""
    return f"cuBLAS, and {scratch}" if scratch else "cuBLAS, 2 threads"
