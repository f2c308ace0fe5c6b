"""Activations, the head and the rollout: numbers by hand, and properties."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analytical.formulas.head import (
    cast_chunk_bytes,
    head_backward_scratch,
    head_forward_scratch,
    head_saved,
    loss_bytes,
    score_scratch,
    tile,
)
from profiler.analytical.formulas.layers.decoder_layer import (
    attention_inputs_saved_bytes,
    attention_saved_bytes,
    first_layer_unsaved_bytes,
    head_norms_saved_bytes,
    layer_saved_bytes,
    linear_inputs_saved_bytes,
    mlp_saved_bytes,
    norm_saved_bytes,
    other_inputs_saved_bytes,
)
from profiler.analytical.formulas.layers.eager_attention import (
    held_scores_bytes,
    makes_scores,
    query_side_bytes,
    query_side_saved_bytes,
    repeated_cache_bytes,
    saved_scores_bytes,
    scores_backward_bytes,
    scores_forward_bytes,
)
from profiler.analytical.formulas.layers.layer_backward import attention_backward_bytes
from profiler.analytical.formulas.layers.layer_without_gradient import layer_without_gradient_bytes, rotary_bytes
from profiler.analytical.formulas.models.parameters import parameter_count
from profiler.analytical.formulas.models.trained import computed_bytes, element_bytes, stream_bytes
from profiler.analytical.formulas.rollout import (
    growth_copy,
    kv_cache,
    kv_element_bytes,
    last_logits,
    sampling,
)
from profiler.analytical.formulas.sizes.batch import (
    Batch,
    generated_micro_batch,
    longest_rows,
    one_row,
    ragged_tokens,
    unpadded,
)
from profiler.analytical.timeline.persistent import generated_inputs
from profiler.analytical.timeline.training_pass import attention_mask_bytes, stack_saved_bytes
from profiler.domain.trials.trial import (
    ALL_LINEAR,
    Attention,
    Backend,
    Dtype,
    Lengths,
    Logprobs,
    TrialSpec,
    Tuning,
    completion_lengths,
)

_FULL = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="toy", gradient_checkpointing=False)
_LORA = replace(_FULL, tuning=Tuning.LORA, lora_rank=2, lora_alpha=4, lora_target_modules=(ALL_LINEAR,))


def _batch(rows=1, tokens=8, has_mask=False):
    return Batch(rows=rows, prompt_tokens=tokens - 5, completion_tokens=5, scored_tokens=5 * rows, has_mask=has_mask)


def test_one_layer_by_hand(toy):
    assert norm_saved_bytes(_FULL, 10, 8) == 520
    assert norm_saved_bytes(_FULL, 10, 8, in_float32=True) == 680
    assert attention_saved_bytes(_FULL, toy, _batch()) == 448
    assert attention_saved_bytes(_FULL, toy, _batch(has_mask=True)) == 704
    assert linear_inputs_saved_bytes(_FULL, toy, 10) == 640
    assert attention_inputs_saved_bytes(_FULL, toy, 10) == 160
    assert other_inputs_saved_bytes(_FULL, toy, 10) == 480
    assert mlp_saved_bytes(_FULL, toy, 10) == 960


def test_norms_of_heads_by_hand(toy):
    normed = replace(toy, qk_norm=True)
    cast = replace(_FULL, dtype=Dtype.FLOAT32, bf16=True)

    assert head_norms_saved_bytes(_FULL, toy, 10) == 0
    assert head_norms_saved_bytes(_FULL, normed, 10) == 840
    # projections return bfloat16 under autocast, so the normalised input is bfloat16 whatever the stream is
    assert head_norms_saved_bytes(cast, normed, 10) == 840
    assert head_norms_saved_bytes(replace(cast, bf16=False), normed, 10) == 10 * (12 * 4 + 3 * 4 + 12 * 4)


def test_lora_keeps_a_copy_per_adapted_layer(toy):
    # q, k, v, gate, up and o take 8 features each, down takes 16; A's output is 2 wide in all seven
    assert linear_inputs_saved_bytes(_LORA, toy, 10) == 10 * (6 * 8 + 16 + 7 * 2) * 2


def test_qlora_shares_its_inputs(toy):
    qlora = replace(_LORA, tuning=Tuning.QLORA)

    assert linear_inputs_saved_bytes(qlora, toy, 10) == 10 * (8 + 8 + 16 + 7 * 2) * 2


def test_eager_attention_keeps_its_scores_twice(toy):
    eager = replace(_FULL, attn_implementation=Attention.EAGER)

    assert attention_saved_bytes(eager, toy, _batch()) == 8 * 32 * 2 + 2 * 8 * 8 * 6


@given(rows=st.integers(1, 16), tokens=st.integers(6, 3000), has_mask=st.booleans())
def test_a_layer_saves_the_same_per_row(toy, rows, tokens, has_mask):
    one = layer_saved_bytes(_FULL, toy, _batch(1, tokens, has_mask))

    assert layer_saved_bytes(_FULL, toy, _batch(rows, tokens, has_mask)) == rows * one
    assert layer_saved_bytes(_FULL, toy, _batch(1, tokens, True)) >= one


def test_the_head_by_hand(toy):
    batch = Batch(rows=1, prompt_tokens=4, completion_tokens=10, scored_tokens=10, has_mask=False)
    scratch = head_backward_scratch(_FULL, toy, batch)
    full = head_saved(replace(_FULL, logprobs=Logprobs.FULL), toy, batch)

    assert tile(1_000, 2).size == 65_536_000
    assert scratch.logits.size == 655_360
    assert scratch.activations.size == 480
    assert scratch.gradients.size == 4_800
    assert full.logits.size == 4_000 + loss_bytes(batch)
    assert head_backward_scratch(_LORA, toy, batch).gradients.size == 0


@pytest.mark.parametrize(
    ("logprobs", "kept", "forward", "backward", "score"),
    [
        # 2 rows, C = 10, V = 100: 8,800 B of logits, 8,000 B of those of completions, and 4,000 B of a row in float32.
        (Logprobs.FULL, 8_000, 8_800, 8_000, 8_800 + 4_400),
        (Logprobs.SELECTIVE, 8_000, 3 * 8_000, 2 * 8_000, 8_000 + 8_800),
        (Logprobs.SELECTIVE_ROW_ENTROPY, 8_000, 3 * 4_000, 2 * 8_000, 8_000 + 8_800),
        (Logprobs.SELECTIVE_IN_PLACE, 8_800, 8_000 + 3 * 8_000, 2 * 8_800 + 2 * 8_000 - 8_800, 8_800 + 4_400),
        (Logprobs.SELECTIVE_KEPT, 8_000, 8_800 + 3 * 8_000, 2 * 8_000, 8_800 + 8_000 + 4_000),
    ],
)
def test_all_logits_by_hand(toy, logprobs, kept, forward, backward, score):
    batch = Batch(rows=2, prompt_tokens=4, completion_tokens=10, scored_tokens=20, has_mask=True)
    spec = replace(_FULL, logprobs=logprobs)

    assert head_saved(spec, toy, batch).logits.size == kept + loss_bytes(batch)
    assert head_forward_scratch(spec, toy, batch).logits.size == forward
    assert head_backward_scratch(spec, toy, batch).logits.size == backward
    assert score_scratch(spec, toy, batch).logits.size == score


@pytest.mark.parametrize(
    ("logprobs", "forward", "backward"),
    [
        # The same without autocast: 4,400, 4,000 and 2,000 B, and the log-softmax of each row is kept.
        (Logprobs.SELECTIVE, 4_000 + 3 * 4_000, 4_000),
        (Logprobs.SELECTIVE_ROW_ENTROPY, 4_000 + 3 * 2_000, 4_000),
        (Logprobs.SELECTIVE_IN_PLACE, 4_400 + 4_000 + 3 * 4_000, 2 * 4_400 + 2 * 4_000 - 4_000),
        (Logprobs.SELECTIVE_KEPT, 4_000 + 4_400 + 3 * 4_000, 4_000),
    ],
)
def test_all_logits_in_bfloat16_by_hand(toy, logprobs, forward, backward):
    batch = Batch(rows=2, prompt_tokens=4, completion_tokens=10, scored_tokens=20, has_mask=True)
    spec = replace(_FULL, logprobs=logprobs, bf16=False)

    assert head_saved(spec, toy, batch).logits.size == 4_000 + loss_bytes(batch)
    assert head_forward_scratch(spec, toy, batch).logits.size == forward
    assert head_backward_scratch(spec, toy, batch).logits.size == backward


@pytest.mark.parametrize(
    ("logprobs", "bf16", "forward"),
    [
        # 2 rows of 11 tokens, V = 100: 8,800 B in float32, 4,400 B in bfloat16, 8,000 B of a copy; the entropy
        # of all 22 tokens is of three tensors of 8,800 B, of a row of three of 4,400 B. And 352 B of hidden states.
        (Logprobs.NLL, True, 4_400 + 8_800 + 352),
        (Logprobs.NLL_ACCURACY, True, 8_800 + 3 * 8_800),
        (Logprobs.NLL_ROW_ENTROPY, True, 8_800 + 3 * 4_400),
        (Logprobs.NLL_TWO_COPIES, True, 8_800 + 8_000 + 3 * 8_800),
        (Logprobs.NLL_ENTROPY, True, 8_800 + 8_000 + 3 * 8_800),
        # Without autocast the outputs are in bfloat16.
        (Logprobs.NLL, False, 4_400 + 8_800 + 352),
        (Logprobs.NLL_ACCURACY, False, 4_400 + 3 * 4_400),
        (Logprobs.NLL_TWO_COPIES, False, 4_400 + 4_000 + 3 * 4_400),
    ],
)
def test_a_loss_of_labels_by_hand(toy, logprobs, bf16, forward):
    batch = Batch(rows=2, prompt_tokens=1, completion_tokens=10, scored_tokens=20, loss_tensors=0, has_mask=True)
    spec = replace(_FULL, logprobs=logprobs, bf16=bf16)
    made = head_forward_scratch(spec, toy, batch)

    assert made.logits.size + made.activations.size == forward
    assert head_saved(spec, toy, batch).logits.size == 8_800
    assert head_backward_scratch(spec, toy, batch).logits.size == 2 * 8_800


def test_copies_of_the_logits_of_long_rows_by_hand(toy):
    """2 rows of 1,001 tokens, V = 100: 800,800 B, and a copy without the last tokens of 800,000 B."""
    batch = Batch(rows=2, prompt_tokens=1, completion_tokens=1000, scored_tokens=2000, loss_tensors=0, has_mask=True)
    entropy = 3 * 128 * 100 * 4

    def made(logprobs, rows=2):
        return head_forward_scratch(replace(_FULL, logprobs=logprobs), toy, replace(batch, rows=rows)).logits.size

    assert made(Logprobs.NLL_ACCURACY) == 800_800 + 800_000
    assert made(Logprobs.NLL_ROW_ENTROPY) == 800_800 + 3 * 400_400
    assert made(Logprobs.NLL_TWO_COPIES) == 800_800 + 2 * 800_000
    assert made(Logprobs.NLL_ENTROPY) == 800_800 + 800_000 + entropy
    # A slice of one row is not copied; the loss needs more than the entropy.
    assert made(Logprobs.NLL_TWO_COPIES, rows=1) == made(Logprobs.NLL, rows=1) == 400_400 + 200_200


@given(rows=st.integers(1, 16), tokens=st.integers(200, 3000), bf16=st.booleans())
def test_later_releases_with_all_logits_never_need_less(toy, rows, tokens, bf16):
    """More of the tensors of `selective` make each of the others; and one more row never needs less."""

    def peaks(logprobs, rows):
        spec = replace(_FULL, logprobs=logprobs, bf16=bf16)
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


def test_the_rollout_by_hand(half_billion):
    size = kv_cache(half_billion, sequences=16, tokens=1041, element=2).size

    assert size == 204_668_928
    assert growth_copy(half_billion, sequences=16, tokens=1041, element=2).size * 48 == size
    assert sampling(_FULL, half_billion).size == 38_895_616
    assert generated_inputs(_FULL).size == 533_504


@given(sequences=st.integers(1, 64), tokens=st.integers(1, 4096))
def test_the_cache_doubles_with_its_sequences(half_billion, sequences, tokens):
    once = kv_cache(half_billion, sequences=sequences, tokens=tokens, element=2).size

    assert kv_cache(half_billion, sequences=2 * sequences, tokens=tokens, element=2).size == 2 * once


def test_ragged_rows_have_a_mask_and_fewer_scored_tokens():
    ragged, forced = generated_micro_batch(_FULL), generated_micro_batch(replace(_FULL, lengths=Lengths.FORCED))

    assert ragged.has_mask
    assert not forced.has_mask
    assert ragged.positions == forced.positions
    assert ragged.scored_tokens < forced.scored_tokens == 4 * 786


def test_capped_scores_and_four_norms_of_gemma_by_hand(toy):
    eager, batch = replace(_FULL, attn_implementation=Attention.EAGER), _batch(rows=1, tokens=8)
    gemma = replace(toy, model_type="gemma2", norms_per_layer=4)
    heads = toy.num_attention_heads
    assert saved_scores_bytes(eager, toy, batch) == 64 * heads * (4 + 2)
    assert saved_scores_bytes(eager, gemma, batch) == 64 * heads * (4 + 2 + 2)
    two, four = (layer_saved_bytes(_FULL, each, batch) for each in (toy, gemma))
    norm = 8 * (toy.hidden_size * 4 + 4)
    assert four - two == 4 * (norm + 8 * toy.hidden_size * 4) - 2 * (norm + 8 * toy.hidden_size * 2)
    assert parameter_count(gemma) - parameter_count(toy) == 2 * toy.num_hidden_layers * toy.hidden_size


def test_a_fused_layer_without_gradient_by_hand(toy):
    """Phi 3: gate and up are one tensor, of which the adapter makes another, wide as both, and a scaled one."""
    phi, batch = replace(toy, model_type="phi3"), _batch(rows=1, tokens=10)
    plain = layer_without_gradient_bytes(_FULL, phi, batch, adapted=False, autocast=True)
    assert plain == 10 * (4 * 8 + 4 * 16) * 2
    lora = replace(_LORA, lora_target_modules=("gate_up_proj",))
    under_autocast = layer_without_gradient_bytes(lora, phi, batch, adapted=True, autocast=True)
    # and the input of the adapter in float32
    assert under_autocast == 10 * (4 * 8 + 3 * 2 * 16) * 2 + 10 * 8 * 4
    without = layer_without_gradient_bytes(lora, phi, batch, adapted=True, autocast=False)
    assert without == 10 * (4 * 8 * 2 + 2 * 16 * (2 + 2 * 4)) + 10 * 8 * 4


def test_a_layer_without_gradient_by_hand(toy):
    batch = _batch(rows=1, tokens=10)
    plain = layer_without_gradient_bytes(_FULL, toy, batch, adapted=False, autocast=True)
    under_autocast = layer_without_gradient_bytes(_LORA, toy, batch, adapted=True, autocast=True)
    without = layer_without_gradient_bytes(_LORA, toy, batch, adapted=True, autocast=False)
    queries = replace(_LORA, lora_target_modules=("q_proj",))
    qlora = replace(_LORA, tuning=Tuning.QLORA)

    assert plain == 1_600
    # with the input of up in float32
    assert under_autocast == 10 * (4 * 8 * 2 + 8 * 16 + 8 * 4)
    assert without == 10 * (4 * 8 * 2 + 12 * 16 + 8 * 4)
    only_gate = replace(_LORA, lora_target_modules=("gate_proj",))
    assert layer_without_gradient_bytes(only_gate, toy, batch, adapted=True, autocast=False) == 10 * 4 * 8 * 2 + 1_920
    # the product in two types, the result of down, and that of its adapter before and after scaling
    only_down = replace(_LORA, lora_target_modules=("down_proj",))
    at_down = 16 * (2 + 4) + 8 * 2 + 2 * 8 * 4
    assert layer_without_gradient_bytes(only_down, toy, batch, adapted=True, autocast=False) == 10 * (64 + at_down)
    assert layer_without_gradient_bytes(queries, toy, batch, adapted=True, autocast=False) == plain
    # up's result, its adapter's before and after scaling, and the activated gate: four of two bytes
    assert layer_without_gradient_bytes(qlora, toy, batch, adapted=True, autocast=False) == 10 * (4 * 8 * 2 + 8 * 16)


def test_the_rotary_embedding_by_hand(toy):
    batch, wide_queries = _batch(rows=1, tokens=10), replace(toy, num_attention_heads=8)
    cast = replace(_FULL, dtype=Dtype.FLOAT32, bf16=True)

    assert rotary_bytes(_FULL, toy, batch, autocast=True) == 800
    # bfloat16 queries and their halves, float32 products
    assert rotary_bytes(cast, toy, batch, autocast=True) == 10 * (2 * 8 * 2 + 2 * 8 * 4 + 2 * 4 * 2)
    assert rotary_bytes(cast, replace(toy, qk_norm=True), batch, autocast=True) == 10 * (4 * 8 * 4 + 4 * 4 + 4 * 2)
    # wide queries take more than the MLP
    assert layer_without_gradient_bytes(_FULL, wide_queries, batch, adapted=False, autocast=True) == 10 * (
        3 * 8 * 2 + (4 * 32 + 2 * 4) * 2
    )


def test_checkpointing_keeps_the_inputs_of_layers_and_the_mask(toy, half_billion):
    batch = Batch(rows=4, prompt_tokens=256, completion_tokens=786, scored_tokens=2_555, has_mask=True)
    checkpointed = replace(_FULL, gradient_checkpointing=True)

    assert attention_mask_bytes(checkpointed, batch) == 4_343_056
    assert stack_saved_bytes(checkpointed, half_billion, batch) == 24 * 4 * 1_042 * 896 * 2
    assert stack_saved_bytes(_FULL, toy, batch) == 2 * layer_saved_bytes(_FULL, toy, batch)


def test_the_first_layer_saves_nothing_before_its_first_adapter(toy):
    batch = _batch(rows=1, tokens=10)
    queries = replace(_LORA, lora_target_modules=("q_proj",))
    down = replace(_LORA, lora_target_modules=("down_proj",))
    everything = layer_saved_bytes(down, toy, batch) - linear_inputs_saved_bytes(down, toy, 10)

    assert first_layer_unsaved_bytes(queries, toy, batch) == 10 * (8 * 4 + 4)
    assert first_layer_unsaved_bytes(down, toy, batch) == everything
    assert first_layer_unsaved_bytes(_FULL, toy, batch) == 0
    assert first_layer_unsaved_bytes(replace(_LORA, lora_target_modules=("embed_tokens",)), toy, batch) == 0


def test_a_mask_makes_flash_attention_unpad_its_rows(toy):
    flash = replace(_FULL, attn_implementation=Attention.FLASH_ATTENTION_2)
    ragged = Batch(rows=2, prompt_tokens=3, completion_tokens=5, scored_tokens=7, has_mask=True)

    # 13 real tokens of queries, keys, values and output (8 + 4 + 4 + 8), 16 positions of output padded again
    assert attention_saved_bytes(flash, toy, ragged) == (13 * 24 + 16 * 8) * 2 + 2 * 2 * 8 * 4
    assert attention_saved_bytes(flash, toy, _batch()) == 448


def test_float32_weights_are_cast_for_the_head_a_chunk_at_a_time(toy):
    wide = replace(_FULL, dtype=Dtype.FLOAT32)
    batch = Batch(rows=1, prompt_tokens=4, completion_tokens=10, scored_tokens=10, has_mask=False)

    assert cast_chunk_bytes(wide, toy, batch, chunks=1) == 1_760
    assert cast_chunk_bytes(_FULL, toy, batch, chunks=1) == 0
    # their gradients are float32 as they are made, so nothing is converted
    assert head_backward_scratch(wide, toy, batch).gradients.size == 100 * 8 * 4


def test_the_whole_head_is_copied_for_full_log_probabilities(toy):
    wide = replace(_LORA, dtype=Dtype.FLOAT32, bf16=True, logprobs=Logprobs.FULL)
    batch = Batch(rows=1, prompt_tokens=4, completion_tokens=10, scored_tokens=10, has_mask=False)

    assert head_saved(wide, toy, batch).activations.size == 1_600
    assert head_saved(replace(wide, dtype=Dtype.BFLOAT16), toy, batch).activations.size == 0
    # 11 positions in float32 and the log-softmax of 10 are more than the copy and its product; of 3 they are not
    few = replace(batch, completion_tokens=2)
    assert score_scratch(wide, toy, batch).logits.size == (11 + 10) * 100 * 4
    assert score_scratch(wide, toy, few).logits.size == 3 * 100 * 2 + 1_600
    # the copy of a trained head is in autocast's cache, which is counted separately
    trained = replace(_FULL, dtype=Dtype.FLOAT32, bf16=True, logprobs=Logprobs.FULL)
    assert score_scratch(trained, toy, few).logits.size == (3 + 2) * 100 * 4


def test_the_cache_has_the_weights_type_even_under_autocast():
    assert kv_element_bytes(_FULL) == 2
    assert kv_element_bytes(replace(_FULL, dtype=Dtype.FLOAT32, bf16=True)) == 4


@given(rows=st.integers(1, 100), longest=st.integers(1, 5000))
def test_ragged_tokens_are_the_sum_of_the_rows(rows, longest):
    lengths = completion_lengths(lengths=Lengths.RAGGED, rows=rows, max_completion_length=longest)

    assert ragged_tokens(rows, longest) == sum(lengths)
    assert ragged_tokens(6, 80) == 410
    batch = generated_micro_batch(replace(_FULL, per_device_train_batch_size=rows, max_completion_length=longest))
    assert batch.has_mask == (len(set(completion_lengths_of(rows, longest))) > 1)


def completion_lengths_of(rows, longest):
    whole = rows * _FULL.steps_per_generation
    return completion_lengths(lengths=Lengths.RAGGED, rows=whole, max_completion_length=longest)


def test_memory_in_addition_to_scores_by_hand(toy):
    eager = replace(_FULL, attn_implementation=Attention.EAGER)
    wide = replace(_FULL, dtype=Dtype.FLOAT32, bf16=False)
    cast = replace(eager, dtype=Dtype.FLOAT32, bf16=True)
    old = replace(_FULL, gpu="t4-16gb")

    assert held_scores_bytes(eager, toy, _batch(), autocast=True) == 256
    assert held_scores_bytes(_FULL, toy, _batch(), autocast=True) == 0
    assert query_side_bytes(eager, toy, _batch(), autocast=True) == 384
    assert query_side_bytes(cast, toy, _batch(), autocast=True) == 640
    assert query_side_bytes(wide, toy, _batch(), autocast=False) == 64 * 16 + 32 * 8 == 1_280
    assert query_side_bytes(old, toy, _batch(), autocast=True) == 64 * 18 + 32 * 12 == 1_536
    assert query_side_bytes(old, toy, _batch(has_mask=True), autocast=True) == 64 * 22 + 32 * 4 == 1_536
    own_keys = replace(toy, num_key_value_heads=2)
    assert query_side_bytes(old, own_keys, _batch(), autocast=True) == 64 * 22
    assert query_side_saved_bytes(eager, toy, _batch()) == 64 * 4 * 2 == 512
    assert query_side_saved_bytes(old, toy, _batch()) == 64 * (3 * 4 + 2) == 896


def test_a_layer_holds_its_scores_through_its_mlp(toy):
    eager, few = replace(_FULL, attn_implementation=Attention.EAGER), _batch(tokens=6)
    with_kernel = layer_without_gradient_bytes(_FULL, toy, few, adapted=False, autocast=True)

    # 6 x 6 scores of 2 heads in bfloat16; attention itself, 6 x (3 x 8 x 2 + 8 x 6) + 72 x 10 = 1,296 B, is more
    assert with_kernel == 6 * (4 * 8 + 3 * 16) * 2 == 960
    assert layer_without_gradient_bytes(eager, toy, few, adapted=False, autocast=True) == 1_296
    wider = replace(toy, intermediate_size=32)
    assert layer_without_gradient_bytes(eager, wider, few, adapted=False, autocast=True) == 6 * (32 + 96) * 2 + 144


def test_autocast_wraps_generation_only_in_full_fine_tuning():
    wide = replace(_LORA, dtype=Dtype.FLOAT32, bf16=True)

    assert computed_bytes(wide, autocast=True) == 2
    assert computed_bytes(wide, autocast=False) == 4
    assert computed_bytes(replace(_FULL, dtype=Dtype.FLOAT32, bf16=True), autocast=False) == 2


def test_four_bit_layers_cast_the_result_of_their_adapter(toy):
    wide = replace(_LORA, tuning=Tuning.QLORA, dtype=Dtype.FLOAT32, bf16=True)
    batch = _batch(rows=1, tokens=6)

    # without autocast the activated gate, the result of up, that of the adapter, and their sum, in one type: 4 x 4 B;
    # and the input of the adapter in bfloat16
    assert layer_without_gradient_bytes(wide, toy, batch, adapted=True, autocast=False) == 6 * (
        4 * 8 * 4 + 16 * 16 + 8 * 2
    )
    # under autocast the result of the adapter stays in bfloat16, and no copy of its input stays: 4 + 4 + 2 + 4 B
    assert layer_without_gradient_bytes(wide, toy, batch, adapted=True, autocast=True) == 6 * (4 * 8 * 4 + 14 * 16)


@given(rows=st.integers(1, 64), micro_batches=st.integers(1, 8))
def test_a_batch_has_at_most_its_own_longest_rows(rows, micro_batches):
    spec = replace(_FULL, per_device_train_batch_size=rows, steps_per_generation=micro_batches)
    generated = spec.generation_batch_size
    lengths = completion_lengths(lengths=Lengths.RAGGED, rows=generated, max_completion_length=800)

    assert longest_rows(replace(_FULL, per_device_train_batch_size=2, steps_per_generation=4), 3) == 0
    assert longest_rows(spec, generated) == lengths.count(800)
    assert longest_rows(spec, rows) <= min(rows, lengths.count(800))
    assert longest_rows(replace(spec, lengths=Lengths.FORCED), rows) == rows


def test_a_single_row_is_padded_or_the_longest():
    padded = one_row(generated_micro_batch(_FULL))

    assert (padded.rows, padded.has_mask) == (1, True)
    assert unpadded(padded) == replace(padded, has_mask=False)


def test_scores_by_hand(toy):
    eager = replace(_FULL, attn_implementation=Attention.EAGER)
    wide = replace(eager, dtype=Dtype.FLOAT32, bf16=False)
    old = replace(_FULL, gpu="t4-16gb")

    assert saved_scores_bytes(eager, toy, _batch()) == 768
    assert saved_scores_bytes(old, toy, _batch()) == 512
    assert scores_forward_bytes(eager, toy, _batch(), autocast=True) == 1_280
    assert scores_forward_bytes(wide, toy, _batch(), autocast=False) == 1_024
    assert scores_forward_bytes(old, toy, _batch(), autocast=True) == 1_152
    half = replace(eager, dtype=Dtype.FLOAT16, bf16=False)
    assert scores_forward_bytes(half, toy, _batch(), autocast=False) == 1_024
    assert scores_backward_bytes(half, toy, _batch()) == 1_792
    assert scores_backward_bytes(eager, toy, _batch()) == scores_backward_bytes(old, toy, _batch()) == 2_048
    assert scores_forward_bytes(_FULL, toy, _batch(), autocast=True) == scores_backward_bytes(_FULL, toy, _batch()) == 0


def test_float32_with_shared_keys_and_no_mask_has_no_kernel(toy):
    own_keys = replace(toy, num_key_value_heads=2)
    wide = replace(_FULL, dtype=Dtype.FLOAT32, bf16=False)
    flash = replace(wide, attn_implementation=Attention.FLASH_ATTENTION_2)

    assert makes_scores(wide, toy, _batch(), autocast=False)
    assert not makes_scores(_FULL, toy, _batch(), autocast=True)
    assert not makes_scores(wide, toy, _batch(has_mask=True), autocast=False)
    assert not makes_scores(wide, own_keys, _batch(), autocast=False)
    assert not makes_scores(flash, toy, _batch(), autocast=False)


def test_a_card_without_flash_attention_has_no_kernel_for_bfloat16(toy):
    own_keys = replace(toy, num_key_value_heads=2)
    old = replace(_LORA, gpu="t4-16gb")
    half = replace(old, dtype=Dtype.FLOAT16, bf16=True)

    assert makes_scores(old, own_keys, _batch(has_mask=True), autocast=True)
    assert not makes_scores(_LORA, own_keys, _batch(has_mask=True), autocast=True)
    # float16 has the memory-efficient kernel unless keys are shared; autocast is not around the rollout of adapters
    assert makes_scores(half, own_keys, _batch(), autocast=True)
    assert not makes_scores(half, own_keys, _batch(), autocast=False)
    assert makes_scores(half, toy, _batch(), autocast=False)
    assert not makes_scores(half, toy, _batch(has_mask=True), autocast=False)


def test_backward_of_attention_by_products_follows_that_of_the_mlp(toy):
    old, batch = replace(_FULL, gpu="t4-16gb"), _batch()
    # three more tensors of 128 scores and the gradient of the residual stream; the tensors of the MLP, of its norm, and
    # the inputs of o and of the MLP are freed
    freed = 8 * 16 * 3 * 2 + 8 * (8 * 4 + 4 + 8 * 2) + 8 * (8 + 16) * 2 + 8 * 8 * 2

    assert attention_backward_bytes(old, toy, batch) == 3 * 128 * 4 + 8 * 8 * 2 - freed
    assert attention_backward_bytes(_FULL, toy, batch) == 0


@given(rows=st.integers(1, 16), tokens=st.integers(6, 3000), has_mask=st.booleans(), autocast=st.booleans())
def test_products_never_need_less_than_a_kernel(toy, rows, tokens, has_mask, autocast):
    old, batch = replace(_FULL, gpu="t4-16gb"), _batch(rows, tokens, has_mask)

    def without_mask(spec):
        mask = rows * tokens * -(-tokens // 8) * 8 * 2 if has_mask else 0
        return attention_saved_bytes(spec, toy, batch) - (mask if spec is _FULL else 0)

    assert without_mask(old) >= without_mask(_FULL)
    assert layer_without_gradient_bytes(
        old, toy, batch, adapted=True, autocast=autocast
    ) >= layer_without_gradient_bytes(_FULL, toy, batch, adapted=True, autocast=autocast)


def test_a_decoding_step_repeats_shared_keys_where_scores_are_made(half_billion):
    eager = replace(_FULL, attn_implementation=Attention.EAGER)
    old = replace(_FULL, gpu="t4-16gb")

    assert repeated_cache_bytes(eager, half_billion, tokens=1_041) == 2 * 16 * 1_041 * 896 * 2 == 59_695_104
    assert repeated_cache_bytes(old, half_billion, tokens=1_041) == 16 * 1_041 * (896 * 12 + 128 * 8) == 196_141_056
    assert repeated_cache_bytes(_FULL, half_billion, tokens=1_041) == 0


def test_four_bit_layers_keep_the_weights_type(toy):
    qlora = replace(_LORA, tuning=Tuning.QLORA, dtype=Dtype.FLOAT32)

    assert mlp_saved_bytes(qlora, toy, 10) == 3 * 10 * 16 * 4
    assert mlp_saved_bytes(replace(_LORA, dtype=Dtype.FLOAT32), toy, 10) == 3 * 10 * 16 * 2
    # float16 and float32 inputs are cast for each adapter: q, k, v, gate, up and o take 8 features, down 16, A gives 2;
    # under autocast attention gives o bfloat16
    half = replace(qlora, dtype=Dtype.FLOAT16, bf16=False)
    assert linear_inputs_saved_bytes(half, toy, 10) == 10 * (6 * 8 + 16 + 7 * 2) * 2
    assert linear_inputs_saved_bytes(qlora, toy, 10) == 10 * (5 * 8 + 16 + 7 * 2) * 2


_HALF = replace(_FULL, dtype=Dtype.FLOAT16, bf16=True)


def test_float16_under_autocast_by_hand(toy, half_billion):
    sizes, batch = element_bytes(_HALF), _batch(rows=1, tokens=10)
    scored = Batch(rows=1, prompt_tokens=4, completion_tokens=10, scored_tokens=10, has_mask=False)
    lora = replace(_LORA, dtype=Dtype.FLOAT16, bf16=True)

    assert (sizes.weight, sizes.stream, sizes.compute, sizes.output) == (2, 4, 2, 4)
    assert sizes.autocast_casts
    assert not sizes.autocast_caches
    assert (stream_bytes(lora, autocast=True), stream_bytes(lora, autocast=False)) == (4, 2)
    assert (kv_element_bytes(_HALF), kv_element_bytes(lora)) == (4, 2)
    # the normalised input is as wide as the stream; q, k, v, gate and up cast it each
    assert norm_saved_bytes(_HALF, 10, 8) == 10 * (8 * 4 + 4 + 8 * 4)
    assert linear_inputs_saved_bytes(_HALF, toy, 10) == 10 * (5 * 8 + 16) * 2
    # the embedding alone is float16
    assert layer_without_gradient_bytes(_HALF, toy, batch, adapted=False, autocast=True) == 10 * (
        8 * (2 + 3 * 4) + 3 * 16 * 2
    )
    # the hidden states' gradient is float32, the head's is made in float32 and returned in float16
    assert head_backward_scratch(_HALF, toy, scored).activations.size == 10 * 8 * 4
    assert head_backward_scratch(_HALF, toy, scored).gradients.size == 100 * 8 * 6
    # when they are returned one of the two chunks is left; with adapters nothing is returned
    tile = 10 * 32_768 * 2
    assert head_backward_scratch(_HALF, toy, scored).logits.size == tile + (100 + 10) * 8 * 2
    assert head_backward_scratch(lora, toy, scored).logits.size == tile + (2 * 100 + 10) * 8 * 2
    assert last_logits(_HALF, half_billion).size == 24_309_760


@given(rows=st.integers(1, 16), tokens=st.integers(6, 3000), has_mask=st.booleans())
def test_float16_under_autocast_computes_as_float32_does(toy, rows, tokens, has_mask):
    batch, wide = _batch(rows, tokens, has_mask), replace(_FULL, dtype=Dtype.FLOAT32, bf16=True)

    assert layer_saved_bytes(_HALF, toy, batch) == layer_saved_bytes(wide, toy, batch)
    assert layer_saved_bytes(replace(_HALF, bf16=False), toy, batch) == layer_saved_bytes(_FULL, toy, batch)
