"""Activations, the head and the rollout: properties. Numbers are in `formula_rows_*.py`."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_models import DELTA, FULL, HALF, LORA, WITH_GATE
from toy_models import batch as _batch

from profiler.analytical.formulas.head import (
    head_backward_scratch,
    head_forward_scratch,
    head_saved,
    tile,
)
from profiler.analytical.formulas.layers.decoder_layer import (
    attention_saved_bytes,
    first_layer_unsaved_bytes,
    layer_saved_bytes,
    linear_inputs_saved_bytes,
)
from profiler.analytical.formulas.layers.eager_attention import (
    makes_scores,
)
from profiler.analytical.formulas.layers.layer_without_gradient import layer_without_gradient_bytes
from profiler.analytical.formulas.layers.linear_attention import linear_backward_bytes, linear_forward_bytes
from profiler.analytical.formulas.models.parameters import parameter_count
from profiler.analytical.formulas.models.trained import (
    computed_bytes,
    computes_in_bfloat16,
    element_bytes,
    stream_bytes,
)
from profiler.analytical.formulas.rollout import (
    kv_cache,
    kv_element_bytes,
)
from profiler.analytical.formulas.sizes.trial_keys import (
    Batch,
    generated_micro_batch,
    longest_rows,
    one_row,
    ragged_tokens,
    unpadded,
)
from profiler.analytical.timeline.instants import InstantName
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.analytical.timeline.training_pass import stack_saved_bytes
from profiler.domain.memory import Category
from profiler.domain.trials.trial import (
    Attention,
    Dtype,
    Lengths,
    Logprobs,
    Rollout,
    completion_lengths,
)


def test_linear_attention_trains_in_these_bytes_by_hand():
    two = _batch(tokens=128)
    assert linear_forward_bytes(FULL, DELTA, _batch(), keeps_output=True) == 46_416 - 928 + 416
    assert linear_backward_bytes(FULL, DELTA, _batch(), keeps_output=True) == 96 + 39_936 - 928
    assert linear_backward_bytes(FULL, DELTA, two, keeps_output=True) == (
        1_536 + 3 * (4_096 + 3_072) + 65_536 + 5_472 - 21_184 - 14_848
    )


def test_a_token_is_decoded_with_three_states_of_each_row():
    model = replace(WITH_GATE, first_layers=(replace(DELTA, num_hidden_layers=1),))
    instants = trial_instants(replace(LORA, rollout=Rollout.GENERATE), model)
    (decoding,) = (instant for instant in instants if instant.name is InstantName.DECODING)
    rows = LORA.generation_batch_size
    assert decoding.sizes[Category.ACTIVATIONS] == 3 * rows * 2 * 4 * 3 * 4


def test_a_cache_with_states_is_said_by_its_parts():
    linear, full = replace(DELTA, num_hidden_layers=3), replace(WITH_GATE, num_hidden_layers=4)
    whole, no_last = replace(full, first_layers=(linear,)), replace(linear, num_hidden_layers=3, first_layers=())
    said = [kv_cache(model, sequences=2, tokens=10, element=2).text for model in (whole, no_last)]
    assert said == ["3 x 2 states, 2 x 1 x 2 x 10 x 4 x 2 B", "3 x 2 states"]


def test_layers_before_the_first_adapter_save_nothing():
    """Adapters of full attention alone: of two layers the first, which is linear, has none."""
    model = replace(WITH_GATE, first_layers=(replace(DELTA, num_hidden_layers=1),))
    only = replace(LORA, lora_target_modules=("q_proj",))
    last = replace(WITH_GATE, num_hidden_layers=1)
    assert stack_saved_bytes(only, model, _batch()) == stack_saved_bytes(only, last, _batch())
    both = replace(LORA, lora_target_modules=("q_proj", "out_proj"))
    assert stack_saved_bytes(both, model, _batch()) > layer_saved_bytes(both, last, _batch())


@given(rows=st.integers(1, 16), tokens=st.integers(6, 3000), has_mask=st.booleans())
def test_a_layer_saves_the_same_per_row(toy, rows, tokens, has_mask):
    one = layer_saved_bytes(FULL, toy, _batch(1, tokens, has_mask))

    assert layer_saved_bytes(FULL, toy, _batch(rows, tokens, has_mask)) == rows * one
    assert layer_saved_bytes(FULL, toy, _batch(1, tokens, True)) >= one


@given(rows=st.integers(1, 16), tokens=st.integers(200, 3000), bf16=st.booleans())
def test_later_releases_with_all_logits_never_need_less(toy, rows, tokens, bf16):
    """More of the tensors of `selective` make each of the others; and one more row never needs less."""

    def peaks(logprobs, rows):
        spec = replace(FULL, logprobs=logprobs, bf16=bf16)
        batch = Batch(rows=rows, prompt_tokens=4, completion_tokens=tokens, scored_tokens=rows * tokens, has_mask=True)
        kept = head_saved(spec, toy, batch).logits.size
        return [
            kept + head_forward_scratch(spec, toy, batch).logits.size,
            kept + head_backward_scratch(spec, toy, batch).logits.size,
        ]

    least = peaks(Logprobs.SELECTIVE, rows)
    assert max(least) >= max(peaks(Logprobs.FULL, rows))
    for logprobs in (Logprobs.SELECTIVE_ROW_ENTROPY, Logprobs.SELECTIVE_IN_PLACE, Logprobs.SELECTIVE_KEPT):
        found = peaks(logprobs, rows)
        assert max(found) >= max(least)
        assert all(more >= one for more, one in zip(peaks(logprobs, rows + 1), found, strict=True))


@given(st.integers(1, 20_000))
def test_a_tile_never_grows_beyond_its_chunk(scored):
    assert tile(scored, 2).size <= tile(scored + 1, 2).size <= 4_096 * 32_768 * 2


@given(sequences=st.integers(1, 64), tokens=st.integers(1, 4096))
def test_the_cache_doubles_with_its_sequences(half_billion, sequences, tokens):
    once = kv_cache(half_billion, sequences=sequences, tokens=tokens, element=2).size

    assert kv_cache(half_billion, sequences=2 * sequences, tokens=tokens, element=2).size == 2 * once


def test_ragged_rows_have_a_mask_and_fewer_scored_tokens():
    ragged, forced = generated_micro_batch(FULL), generated_micro_batch(replace(FULL, lengths=Lengths.FORCED))

    assert ragged.has_mask
    assert not forced.has_mask
    assert ragged.positions == forced.positions
    assert ragged.scored_tokens < forced.scored_tokens == 4 * 786


def test_four_norms_of_gemma_by_hand(toy):
    batch = _batch(rows=1, tokens=8)
    toy = replace(toy, qkv_bias=False)
    gemma = replace(toy, model_type="gemma2", norms_per_layer=4)
    two, four = (layer_saved_bytes(FULL, each, batch) for each in (toy, gemma))
    norm = 8 * (toy.hidden_size * 4 + 4)
    assert four - two == 4 * (norm + 8 * toy.hidden_size * 4) - 2 * (norm + 8 * toy.hidden_size * 2)
    assert parameter_count(gemma) - parameter_count(toy) == 2 * toy.num_hidden_layers * toy.hidden_size


def test_without_checkpointing_all_layers_keep_the_same(toy):
    batch = Batch(rows=4, prompt_tokens=256, completion_tokens=786, scored_tokens=2_555, has_mask=True)

    assert stack_saved_bytes(FULL, toy, batch) == 2 * layer_saved_bytes(FULL, toy, batch)


def test_a_first_layer_saves_only_what_its_last_adapter_needs(toy):
    batch = _batch(rows=1, tokens=10)
    down = replace(LORA, lora_target_modules=("down_proj",))
    everything = layer_saved_bytes(down, toy, batch) - linear_inputs_saved_bytes(down, toy, 10)

    assert first_layer_unsaved_bytes(down, toy, batch) == everything


def test_the_cache_has_the_weights_type_even_under_autocast():
    assert kv_element_bytes(FULL) == 2
    assert kv_element_bytes(replace(FULL, dtype=Dtype.FLOAT32, bf16=True)) == 4


@given(rows=st.integers(1, 100), longest=st.integers(1, 5000))
def test_ragged_tokens_are_the_sum_of_the_rows(rows, longest):
    lengths = completion_lengths(lengths=Lengths.RAGGED, rows=rows, max_completion_length=longest)

    assert ragged_tokens(rows, longest) == sum(lengths)
    assert ragged_tokens(6, 80) == 410
    batch = generated_micro_batch(replace(FULL, per_device_train_batch_size=rows, max_completion_length=longest))
    assert batch.has_mask == (len(set(completion_lengths_of(rows, longest))) > 1)


def completion_lengths_of(rows, longest):
    whole = rows * FULL.steps_per_generation
    return completion_lengths(lengths=Lengths.RAGGED, rows=whole, max_completion_length=longest)


def test_autocast_wraps_generation_only_in_full_fine_tuning():
    wide = replace(LORA, dtype=Dtype.FLOAT32, bf16=True)

    assert computed_bytes(wide, autocast=True) == 2
    assert computed_bytes(wide, autocast=False) == 4
    assert computed_bytes(replace(FULL, dtype=Dtype.FLOAT32, bf16=True), autocast=False) == 2


@given(rows=st.integers(1, 64), micro_batches=st.integers(1, 8))
def test_a_batch_has_at_most_its_own_longest_rows(rows, micro_batches):
    spec = replace(FULL, per_device_train_batch_size=rows, steps_per_generation=micro_batches)
    generated = spec.generation_batch_size
    lengths = completion_lengths(lengths=Lengths.RAGGED, rows=generated, max_completion_length=800)

    assert longest_rows(replace(FULL, per_device_train_batch_size=2, steps_per_generation=4), 3) == 0
    assert longest_rows(spec, generated) == lengths.count(800)
    assert longest_rows(spec, rows) <= min(rows, lengths.count(800))
    assert longest_rows(replace(spec, lengths=Lengths.FORCED), rows) == rows


def test_a_single_row_is_padded_or_the_longest():
    padded = one_row(generated_micro_batch(FULL))

    assert (padded.rows, padded.has_mask) == (1, True)
    assert unpadded(padded) == replace(padded, has_mask=False)


def test_float32_with_shared_keys_and_no_mask_has_no_kernel(toy):
    own_keys = replace(toy, num_key_value_heads=2)
    wide = replace(FULL, dtype=Dtype.FLOAT32, bf16=False)
    flash = replace(wide, attn_implementation=Attention.FLASH_ATTENTION_2)

    assert makes_scores(wide, toy, _batch(), autocast=False)
    assert not makes_scores(FULL, toy, _batch(), autocast=True)
    assert not makes_scores(wide, toy, _batch(has_mask=True), autocast=False)
    assert not makes_scores(wide, own_keys, _batch(), autocast=False)
    assert not makes_scores(flash, toy, _batch(), autocast=False)


def test_a_card_without_flash_has_no_kernel_for_bfloat16(toy):
    own_keys = replace(toy, num_key_value_heads=2)
    old = replace(LORA, gpu="t4-16gb")
    half = replace(old, dtype=Dtype.FLOAT16, bf16=True)

    assert makes_scores(old, own_keys, _batch(has_mask=True), autocast=True)
    assert not makes_scores(LORA, own_keys, _batch(has_mask=True), autocast=True)
    # float16 has the memory-efficient kernel unless keys are shared; autocast is not around the rollout of adapters
    assert makes_scores(half, own_keys, _batch(), autocast=True)
    assert not makes_scores(half, own_keys, _batch(), autocast=False)
    assert makes_scores(half, toy, _batch(), autocast=False)
    assert not makes_scores(half, toy, _batch(has_mask=True), autocast=False)


@given(rows=st.integers(1, 16), tokens=st.integers(6, 3000), has_mask=st.booleans(), autocast=st.booleans())
def test_products_never_need_less_than_a_kernel(toy, rows, tokens, has_mask, autocast):
    old, batch = replace(FULL, gpu="t4-16gb"), _batch(rows, tokens, has_mask)

    def without_mask(spec):
        mask = rows * tokens * -(-tokens // 8) * 8 * 2 if has_mask else 0
        return attention_saved_bytes(spec, toy, batch) - (mask if spec is FULL else 0)

    assert without_mask(old) >= without_mask(FULL)
    assert layer_without_gradient_bytes(
        old, toy, batch, adapted=True, autocast=autocast
    ) >= layer_without_gradient_bytes(FULL, toy, batch, adapted=True, autocast=autocast)


def test_float16_under_autocast_by_hand():
    sizes, lora = element_bytes(HALF), replace(LORA, dtype=Dtype.FLOAT16, bf16=True)

    assert (sizes.weight, sizes.stream, sizes.compute, sizes.output) == (2, 4, 2, 4)
    assert sizes.autocast_casts
    assert not sizes.autocast_caches
    assert (stream_bytes(lora, autocast=True), stream_bytes(lora, autocast=False)) == (4, 2)
    assert (kv_element_bytes(HALF), kv_element_bytes(lora)) == (4, 2)


@pytest.mark.parametrize(
    ("dtype", "by_hand"),
    [(Dtype.FLOAT16, (2, 2, 2, 4, 4)), (Dtype.BFLOAT16, (2, 4, 2, 4, 4)), (Dtype.FLOAT32, (4, 4, 2, 4, 4))],
)
def test_autocast_to_float16_by_hand(dtype, by_hand):
    scaled = replace(LORA, dtype=dtype, bf16=False, fp16=True)
    sizes = element_bytes(scaled)
    assert (sizes.weight, sizes.stream, sizes.compute, sizes.output, sizes.adapter) == by_hand
    assert sizes.autocast_casts is (dtype is not Dtype.FLOAT16)
    assert sizes.autocast_caches is (dtype is Dtype.FLOAT32)
    assert not computes_in_bfloat16(scaled, autocast=True)
    assert computes_in_bfloat16(scaled, autocast=False) is (dtype is Dtype.BFLOAT16)


@given(rows=st.integers(1, 16), tokens=st.integers(6, 3000), has_mask=st.booleans())
def test_float16_under_autocast_computes_as_float32_does(toy, rows, tokens, has_mask):
    batch, wide = _batch(rows, tokens, has_mask), replace(FULL, dtype=Dtype.FLOAT32, bf16=True)

    assert layer_saved_bytes(HALF, toy, batch) == layer_saved_bytes(wide, toy, batch)
    assert layer_saved_bytes(replace(HALF, bf16=False), toy, batch) == layer_saved_bytes(FULL, toy, batch)
