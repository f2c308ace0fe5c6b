"""States of bitsandbytes' 8-bit AdamW, tensor by tensor, compared with sizes computed by hand.

The model has a tensor of each kind: an embedding, an untied LM head, matrices of 4,096 values and more, smaller
matrices, and vectors. bitsandbytes keeps the states of embeddings (transformers asks for that) and of tensors of fewer
than 4,096 values in float32, all others in one byte per value with a float32 per 256 values.
"""

from functools import cache
from typing import Any

import pytest
import torch
from simulating import Simulated, simulate

from profiler.analytical.formulas.models.tensor_groups import TensorGroup
from profiler.analytical.optimizers import optimizer_state
from profiler.domain.memory import Category
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.optimizers import Optimizer

VOCABULARY, HIDDEN, MLP = 2048, 64, 160
MODEL: dict[str, Any] = dict(BUILTIN_MODELS["tiny"].config) | {
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}
IN_FLOAT32 = {
    "model.embed_tokens.weight": VOCABULARY * HIDDEN,
    "model.layers.0.self_attn.k_proj.weight": 32 * HIDDEN,
    "model.layers.0.self_attn.v_proj.weight": 32 * HIDDEN,
    "model.layers.0.self_attn.q_proj.bias": 64,
    "model.layers.0.self_attn.k_proj.bias": 32,
    "model.layers.0.self_attn.v_proj.bias": 32,
    "model.layers.0.input_layernorm.weight": HIDDEN,
    "model.layers.0.post_attention_layernorm.weight": HIDDEN,
    "model.norm.weight": HIDDEN,
}
IN_A_BYTE = {
    "model.layers.0.self_attn.q_proj.weight": 4096,  # exactly the limit
    "model.layers.0.self_attn.o_proj.weight": 4096,
    "model.layers.0.mlp.gate_proj.weight": MLP * HIDDEN,
    "model.layers.0.mlp.up_proj.weight": MLP * HIDDEN,
    "model.layers.0.mlp.down_proj.weight": MLP * HIDDEN,
    "lm_head.weight": VOCABULARY * HIDDEN,  # a linear layer, not an embedding
}
"""Values by name; the second layer is like the first."""


@cache
def simulated(optim: Optimizer) -> Simulated:
    return simulate(optim=optim, model_config=MODEL)


@cache
def states(optim: Optimizer) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors of the state of each parameter, by name of the parameter and of the tensor."""
    trainer = simulated(optim).trainer
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    return {
        name: {key: value for key, value in optimizer.state[parameter].items() if isinstance(value, torch.Tensor)}
        for name, parameter in trainer.model.named_parameters()
    }


def test_the_model_has_every_kind_of_tensor() -> None:
    names = {name.replace("layers.1.", "layers.0.") for name in states(Optimizer.ADAMW_8BIT)}
    assert names == IN_FLOAT32.keys() | IN_A_BYTE.keys()


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_states_in_float32(name: str) -> None:
    found = {key: value.nbytes for key, value in states(Optimizer.ADAMW_8BIT)[name].items()}
    assert found == {"state1": 4 * IN_FLOAT32[name], "state2": 4 * IN_FLOAT32[name]}


@pytest.mark.parametrize("name", IN_A_BYTE)
def test_states_in_a_byte(name: str) -> None:
    values, blocks = IN_A_BYTE[name], IN_A_BYTE[name] // 256
    found = {key: value.nbytes for key, value in states(Optimizer.ADAMW_8BIT)[name].items()}
    assert found == {
        "state1": values,
        "state2": values,
        "absmax1": 4 * blocks,
        "absmax2": 4 * blocks,
        # Tables of 256 float32 values, shared by all tensors.
        "qmap1": 4 * 256,
        "qmap2": 4 * 256,
    }


def rounded(size_bytes: int) -> int:
    return -(-size_bytes // 512) * 512


def test_the_sum_equals_the_memory_of_the_states() -> None:
    def times(name: str) -> int:
        return 2 if "layers" in name else 1

    wide = sum(times(name) * 2 * rounded(4 * values) for name, values in IN_FLOAT32.items())
    narrow = sum(
        times(name) * 2 * (rounded(values) + rounded(4 * (values // 256))) for name, values in IN_A_BYTE.items()
    )
    left = simulated(Optimizer.ADAMW_8BIT).left_at_the_end()
    assert left[Category.OPTIMIZER_STATE] == wide + narrow + 2 * 4 * 256


def test_paged_states_of_100_000_values_or_more_are_not_on_the_card() -> None:
    """The embedding and the LM head have as many: their states are in managed memory, outside the allocator."""
    plain = simulated(Optimizer.ADAMW_8BIT).left_at_the_end()[Category.OPTIMIZER_STATE]
    paged = simulated(Optimizer.PAGED_ADAMW_8BIT).left_at_the_end()[Category.OPTIMIZER_STATE]
    large = VOCABULARY * HIDDEN
    assert large >= 100_000
    assert plain - paged == 2 * (4 * large) + 2 * large


SMALL = [(name, values) for name, values in (IN_FLOAT32 | IN_A_BYTE).items() if values < 100_000]
FLOAT32 = {
    Optimizer.PAGED_ADAMW_32BIT: (1, 1),
    Optimizer.PAGED_LION_32BIT: (1,),
    Optimizer.PAGED_ADEMAMIX_32BIT: (2, 1),
}
"""Values per parameter in each tensor of the state."""


@pytest.mark.parametrize(("optim", "values"), FLOAT32.items())
def test_float32_states_of_fewer_values_are_on_the_card(optim: Optimizer, values: tuple[int, ...]) -> None:
    """Each of the other tensors has states of 4 bytes per value, in blocks of 512 bytes."""
    expected = sum(
        (2 if "layers" in name else 1) * rounded(each * 4 * elements) for name, elements in SMALL for each in values
    )
    assert simulated(optim).left_at_the_end()[Category.OPTIMIZER_STATE] == expected


@pytest.mark.parametrize("optim", [Optimizer.ADEMAMIX_8BIT, Optimizer.LION_8BIT])
def test_states_in_8_bits_are_those_of_the_formula(optim: Optimizer) -> None:
    """All but the tables of 256 float32 values, of which Lion has one."""
    tensors = [
        TensorGroup(shape=tuple(each.shape), copies=1, is_embedding="embed" in name)
        for name, each in simulated(optim).trainer.model.named_parameters()
    ]
    tables = 4 * 256 * len(optim.traits.values)
    expected = optimizer_state(optim, tensors, 2, rounded).size + tables
    assert simulated(optim).left_at_the_end()[Category.OPTIMIZER_STATE] == expected
