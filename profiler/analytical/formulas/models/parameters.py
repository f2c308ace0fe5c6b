"""Parameters of a decoder: their shapes and counts, and the linear layers that LoRA adapts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from profiler.analytical.formulas.models.tensor_groups import (
    AdaptedExperts,
    Projection,
    TensorGroup,
    counted_once,
    lora_pairs,
    outer_adapted,
    outer_tensors,
    tower_lora_tensors,
    tower_tensors,
)
from profiler.analytical.formulas.sizes.quantities import Count, both, everywhere, larger, where
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, layer_kinds
from profiler.domain.architectures.architecture import LinearAttention
from profiler.domain.architectures.families import LAYER_GATE, LAYER_PROJECTION, LINEAR_OUTPUT, Layers, family_of
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import ALL_LINEAR

_ROUTER = "gate"
LINEAR_ROUTER = "proj"
"""The linear layer of Gemma 4's router."""
SHARED_GATE = "shared_expert_gate"
"""The linear layer that weighs the shared expert of Qwen2-MoE."""


def query_width(architecture: DecoderShape) -> Count:
    """Return the width of all query heads together: heads x head_dim."""
    return architecture.num_attention_heads * _key_dim(architecture)


def key_width(architecture: DecoderShape) -> Count:
    """Return the width of all key heads together, which is that of all value heads: key-value heads x head_dim.

    Values of latent attention have another width, which is that of its output.
    """
    return architecture.num_key_value_heads * _key_dim(architecture)


def _key_dim(architecture: DecoderShape) -> Count:
    return architecture.head_dim if architecture.latent is None else architecture.latent.head_dim


def output_width(architecture: DecoderShape) -> Count:
    """Return the width of the output of attention. By hand, DeepSeek-V3: 128 x 128, and its queries have 128 x 192."""
    if architecture.linear is not None:
        return architecture.linear.value_width
    if architecture.latent is None:
        return query_width(architecture)
    return architecture.num_attention_heads * architecture.latent.v_head_dim


def cached_widths(architecture: DecoderShape) -> tuple[Count, Count]:
    """Return the values per token of the two tensors of a layer's cache: keys and values, or what these are made of.

    By hand, DeepSeek-V3: 512 and 64, in place of 128 x 192 and 128 x 128. Layers that share keys have none: 0 and 0.

    Source: `past_key_values.update(kv_nope, k_rot, ...)` in transformers' `DeepseekV3Attention`.
    """
    latent = architecture.latent
    if architecture.shares_keys:
        return 0, 0
    if latent is None:
        return key_width(architecture), key_width(architecture)
    return latent.kv_lora_rank, latent.qk_rope_head_dim


def is_mixture(architecture: DecoderShape) -> bool:
    """Return whether a router chooses among several experts in each layer. Models of one type are alike in that."""
    return everywhere(architecture.num_experts > 1)


def mlp_width(architecture: DecoderShape) -> Count:
    """Return the inner size of the MLP of linear layers: of a mixture, that of its shared expert, or 0."""
    return architecture.shared_expert_width if is_mixture(architecture) else architecture.intermediate_size


def widest_inner(architecture: DecoderShape) -> Count:
    """Return the values per token of the widest tensor in an MLP: of experts, gate and up together, or the result."""
    first = [widest_inner(kind) for kind in architecture.first_layers]
    if not is_mixture(architecture):
        return larger(architecture.intermediate_size, *first)
    pairs = architecture.experts_per_token * larger(2 * architecture.expert_width, architecture.hidden_size)
    return larger(architecture.shared_expert_width, pairs, *first)


def has_shared_expert(architecture: DecoderShape) -> bool:
    """Return whether one expert computes every token. Models of one type are alike in that."""
    return everywhere(architecture.shared_expert_width > 0)


def norms_experts(architecture: DecoderShape) -> bool:
    """Return whether experts come after an MLP, with norms of their own."""
    return is_mixture(architecture) and layers_of(architecture).norms_experts


