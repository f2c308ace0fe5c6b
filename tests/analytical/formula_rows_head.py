"""Numbers of the LM head and of the rollout, worked out by hand."""

from dataclasses import replace
from typing import Any

from formula_row import Row, row
from toy_models import (
    CAST,
    DELTA,
    FULL,
    GEMMA,
    HALF,
    HALF_BILLION,
    LABELLED,
    LATENT,
    LONG,
    LORA,
    ONE,
    SINKS,
    TOY,
    TWO,
    WITH_GATE,
)

from profiler.analytical.formulas.head import (
    all_logits_classes_bytes,
    cast_chunk_bytes,
    head_backward_scratch,
    head_forward_scratch,
    head_saved,
    logging_scratch,
    loss_bytes,
    score_scratch,
    tile,
)
from profiler.analytical.formulas.models.trained import waiting_logits
from profiler.analytical.formulas.rollout import growth_copy, kv_cache, last_logits, sampling, state_bytes
from profiler.analytical.formulas.sizes.quantities import HeadBytes, Term
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys
from profiler.analytical.timeline.instants import generated_inputs
from profiler.domain.architectures.architecture import LinearAttention
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import ALL_LINEAR, Dtype, Logprobs, Tuning

OF_QWEN3_NEXT = LinearAttention(
    num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128, conv_kernel_dim=4, interval=4
)


def _of_all_logits(logprobs: Logprobs, kept: int, forward: int, backward: int, score: int) -> tuple[Row, ...]:
    spec, why = replace(FULL, logprobs=logprobs), "8,800 B of logits, 8,000 of completions, 4,000 of a row in float32"
    return (
        row(head_saved, spec, TOY, TWO, part="logits", is_=kept + loss_bytes(TWO), why=why),
        row(head_forward_scratch, spec, TOY, TWO, part="logits", is_=forward, why=why),
        row(head_backward_scratch, spec, TOY, TWO, part="logits", is_=backward, why=why),
        row(score_scratch, spec, TOY, TWO, part="logits", is_=score, why=why),
    )


def _in_bfloat16(logprobs: Logprobs, forward: int, backward: int) -> tuple[Row, ...]:
    spec, why = replace(FULL, logprobs=logprobs, bf16=False), "4,400, 4,000 and 2,000 B; a log-softmax per row is kept"
    return (
        row(head_saved, spec, TOY, TWO, part="logits", is_=4_000 + loss_bytes(TWO), why=why),
        row(head_forward_scratch, spec, TOY, TWO, part="logits", is_=forward, why=why),
        row(head_backward_scratch, spec, TOY, TWO, part="logits", is_=backward, why=why),
    )


