"""Persistent memory, compared with bytes computed by hand for the `tiny` model (2 layers, hidden 64, vocabulary 512).

Every tensor takes a multiple of 512 bytes. Sizes are those of bfloat16 (2 bytes) unless said otherwise.
"""

from simulating import LORA, simulate

from profiler.domain.memory import Category, Phase
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Dtype, Lengths, Tuning

EMBEDDING = 512 * 64 * 2
PROJECTIONS = 64 * 64 * 2 + 2 * (32 * 64 * 2) + 64 * 64 * 2  # q, k, v, o
BIASES = 3 * 512  # q, k, v: 64, 32 and 32 values
MLP = 3 * (160 * 64 * 2)  # gate, up, down
NORMS = 2 * 512
LAYER = PROJECTIONS + BIASES + MLP + NORMS
PARAMETERS = EMBEDDING + 2 * LAYER + 512  # and the last norm
FLOAT32_PARAMETERS = 2 * EMBEDDING + 2 * (2 * PROJECTIONS + BIASES + 2 * MLP + NORMS) + 512  # small ones are rounded up
PARAMETER_TENSORS = 1 + 2 * 12 + 1
ROTARY_BUFFERS = 2 * 512  # inv_freq and its original, 8 float32 values each


def test_full_fine_tuning_keeps_weights_and_two_states_of_each() -> None:
    left = simulate().left_at_the_end()
    assert left[Category.WEIGHTS] == PARAMETERS + ROTARY_BUFFERS
    # Fused AdamW keeps its step count on the card, a tensor for each parameter.
    assert left[Category.OPTIMIZER_STATE] == 2 * PARAMETERS + PARAMETER_TENSORS * 512
    assert Category.GRADIENTS not in left
    assert Category.KV_CACHE not in left
    assert Category.ACTIVATIONS not in left


def test_a_reference_model_is_a_second_copy_of_the_weights() -> None:
    left = simulate(beta=0.04).left_at_the_end()
    assert left[Category.REFERENCE] == left[Category.WEIGHTS] == PARAMETERS + ROTARY_BUFFERS


def test_a_reference_model_has_the_type_of_the_model() -> None:
    left = simulate(beta=0.04, dtype=Dtype.FLOAT32).left_at_the_end()
    # Twice as wide, but for what is rounded up to 512 bytes: the norms and the rotary buffers.
    assert left[Category.REFERENCE] == left[Category.WEIGHTS] == FLOAT32_PARAMETERS + ROTARY_BUFFERS


def test_lora_keeps_float32_adapters_and_their_states() -> None:
    left = simulate(tuning=Tuning.LORA, beta=0.04, **LORA).left_at_the_end()
    # A is [8, in] and B [out, 8], in float32, for q, k, v, o, gate, up and down.
    adapters = 2 * 4 * 8 * ((64 + 64) + 2 * (64 + 32) + (64 + 64) + 3 * (64 + 160))
    tensors = 2 * 7 * 2
    assert left[Category.ADAPTERS] == adapters
    assert left[Category.OPTIMIZER_STATE] == 2 * adapters + tensors * 512
    assert Category.REFERENCE not in left  # the adapter is switched off instead
    copied = simulate(tuning=Tuning.LORA, beta=0.04, ref_adapter=True, **LORA).left_at_the_end()
    assert copied == left | {Category.REFERENCE: adapters}


def test_the_copy_of_an_embedding_adapter_is_of_the_reference() -> None:
    keys = LORA | {"lora_target_modules": ("q_proj", "embed_tokens")}
    left = simulate(tuning=Tuning.LORA, beta=0.04, ref_adapter=True, **keys).left_at_the_end()
    # A is [8, in] and B [out, 8], in float32, of q in two layers and of the embedding of 512 tokens.
    assert left[Category.REFERENCE] == left[Category.ADAPTERS] == 4 * 8 * (2 * (64 + 64) + (512 + 64))