def layers_of(architecture: DecoderShape) -> Layers:
    """Return where the decoder layers of the model's family differ from Llama's."""
    return family_of(architecture.model_type).layers


def norms_after(architecture: DecoderShape) -> Count:
    """Return the norms after attention, which are as many as those after the MLP. By hand, Gemma 2, OLMo 2: 1 each."""
    before = 1 if layers_of(architecture).has_input_norms else 0
    return architecture.norms_per_layer // 2 - before


def expert_weights(architecture: DecoderShape) -> Count:
    """Return the elements of the down projections of all experts of a layer; gate and up have twice as many."""
    return architecture.num_experts * architecture.hidden_size * architecture.expert_width


@counted_once
def projections(architecture: DecoderShape) -> tuple[Projection, ...]:
    """Return the linear layers of one decoder layer; those of a mixture are in its attention and its shared expert.

    Source: `Qwen2Attention` and `Qwen2MLP` in transformers; Llama and Qwen3 have the same without biases. The
    weights of `Qwen3MoeExperts` have three dimensions and belong to no linear layer, nor does that of its router.
    """
    hidden, inner, layers = architecture.hidden_size, mlp_width(architecture), layers_of(architecture)
    query, key, latent = query_width(architecture), key_width(architecture), architecture.latent

    def part(name: str, in_features: Count, out_features: Count) -> Projection:
        has_bias = both(architecture.qkv_bias, name in layers.biased)
        return Projection(name=name, in_features=in_features, out_features=out_features, has_bias=has_bias)

    if layers.has_fused_attention:
        inputs: tuple[Projection, ...] = (part("qkv_proj", hidden, query + 2 * key),)
    elif latent is not None:
        rank, compressed = latent.q_lora_rank, latent.kv_lora_rank
        inputs = (part("q_proj", hidden, query),)
        if rank is not None:
            inputs = (part("q_a_proj", hidden, rank), part("q_b_proj", rank, query))
        inputs += (part("kv_a_proj_with_mqa", hidden, compressed + latent.qk_rope_head_dim),)
        inputs += (part("kv_b_proj", compressed, architecture.num_attention_heads * latent.expanded_dim),)
    elif architecture.linear is not None:
        widths = _linear_inputs(layers, architecture.linear)
        inputs = tuple(part(name, hidden, width) for name, width in zip(layers.linear_inputs, widths, strict=True))
    else:
        gated = 2 * query if layers.gates_output else query
        values = () if architecture.keys_are_values else (part("v_proj", hidden, key),)
        keys = () if architecture.shares_keys else (part("k_proj", hidden, key), *values)
        inputs = (part("q_proj", hidden, gated), *keys)
    output = "o_proj" if architecture.linear is None else LINEAR_OUTPUT
    attention = (*inputs, part(output, output_width(architecture), hidden))
    if is_mixture(architecture) and not has_shared_expert(architecture):
        return attention
    if layers.has_fused_mlp:
        gate_and_up: tuple[Projection, ...] = (part("gate_up_proj", hidden, 2 * inner),)
    else:
        gate_and_up = (part("gate_proj", hidden, inner), part("up_proj", hidden, inner))
    dense = (*attention, *gate_and_up, part("down_proj", inner, hidden))
    if (second := architecture.layer_inputs) is not None:
        dense += (part(LAYER_GATE, hidden, second.width), part(LAYER_PROJECTION, second.width, hidden))
    if not is_mixture(architecture) or layers.adds_shared_expert:
        return dense
    weighing = part(SHARED_GATE, hidden, 1)
    return (*dense, part(LINEAR_ROUTER, hidden, architecture.num_experts) if layers.norms_experts else weighing)


def _linear_inputs(layers: Layers, linear: LinearAttention) -> tuple[int, ...]:
    """Return the widths of the linear layers before a delta rule: of all at once and of two gates, or of each."""
    if layers.joins_linear_inputs:
        return linear.conv_width + linear.value_width, 2 * linear.num_value_heads
    return linear.conv_width, linear.value_width, linear.num_value_heads, linear.num_value_heads