def logged(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Term:
    found = logging_scratch(spec, architecture, batch)
    assert found is not None
    return found


def evaluated(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> HeadBytes:
    return score_scratch(spec, architecture, batch, in_model=True)


def _of_labels(logprobs: Logprobs, bf16: bool, is_: int) -> tuple[Row, ...]:
    spec = replace(FULL, logprobs=logprobs, bf16=bf16)
    why = "2 rows of 11: 8,800 B in float32, 4,400 B in bfloat16, 8,000 B of a copy; entropy of 3 tensors"
    return (
        row(head_forward_scratch, spec, TOY, LABELLED, part="logits", is_=4_400 + 8_800, why=why),
        row(head_forward_scratch, spec, TOY, LABELLED, part="activations", is_=352, why=why),
        row(logged, spec, TOY, LABELLED, is_=is_, why=why),
        row(evaluated, spec, TOY, LABELLED, part="logits", is_=4_400 + 2 * 8_800, why=f"{why}; and a log-softmax"),
        row(evaluated, spec, TOY, LABELLED, part="activations", is_=352, why="T x H, while the model computes"),
        row(score_scratch, spec, TOY, LABELLED, part="logits", is_=max(4_400 + 2 * 8_800, is_), why=why),
        row(score_scratch, spec, TOY, LABELLED, part="activations", is_=0, why="gone with the model's forward"),
        row(head_saved, spec, TOY, LABELLED, part="logits", is_=8_800, why=why),
        row(head_backward_scratch, spec, TOY, LABELLED, part="logits", is_=2 * 8_800, why=why),
    )


def _of_long_rows(logprobs: Logprobs, logits: int, rows: int = 2) -> Row:
    spec, why = replace(FULL, logprobs=logprobs), "800,800 B, and a copy without the last tokens of 800,000 B"
    return row(logged, spec, TOY, replace(LONG, rows=rows), is_=logits, why=why)


def waiting(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Term:
    return Term(waiting_logits(spec, architecture, batch))


def _of_pairs(
    spec: TrialKeys, kept: int, forward: int, backward: int, score: int, classes: int, held: int
) -> list[Row]:
    return [
        row(head_saved, spec, TOY, LABELLED, part="logits", is_=kept),
        row(head_forward_scratch, spec, TOY, LABELLED, part="logits", is_=forward),
        row(head_backward_scratch, spec, TOY, LABELLED, part="logits", is_=backward),
        row(score_scratch, spec, TOY, LABELLED, part="logits", is_=score),
        row(all_logits_classes_bytes, spec, TOY, LABELLED, is_=classes),
        row(waiting, spec, TOY, LABELLED, is_=held),
    ]


def in_chunks(spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Term:
    found = head_backward_scratch(spec, architecture, batch)
    return Term(found.logits.size + found.activations.size + found.gradients.size)


def _of_chunks(logprobs: Logprobs, forward: int, backward: int) -> tuple[Row, ...]:
    spec, why = (
        replace(CAST, logprobs=logprobs),
        "20 tokens: 4,000 B of the product, 8,000 B in float32, a head of 1,600 B",
    )
    return (
        row(head_saved, spec, TOY, LABELLED, part="logits", is_=320, why="labels and their order, 2 x 20 x 8"),
        row(head_saved, spec, TOY, LABELLED, part="activations", is_=640, why="20 x 8 x 4"),
        row(head_forward_scratch, spec, TOY, LABELLED, part="logits", is_=forward, why=why),
        row(head_forward_scratch, spec, TOY, LABELLED, part="activations", is_=2 * 11 * 8 * 4, why="T x H"),
        row(in_chunks, spec, TOY, LABELLED, is_=backward + 1_600, why=why),
    )


def _of_many_chunks(logprobs: Logprobs, of: DecoderShape, is_: int, **keys: Any) -> Row:
    why = "256 tokens: 51,200 B of the product, 102,400 B in float32; 2,000 rows of 8; a head of 1,600 or 3,200 B"
    return row(in_chunks, replace(CAST, logprobs=logprobs, **keys), of, LONG, is_=is_, why=why)


_COPIED = replace(LORA, dtype=Dtype.FLOAT32, bf16=True, logprobs=Logprobs.FULL)
_FEW = replace(ONE, completion_tokens=2)
_ADAPTED: dict[str, Any] = {
    "tuning": Tuning.LORA,
    "lora_rank": 2,
    "lora_alpha": 4,
    "lora_target_modules": (ALL_LINEAR,),
}
_CHUNKED: dict[str, Any] = {"logprobs": Logprobs.CHUNKED_NLL_MASKED}
_PADDED = replace(LABELLED, completion_tokens=150, scored_tokens=200)
_TWO_LABELS = replace(LABELLED, rows=1, completion_tokens=2, scored_tokens=2)
_TRAINED = replace(CAST, logprobs=Logprobs.FULL)
_HALF_LORA = replace(LORA, dtype=Dtype.FLOAT16, bf16=True)
_ALL, _SELECTIVE = replace(FULL, logprobs=Logprobs.FULL), replace(FULL, logprobs=Logprobs.SELECTIVE)
_IN_PLACE = replace(FULL, logprobs=Logprobs.SELECTIVE_IN_PLACE)
_KERNEL = replace(FULL, logprobs=Logprobs.SELECTIVE_KERNEL, bf16=False)
_OF_ROWS = replace(FULL, recipe=Recipe.DPO, logprobs=Logprobs.PAIRS_OF_ROWS, max_length=11, max_prompt_length=5)
_AT_ONCE = replace(_OF_ROWS, logprobs=Logprobs.PAIRS_AT_ONCE)
_OF_COMPLETIONS = replace(_OF_ROWS, logprobs=Logprobs.PAIRS_OF_COMPLETIONS)
_LONG_KTO = replace(_OF_ROWS, recipe=Recipe.KTO, max_length=1001, max_prompt_length=501)
_TILE = 10 * 32_768 * 2


def _of_cast_chunks(vocabulary: int, tokens: int, size: int, *, why: str) -> Row:
    """Return a row of the casts of a frozen head in backward, next to a tile of logits."""
    batch, tile = replace(ONE, completion_tokens=tokens, scored_tokens=tokens), min(tokens, 4_096) * 32_768 * 2
    model = replace(TOY, vocab_size=vocabulary)
    return row(head_backward_scratch, _HALF_LORA, model, batch, part="logits", is_=tile + size, why=why)


HEAD_ROWS = (
    row(tile, 1_000, 2, is_=65_536_000, why="1,000 x 32,768 x 2 B"),
    row(head_backward_scratch, FULL, TOY, ONE, part="logits", is_=655_360, why="one tile of 10 tokens"),
    row(head_backward_scratch, FULL, TOY, ONE, part="activations", is_=480, why="10 x 8 x 6"),
    row(head_backward_scratch, FULL, TOY, ONE, part="gradients", is_=4_800, why="100 x 8 x 6"),
    row(head_saved, replace(FULL, logprobs=Logprobs.FULL), TOY, ONE, part="logits", is_=4_000 + loss_bytes(ONE)),
    row(head_backward_scratch, LORA, TOY, ONE, part="gradients", is_=0),
    *_of_all_logits(Logprobs.FULL, 8_000, 8_800, 8_000, 8_800 + 4_400),
    *_of_all_logits(Logprobs.SELECTIVE, 8_000, 3 * 8_000, 2 * 8_000, 8_000 + 8_800),
    *_of_all_logits(Logprobs.SELECTIVE_ROW_ENTROPY, 8_000, 3 * 4_000, 2 * 8_000, 8_000 + 8_800),
    *_of_all_logits(
        Logprobs.SELECTIVE_IN_PLACE, 8_800, 8_000 + 3 * 8_000, 2 * 8_800 + 2 * 8_000 - 8_800, 8_800 + 4_400
    ),
    *_of_all_logits(Logprobs.SELECTIVE_KEPT, 8_000, 8_800 + 3 * 8_000, 2 * 8_000, 8_800 + 8_000 + 4_000),
    # The logits stay, 8,800 B; forward has the product, 4,400 B, next to them, and backward one gradient of 8,000 B.
    *_of_all_logits(Logprobs.SELECTIVE_KERNEL, 8_800, 4_400, 8_000, 8_800 + 4_400),
    row(head_saved, _KERNEL, TOY, TWO, part="logits", is_=4_400 + loss_bytes(TWO), why="2 x 11 x 100 x 2"),
    row(head_forward_scratch, _KERNEL, TOY, TWO, part="logits", is_=0),
    row(head_backward_scratch, _KERNEL, TOY, TWO, part="logits", is_=4_000),
    row(score_scratch, _KERNEL, TOY, TWO, part="logits", is_=4_400),
    row(all_logits_classes_bytes, replace(FULL, logprobs=Logprobs.SELECTIVE_KERNEL), TOY, TWO, is_=30_000),
    *_in_bfloat16(Logprobs.SELECTIVE, 4_000 + 3 * 4_000, 4_000),
    *_in_bfloat16(Logprobs.SELECTIVE_ROW_ENTROPY, 4_000 + 3 * 2_000, 4_000),
    *_in_bfloat16(Logprobs.SELECTIVE_IN_PLACE, 4_400 + 4_000 + 3 * 4_000, 2 * 4_400 + 2 * 4_000 - 4_000),
    *_in_bfloat16(Logprobs.SELECTIVE_KEPT, 4_000 + 4_400 + 3 * 4_000, 4_000),
    # The tangent of 2 x 11 x 100 logits in bfloat16 is kept: 4,400 B.
    row(
        head_saved, replace(FULL, logprobs=Logprobs.SELECTIVE), GEMMA, TWO, part="logits", is_=12_400 + loss_bytes(TWO)
    ),
    row(head_saved, replace(FULL, logprobs=Logprobs.NLL), GEMMA, LABELLED, part="logits", is_=8_800 + 4_400),
    row(head_backward_scratch, _IN_PLACE, GEMMA, TWO, part="logits", is_=2 * 8_800 + 2 * 8_000 - 8_800),
    row(score_scratch, replace(_IN_PLACE, bf16=False), GEMMA, TWO, part="logits", is_=2 * 4_400),
    row(all_logits_classes_bytes, _ALL, TOY, TWO, is_=30_000),
    row(
        all_logits_classes_bytes, replace(FULL, logprobs=Logprobs.FULL), GEMMA, TWO, is_=38_800, why="two more of 4,400"
    ),
    *_of_labels(Logprobs.NLL, True, 8_800),
    *_of_labels(Logprobs.NLL_ACCURACY, True, 8_800 + 3 * 8_800),
    *_of_labels(Logprobs.NLL_ROW_ENTROPY, True, 8_800 + 3 * 4_400),
    *_of_labels(Logprobs.NLL_TWO_COPIES, True, 8_800 + 8_000 + 3 * 8_800),
    *_of_labels(Logprobs.NLL_ENTROPY, True, 8_800 + 8_000 + 3 * 8_800),
    # Without autocast the outputs are in bfloat16.
    *_of_labels(Logprobs.NLL, False, 4_400),
    *_of_labels(Logprobs.NLL_ACCURACY, False, 4_400 + 3 * 4_400),
    *_of_labels(Logprobs.NLL_TWO_COPIES, False, 4_400 + 4_000 + 3 * 4_400),
    _of_long_rows(Logprobs.NLL_ACCURACY, 800_800 + 800_000),
    _of_long_rows(Logprobs.NLL_ROW_ENTROPY, 800_800 + 3 * 400_400),
    _of_long_rows(Logprobs.NLL_TWO_COPIES, 800_800 + 2 * 800_000),
    _of_long_rows(Logprobs.NLL_ENTROPY, 800_800 + 800_000 + 3 * 128 * 100 * 4),
    # A slice of one row is not copied.
    _of_long_rows(Logprobs.NLL_TWO_COPIES, 400_400 + 3 * 128 * 100 * 4, rows=1),
    _of_long_rows(Logprobs.NLL, 400_400, rows=1),
    # 2 rows of 11 tokens: 8,800 B in float32, of which the last tokens have 800 B, and 4,400 B in bfloat16.
    *_of_pairs(_OF_COMPLETIONS, 8_800, 4_400, 4 * 4_400, 13_200, 3 * 8_800 + 4_400 + 2 * 4_400, 0),
    *_of_pairs(_OF_ROWS, 8_000, 8_800, 8_800, 8_800 + 8_000, 2 * 8_800 + 4_400 + 2 * 8_000, 8_800),
    *_of_pairs(_AT_ONCE, 8_000, 8_800 + 8_000, 2 * 8_000, 8_800 + 2 * 8_000, 2 * 8_800 + 4_400 + 3 * 8_000, 8_800),
    # With a KL term the logits of the reference's own rows wait for those of its other pass.
    row(waiting, replace(_AT_ONCE, recipe=Recipe.KTO), TOY, LABELLED, is_=2 * 8_800),
    # Without autocast logits are in bfloat16, if they are not made float32.
    *_of_pairs(replace(_OF_ROWS, bf16=False), 4_000, 4_400, 4_400, 4_400 + 4_000, 2 * 4_400 + 2 * 4_000, 4_400),
    row(head_saved, replace(_OF_COMPLETIONS, bf16=False), TOY, LABELLED, part="logits", is_=4_400),
    row(head_saved, replace(_AT_ONCE, bf16=False), TOY, LABELLED, part="logits", is_=8_000),
    # The slice of one row is no copy.
    row(score_scratch, _AT_ONCE, TOY, replace(LABELLED, rows=1), part="logits", is_=4_400 + 4_000),
    row(logged, _OF_ROWS, TOY, LABELLED, is_=2 * 8_800 + 2_400, why="both, and the chosen completions"),
    row(logged, replace(_OF_ROWS, precompute_ref_log_probs=True), TOY, LABELLED, is_=8_800 + 2_400),
    row(logged, _LONG_KTO, TOY, LONG, is_=2 * 800_800 + 800_000 + 400_000, why="copies of all, and of the good"),
    *_of_chunks(Logprobs.CHUNKED_NLL, 4_000 + 3 * 8_000, 3 * 8_000),
    *_of_chunks(Logprobs.CHUNKED_NLL_MASKED, 4_000 + 3 * 8_000, 4_000 + 3 * 8_000),
    *_of_chunks(Logprobs.CHUNKED_NLL_CAST, 4 * 8_000, 4 * 8_000),
    _of_many_chunks(Logprobs.CHUNKED_NLL_MASKED, TOY, 358_400 + 1_600 + 64_000 + 3_200),
    _of_many_chunks(Logprobs.CHUNKED_NLL, TOY, 307_200 + 1_600 + 64_000, **_ADAPTED),
    # The sum of the first two chunks is a third gradient of the head, of 151,936 x 896 x 4 B.
    _of_many_chunks(Logprobs.CHUNKED_NLL_CAST, HALF_BILLION, 3 * 544_538_624 + 2_000 * 896 * 4),
    # 200 of 300 positions have a label: one chunk, of 256.
    row(in_chunks, replace(CAST, **_CHUNKED), TOY, _PADDED, is_=358_400 + 1_600),
    # A head in bfloat16 is widened, and narrowed again by autocast: 3,200 + 1,600 B, with a product of 400 B.
    row(head_forward_scratch, replace(FULL, **_CHUNKED), TOY, _TWO_LABELS, part="logits", is_=5_200),
    row(in_chunks, replace(FULL, **_CHUNKED), TOY, _TWO_LABELS, is_=5_200),
    # Without autocast the widened head is kept, and later releases make none.
    row(in_chunks, replace(FULL, bf16=False, **_CHUNKED), TOY, LABELLED, is_=4 * 8_000 + 3_200),
    row(in_chunks, replace(FULL, bf16=False, logprobs=Logprobs.CHUNKED_NLL_CAST), TOY, LABELLED, is_=4 * 8_000),
    row(cast_chunk_bytes, CAST, TOY, ONE, 100, is_=1_760, why="(100 + 10) x 8 x 2"),
    row(cast_chunk_bytes, FULL, TOY, ONE, 100, is_=0),
    row(head_backward_scratch, CAST, TOY, ONE, part="gradients", is_=100 * 8 * 4, why="nothing is converted"),
    row(head_saved, _COPIED, TOY, ONE, part="activations", is_=1_600, why="the whole head is copied"),
    row(head_saved, replace(_COPIED, dtype=Dtype.BFLOAT16), TOY, ONE, part="activations", is_=0),
    row(score_scratch, _COPIED, TOY, ONE, part="logits", is_=(11 + 10) * 100 * 4, why="more than the copy and product"),
    row(score_scratch, _COPIED, TOY, _FEW, part="logits", is_=3 * 100 * 2 + 1_600, why="the copy and its product"),
    row(score_scratch, _TRAINED, TOY, _FEW, part="logits", is_=(3 + 2) * 100 * 4, why="its copy is cached"),
    row(head_backward_scratch, HALF, TOY, ONE, part="activations", is_=10 * 8 * 4, why="the gradient is float32"),
    row(head_backward_scratch, HALF, TOY, ONE, part="gradients", is_=100 * 8 * 6),
    row(
        head_backward_scratch,
        HALF,
        TOY,
        ONE,
        part="logits",
        is_=_TILE + (100 + 10) * 8 * 2,
        why="the only chunk of the head",
    ),
    row(
        head_backward_scratch,
        _HALF_LORA,
        TOY,
        ONE,
        part="logits",
        is_=_TILE + (100 + 10) * 8 * 2,
        why="with adapters nothing is returned, and a head of one chunk is cast once",
    ),
    _of_cast_chunks(49_152, 10, (32_768 + 16_384 + 10) * 8 * 2, why="the second chunk is half as large"),
    _of_cast_chunks(70_000, 10, (2 * 32_768 + 10) * 8 * 2, why="two whole chunks"),
    _of_cast_chunks(100, 5_000, (2 * 100 + 4_096) * 8 * 2, why="cast again for the second tile"),
)

ROLLOUT_ROWS = (
    row(kv_cache, HALF_BILLION, sequences=16, tokens=1041, element=2, is_=204_668_928),
    row(kv_cache, SINKS, sequences=3, tokens=10, element=2, is_=2 * 2 * 3 * 4 * 10 * 2),
    row(state_bytes, OF_QWEN3_NEXT, sequences=16, element=2, is_=34_603_008),
    row(
        kv_cache,
        replace(WITH_GATE, first_layers=(replace(DELTA, num_hidden_layers=1),)),
        sequences=3,
        tokens=10,
        element=2,
        is_=2 * 3 * 10 * 4 * 2 + 3 * (14 * 4 * 2 + 2 * 4 * 3 * 4),
        why="keys and values of one layer, and the state of the other",
    ),
    row(kv_cache, LATENT, sequences=3, tokens=10, element=2, is_=2 * 3 * 10 * (4 + 2) * 2, why="of what heads are"),
    row(growth_copy, LATENT, sequences=3, tokens=10, element=2, is_=3 * 10 * 4 * 2),
    row(
        kv_cache,
        SINKS,
        sequences=3,
        tokens=10,
        element=2,
        slides=True,
        is_=2 * 3 * 4 * (10 + 4) * 2,
        why="one of two layers has 4 tokens",
    ),
    row(growth_copy, HALF_BILLION, sequences=16, tokens=1041, element=2, is_=204_668_928 // 48),
    row(sampling, FULL, HALF_BILLION, is_=38_895_616),
    row(last_logits, HALF, HALF_BILLION, is_=24_309_760, why="16 x 151,936 x (2 + 2 x 4)"),
    row(generated_inputs, FULL, is_=533_504, why="16 x 1,042 x 8 x 4"),
)
