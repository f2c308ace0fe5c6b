"""The largest single tensors of a trial by closed form, to recognise the request that a card refused."""

from dataclasses import dataclass
from math import prod

from profiler.analytical.formulas.head import TOKEN_CHUNK, VOCABULARY_CHUNK
from profiler.analytical.formulas.models.parameters import cached_widths, is_mixture, mlp_width, widest_inner
from profiler.analytical.formulas.models.trained import FLOAT32_BYTES, element_bytes, trains_everything
from profiler.analytical.formulas.rollout import kv_element_bytes
from profiler.analytical.timeline.recipes.registry import micro_batch
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.memory import Phase
from profiler.domain.trials.trial import CHUNK_TOKENS, Attention, TrialSpec


@dataclass(frozen=True, kw_only=True)
class NamedTensor:
    """One tensor of a trial."""

    name: str
    shape: tuple[int, ...]
    element_bytes: int
    phases: tuple[Phase, ...]
    """Where it is allocated."""
    happens: bool = True
    """False if only an earlier version of trl makes it."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * self.element_bytes


_WITH_GRADIENT = (Phase.FORWARD, Phase.BACKWARD)


def named_tensors(spec: TrialSpec, architecture: Architecture) -> tuple[NamedTensor, ...]:
    """Return the large tensors of `spec`, and the logits that earlier versions of trl make."""
    head = _head(spec, architecture) if spec.recipe.facts.has_lm_head else []
    found = [*head, *_layers(spec, architecture), *_weights(spec, architecture)]
    if spec.recipe.facts.has_rollout and not spec.use_vllm:
        found += _rollout(spec, architecture)
    return tuple(found)


def _head(spec: TrialSpec, architecture: Architecture) -> list[NamedTensor]:
    sizes, batch = element_bytes(spec), micro_batch(spec)
    rows, vocabulary = int(batch.rows), architecture.vocab_size
    phases = (Phase.SCORE, *_WITH_GRADIENT) if spec.beta or spec.precompute_ref_log_probs else _WITH_GRADIENT
    output, compute = int(sizes.output), int(sizes.compute)
    is_full, is_of_labels = spec.logprobs.makes_all_logits, spec.logprobs.label_loss is not None
    completion = (rows, int(batch.completion_tokens) + 1, vocabulary)
    every = (rows, int(batch.width), vocabulary)
    tile = (min(int(batch.scored_tokens), TOKEN_CHUNK), VOCABULARY_CHUNK)
    chunk = (min(int(batch.scored_tokens), CHUNK_TOKENS), vocabulary)
    found = [
        NamedTensor(
            name="logits of the completions", shape=completion, element_bytes=size, phases=phases, happens=is_full
        )
        for size in (() if is_of_labels else dict.fromkeys((output, compute)))
    ]
    found += [
        NamedTensor(
            name="logits of every position", shape=every, element_bytes=size, phases=phases, happens=is_of_labels
        )
        for size in dict.fromkeys((output, compute, *((FLOAT32_BYTES,) if is_of_labels else ())))
    ]
    if spec.logprobs.has_fused_head:
        found.append(NamedTensor(name="one tile of the logits", shape=tile, element_bytes=compute, phases=phases))
    found += [
        NamedTensor(name="one chunk of the logits", shape=chunk, element_bytes=size, phases=phases)
        for size in (dict.fromkeys((compute, FLOAT32_BYTES)) if spec.logprobs.chunked_loss is not None else ())
    ]
    return found


def _layers(spec: TrialSpec, architecture: Architecture) -> list[NamedTensor]:
    sizes, batch = element_bytes(spec), micro_batch(spec)
    positions, hidden = int(batch.positions), architecture.hidden_size
    stream, compute = int(sizes.stream), int(sizes.compute)
    inner = (positions, int(widest_inner(architecture)))
    found = [
        NamedTensor(name="an MLP's inner values", shape=inner, element_bytes=compute, phases=_WITH_GRADIENT),
        NamedTensor(name="an MLP's inner values", shape=inner, element_bytes=FLOAT32_BYTES, phases=_WITH_GRADIENT),
        NamedTensor(name="hidden states", shape=(positions, hidden), element_bytes=stream, phases=_WITH_GRADIENT),
        NamedTensor(name="a norm's input", shape=(positions, hidden), element_bytes=4, phases=_WITH_GRADIENT),
    ]
    if spec.attn_implementation is Attention.EAGER:
        scores = (int(batch.rows), architecture.num_attention_heads, int(batch.width), int(batch.width))
        found += [
            NamedTensor(name="attention scores", shape=scores, element_bytes=size, phases=_WITH_GRADIENT)
            for size in dict.fromkeys((compute, FLOAT32_BYTES))
        ]
    return found


def _weights(spec: TrialSpec, architecture: Architecture) -> list[NamedTensor]:
    sizes, hidden = element_bytes(spec), architecture.hidden_size
    weight = int(sizes.weight)
    matrices: dict[str, tuple[int, ...]] = {"the embedding or LM head": (architecture.vocab_size, hidden)}
    if width := int(mlp_width(architecture)):
        matrices["an MLP's matrix"] = (width, hidden)
    if is_mixture(architecture):
        experts, inner = architecture.num_experts, architecture.expert_width
        matrices["gate and up of a layer's experts"] = (experts, 2 * inner, hidden)
        matrices["the down projections of a layer's experts"] = (experts, hidden, inner)
    found = []
    for name, shape in matrices.items():
        found.append(NamedTensor(name=f"weights of {name}", shape=shape, element_bytes=weight, phases=(Phase.LOAD,)))
        if trains_everything(spec):
            phases = (Phase.BACKWARD, Phase.OPTIMIZER)
            found += [
                NamedTensor(name=f"gradient or state of {name}", shape=shape, element_bytes=size, phases=phases)
                for size in dict.fromkeys((weight, FLOAT32_BYTES))
            ]
    return found


def _rollout(spec: TrialSpec, architecture: Architecture) -> list[NamedTensor]:
    rows, element = spec.generation_batch_size, int(kv_element_bytes(spec))
    tokens = spec.max_prompt_length + spec.max_completion_length - 1
    inner, weight = int(widest_inner(architecture)), int(element_bytes(spec).weight)
    prompts = (rows * spec.max_prompt_length, inner)
    cache = (rows, tokens, int(cached_widths(architecture)[0]))
    return [
        NamedTensor(name="an MLP's inner values", shape=prompts, element_bytes=weight, phases=(Phase.ROLLOUT,)),
        NamedTensor(name="keys of one layer at the end", shape=cache, element_bytes=element, phases=(Phase.ROLLOUT,)),
        NamedTensor(
            name="scores of one token", shape=(rows, architecture.vocab_size), element_bytes=4, phases=(Phase.ROLLOUT,)
        ),
    ]