@counted_once
def base_tensors(architecture: DecoderShape) -> tuple[TensorGroup, ...]:
    """Return all parameters of the model; a tied LM head counts once, and a head of scores has its own matrix."""
    hidden = architecture.hidden_size
    groups = [TensorGroup(shape=(architecture.vocab_size, hidden), copies=1, is_embedding=True, is_outer=True)]
    for kind in layer_kinds(architecture):
        layers = kind.num_hidden_layers
        groups += [replace(group, copies=group.copies * layers) for group in layer_tensors(kind)]
    groups.append(TensorGroup(shape=(hidden,), copies=1, is_outer=True))
    groups += outer_tensors(architecture)
    if architecture.vision is not None:
        groups.extend(tower_tensors(architecture.vision))
    groups.extend(TensorGroup(shape=part.shape, copies=part.copies) for part in architecture.idle)
    if architecture.scores:
        groups.append(TensorGroup(shape=(architecture.scores, hidden), copies=1))
    else:
        head = where(architecture.tie_word_embeddings, 0, 1)
        groups.append(TensorGroup(shape=(architecture.vocab_size, hidden), copies=head, is_outer=True))
    return tuple(group for group in groups if not (isinstance(group.copies, int) and group.copies == 0))


def reached_tensors(architecture: DecoderShape) -> tuple[TensorGroup, ...]:
    """Return the parameters that get a gradient where all are trained: without towers that rows pass by.

    By hand, toy with an idle matrix of 8 x 8: its parameters without 64.
    """
    if not architecture.idle:
        return base_tensors(architecture)
    return base_tensors(cast("DecoderShape", replace(cast("Any", architecture), idle=())))


def scoring_model(architecture: DecoderShape) -> DecoderShape:
    """Return the decoder with a head of one score, without bias, in place of its LM head.

    By hand, toy (V = 100, H = 8): tied, its parameters and 8; untied, its parameters without 800, and 8.

    Source: transformers' `GenericForSequenceClassification` with `num_labels` of 1.
    """
    return cast("DecoderShape", replace(cast("Any", architecture), scores=1, tie_word_embeddings=False))


def model_of_recipe(recipe: Recipe, architecture: DecoderShape) -> DecoderShape:
    """Return the model that the trainer of a recipe makes of a decoder: itself, or with a head of one score."""
    return architecture if recipe.facts.has_lm_head else scoring_model(architecture)


@counted_once
def layer_tensors(architecture: DecoderShape) -> tuple[TensorGroup, ...]:
    """Return the parameters of one decoder layer: linear layers, experts with their router, and norms."""
    hidden, layers = architecture.hidden_size, layers_of(architecture)
    groups: list[TensorGroup] = []
    for projection in projections(architecture):
        groups.append(TensorGroup(shape=(projection.out_features, projection.in_features), copies=1))
        groups.append(TensorGroup(shape=(projection.out_features,), copies=where(projection.has_bias, 1, 0)))
    if is_mixture(architecture):
        experts, width = architecture.num_experts, architecture.expert_width
        groups.append(TensorGroup(shape=(experts, 2 * width, hidden), copies=1))
        groups.append(TensorGroup(shape=(experts, hidden, width), copies=1))
        router = ((hidden,), (experts,)) if layers.norms_experts else ((experts, hidden),)
        groups += [TensorGroup(shape=shape, copies=1) for shape in router]
        if layers.has_biased_experts:
            groups += [
                TensorGroup(shape=shape, copies=1) for shape in ((experts, 2 * width), (experts, hidden), (experts,))
            ]
    if (linear := architecture.linear) is not None:
        shapes = ((linear.conv_width, 1, linear.conv_kernel_dim), (linear.value_head_dim,))
        groups += [TensorGroup(shape=shape, copies=1) for shape in shapes]
        groups.append(TensorGroup(shape=(linear.num_value_heads,), copies=2))
    if layers.has_sinks:
        groups.append(TensorGroup(shape=(architecture.num_attention_heads,), copies=1))
    return (*groups, *_norms(architecture))