def test_the_copy_of_adapters_over_4_bit_weights_stays_float32() -> None:
    left = simulate(tuning=Tuning.QLORA, beta=0.04, ref_adapter=True, **LORA).left_at_the_end()
    assert left[Category.REFERENCE] == 2 * left[Category.ADAPTERS]


def test_8_bit_states_are_32_bit_for_the_embedding_and_for_small_tensors() -> None:
    left = simulate(optim=Optimizer.ADAMW_8BIT).left_at_the_end()
    embedding = 2 * (512 * 64 * 4)
    # 4,096 values or more are kept in a byte each, with a float32 for every 256 of them (at most 512 bytes here).
    square = 2 * (64 * 64 + 512)  # q, o: 4,096 values
    mlp = 2 * (160 * 64 + 512)
    narrow = 2 * (32 * 64 * 4)  # k, v: 2,048 values stay in float32
    vectors = 2 * 512
    layer = 2 * square + 2 * narrow + 3 * mlp + (3 + 2) * vectors
    maps = 2 * 256 * 4  # two tables of 256 float32 values, shared by all tensors
    assert left[Category.OPTIMIZER_STATE] == embedding + 2 * layer + vectors + maps


def test_paged_states_of_100_000_values_or_more_are_outside_the_allocator() -> None:
    # No tensor of the tiny model is that large, so nothing is paged.
    paged = simulate(optim=Optimizer.PAGED_ADAMW_8BIT).left_at_the_end()
    assert paged == simulate(optim=Optimizer.ADAMW_8BIT).left_at_the_end()


def test_4_bit_weights_take_half_a_byte_and_their_scales() -> None:
    left = simulate(tuning=Tuning.QLORA, **LORA).left_at_the_end()

    def linear(values: int) -> int:
        # Two values a byte; a byte of scale for every 64 values; a float32 for every 256 scales, and their mean;
        # the table of the 16 values of nf4 and that of the 256 values of a scale.
        return values // 2 + 3 * 512 + 2 * 512 + (256 * 4 - 512) if values else 0

    layer_values = [64 * 64, 32 * 64, 32 * 64, 64 * 64, 160 * 64, 160 * 64, 160 * 64]
    weights = EMBEDDING + 2 * (BIASES + NORMS + sum(linear(values) for values in layer_values)) + 512
    assert left[Category.WEIGHTS] == weights + ROTARY_BUFFERS


def test_without_double_quantisation_each_64_values_have_a_scale_of_4_bytes() -> None:
    left = simulate(tuning=Tuning.QLORA, bnb_4bit_use_double_quant=False, **LORA).left_at_the_end()

    def linear(values: int) -> int:
        # Two values a byte; a float32 for every 64 values, at least 512 bytes; the table of the 16 values of nf4.
        return values // 2 + max(values // 64 * 4, 512) + 512

    layer_values = [64 * 64, 32 * 64, 32 * 64, 64 * 64, 160 * 64, 160 * 64, 160 * 64]
    assert 160 * 64 // 64 * 4 == 640  # which the allocator rounds up to 1,024
    rounded = sum(linear(values) + (1_024 - 640) * (values == 160 * 64) for values in layer_values)
    assert left[Category.WEIGHTS] == EMBEDDING + 2 * (BIASES + NORMS + rounded) + 512 + ROTARY_BUFFERS


def test_the_kv_cache_is_full_at_the_end_of_the_rollout() -> None:
    """2 x layers x sequences x kv_heads x (prompt + completion - 1) x head_dim x bytes, exactly."""
    simulated = simulate(lengths=Lengths.FORCED, max_prompt_length=32, max_completion_length=64)
    piece = 8 * 2 * (32 + 64 - 1) * 16 * 2  # keys of one layer: 8 sequences, 2 heads, 16 wide
    assert piece % 512 == 0
    levels = [level[Category.KV_CACHE] for phase, level in simulated.levels() if phase is Phase.ROLLOUT]
    assert 2 * 2 * piece in levels
    # The cache grows by concatenation: at most one old tensor exists together with the new ones.
    assert max(levels) < 2 * 2 * piece + piece