def _norms(architecture: DecoderShape) -> list[TensorGroup]:
    """Return the weights of the norms of one decoder layer."""
    norms = architecture.norms_per_layer + (3 if norms_experts(architecture) else 0)
    of_layer = TensorGroup(shape=(architecture.hidden_size,), copies=norms)
    latent = architecture.latent
    of_latent = [TensorGroup(shape=(rank,), copies=1) for rank in latent.ranks] if latent else []
    return [replace(group, is_outer=True) for group in (of_layer, *of_latent, *_head_norms(architecture))]


def norm_count(architecture: DecoderShape) -> Count:
    """Return the number of parameters of all norms of the decoder. By hand, qwen2.5-0.5b: 49 x 896 = 43,904."""
    of_layers = sum(
        kind.num_hidden_layers * sum(group.total for group in _norms(kind)) for kind in layer_kinds(architecture)
    )
    of_inputs = architecture.layer_inputs.width if architecture.layer_inputs else 0
    return of_layers + of_inputs + architecture.hidden_size


def _head_norms(architecture: DecoderShape) -> list[TensorGroup]:
    """Return the weights of norms over queries and keys: of each head, or of all heads at once (OLMo 2, OLMoE)."""
    norms = where(architecture.qk_norm, 1, 0) if architecture.linear is None else 0
    if not layers_of(architecture).normalises_all_heads:
        return [TensorGroup(shape=(architecture.head_dim,), copies=norms if architecture.shares_keys else 2 * norms)]
    widths = (query_width(architecture), key_width(architecture))
    return [TensorGroup(shape=(width,), copies=norms) for width in widths]


def layer_parameter_count(architecture: DecoderShape) -> Count:
    """Return the number of parameters of one decoder layer. By hand, qwen2.5-0.5b: 14,912,384."""
    return sum(group.total for group in layer_tensors(architecture))


def parameter_count(architecture: DecoderShape) -> Count:
    """Return the number of parameters of the model, the sum over `base_tensors`.

    By hand, qwen2.5-0.5b: 151,936 x 896 + 24 x (896 x (896 + 128 + 128 + 896) + 1,152 + 3 x 896 x 4,864 + 2 x 896)
    + 896 = 494,032,768.
    """
    return sum(group.total for group in base_tensors(architecture))


def active_parameter_count(architecture: DecoderShape) -> Count:
    """Return the number of parameters that compute one token: all but those of the experts that it does not use.

    By hand, Qwen3-30B-A3B: 30,532,122,624 - 48 x (128 - 8) x 3 x 2,048 x 768 = 3,353,031,168.
    """
    unused: Count = 0
    for kind in layer_kinds(architecture):
        others = where(kind.num_experts > 1, kind.num_experts - kind.experts_per_token, 0)
        unused = unused + kind.num_hidden_layers * others * 3 * kind.hidden_size * kind.expert_width
    return parameter_count(architecture) - unused


def adapted_projections(architecture: DecoderShape, targets: Sequence[str]) -> tuple[Projection, ...]:
    """Return the linear layers of one decoder layer that get an adapter: all of them for peft's `all-linear`.

    Not those of other MLPs that have the names of experts in transformers 4: peft takes these names for parameters.
    """
    everything, of_experts = tuple(targets) == (ALL_LINEAR,), layers_of(architecture).expert_names
    named = tuple(part for part in projections(architecture) if everything or part.name in targets)
    return tuple(part for part in named if part.name not in of_experts)


def lora_tensors(architecture: DecoderShape, rank: Count, targets: Sequence[str]) -> tuple[TensorGroup, ...]:
    """Return all LoRA matrices: for a layer of shape [out, in], A is [rank, in] and B is [out, rank].

    For `embed_tokens` and `lm_head` with vocabulary and hidden size. A head of scores is trained as a whole, as a copy
    (`PeftModelForSequenceClassification` in peft's `peft_model.py`). Source: peft's `LoraLayer.update_layer`.
    """
    groups = layer_lora_tensors(architecture, rank, targets)
    groups += expert_lora_tensors(architecture, rank, targets)
    outside = sum(name in targets for name in ("embed_tokens", "lm_head"))
    if outside:
        groups.append(TensorGroup(shape=(rank, architecture.vocab_size), copies=outside))
        groups.append(TensorGroup(shape=(architecture.hidden_size, rank), copies=outside))
    groups += lora_pairs(outer_adapted(architecture, targets), rank)
    if architecture.vision is not None:
        groups.extend(tower_lora_tensors(architecture.vision, rank, targets))
    if architecture.scores:
        groups.append(TensorGroup(shape=(architecture.scores, architecture.hidden_size), copies=1))
    return tuple(groups)


def idle_lora_tensors(architecture: DecoderShape, rank: Count, targets: Sequence[str]) -> tuple[TensorGroup, ...]:
    """Return the LoRA matrices of towers that rows pass by, which get no gradient.

    By hand, rank 2 on an idle layer of 8 x 16: A [2, 16] and B [8, 2].
    """
    everything = tuple(targets) == (ALL_LINEAR,)
    return tuple(
        TensorGroup(shape=shape, copies=part.copies)
        for part in architecture.idle
        if part.layer and (everything or part.layer in targets)
        for shape in ((rank, part.shape[1]), (part.shape[0], rank))
    )


def layer_lora_tensors(architecture: DecoderShape, rank: Count, targets: Sequence[str]) -> list[TensorGroup]:
    """Return the LoRA matrices of the linear layers of all decoder layers."""
    return [
        group
        for kind in layer_kinds(architecture)
        for group in lora_pairs(adapted_projections(kind, targets), rank, kind.num_hidden_layers)
    ]


def expert_names(architecture: DecoderShape) -> tuple[str, ...]:
    """Return the names by which peft adapts gate, up and down of the experts, and their router; none if it does not."""
    names = layers_of(architecture).expert_names if is_mixture(architecture) else ()
    return (*names, _ROUTER) if names else ()


def adapted_experts(architecture: DecoderShape, targets: Sequence[str]) -> AdaptedExperts:
    """Return what peft adapts of the experts: it maps the names of their layers in transformers 4 to parameters.

    Of `qwen2_moe` it adapts linear layers only.

    Source: `_convert_peft_config_moe` in peft's `transformers_weight_conversion.py`, peft 0.21.
    """
    names = expert_names(architecture)
    if not names:
        return AdaptedExperts(gate_up=False, down=False, router=False)
    everything = tuple(targets) == (ALL_LINEAR,)
    gate, _, down, router = (everything or name in targets for name in names)
    return AdaptedExperts(gate_up=gate, down=down, router=router)


def expert_lora_tensors(architecture: DecoderShape, rank: Count, targets: Sequence[str]) -> list[TensorGroup]:
    """Return the LoRA matrices of experts: those of all experts of a layer are one A and one B.

    Gate and up are one parameter, whose rank is twice as large. By hand, 16 experts of 4 x 2, rank 3: gate and up have
    A [96, 4] and B [4, 96], down A [48, 2] and B [4, 48].

    Source: `ParamWrapper.update_layer` in peft's `lora/layer.py`.
    """
    groups: list[TensorGroup] = []
    for kind in layer_kinds(architecture):
        found = adapted_experts(kind, targets)
        experts, hidden, width = kind.num_experts, kind.hidden_size, kind.expert_width
        shapes: list[tuple[Count, Count]] = []
        if found.gate_up:
            shapes += [(2 * rank * experts, hidden), (2 * width, 2 * rank * experts)]
        if found.down:
            shapes += [(rank * experts, width), (hidden, rank * experts)]
        if found.router:
            shapes += [(rank, hidden), (experts, rank)]
        groups += [TensorGroup(shape=shape, copies=kind.num_hidden_layers) for shape in shapes]
    return groups


def lora_parameter_count(architecture: DecoderShape, rank: Count, targets: Sequence[str]) -> Count:
    """Return the number of parameters of the adapters: rank x (in + out) per adapted layer."""
    return sum(group.total for group in lora_tensors(architecture, rank, targets))
