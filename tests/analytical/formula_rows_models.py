"""Numbers of weights, gradients, copies, optimizers and workspaces, worked out by hand."""

from dataclasses import replace

from formula_row import Row, group, row
from toy_models import HALF_BILLION

from profiler.analytical.formulas.models.trained import all_gradients
from profiler.analytical.formulas.models.weights import (
    adapters,
    autocast_cache_bytes,
    autocast_forward_bytes,
    autocast_more_bytes,
    autocast_saved_bytes,
    autocast_scoring_bytes,
    critic,
    nf4_bytes,
    recomputed_copies_bytes,
    reference,
    reward_models,
    weights,
)
from profiler.analytical.optimizers import (
    eight_bit_states_bytes,
    optimizer_scratch,
    optimizer_state,
    paged_8bit_states_bytes,
    rows_and_columns_bytes,
    states_bytes,
)
from profiler.analytical.timeline.instants import untied_head, workspace
from profiler.analytical.timeline.recipes.of_data import data_inputs
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import ALL_LINEAR, Backend, Dtype, TrialSpec, Tuning

FULL = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="toy")
LORA = replace(FULL, tuning=Tuning.LORA, lora_rank=16, lora_alpha=32, lora_target_modules=(ALL_LINEAR,))
QLORA = replace(LORA, tuning=Tuning.QLORA)
WIDE, HALF = replace(FULL, dtype=Dtype.FLOAT32), replace(FULL, dtype=Dtype.FLOAT16)
WIDE_LORA = replace(LORA, dtype=Dtype.FLOAT32)
SCORED = replace(HALF_BILLION, reward_models=(HALF_BILLION,))
UNTIED = replace(HALF_BILLION, tie_word_embeddings=False)
PAIRS = replace(
    FULL,
    recipe=Recipe.DPO,
    beta=0.1,
    max_length=1_024,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
)
LINEAR = 494_032_768 - 151_936 * 896 - 24 * (1_152 + 2 * 896) - 896
"""Weights of the linear layers of qwen2.5-0.5b."""


def _optimizer(optim: Optimizer, state: int, scratch: int) -> tuple[Row, ...]:
    tensors, why = [group(100, 1_024), group(50)], "[100, 1,024] in bfloat16, and a vector of 50"
    return (
        row(optimizer_state, optim, tensors, element=2, is_=state, why=why),
        row(optimizer_scratch, optim, tensors, element=2, is_=scratch, why=why),
    )


MODEL_ROWS = (
    row(nf4_bytes, 16_384, is_=8_192 + 256 + 4 + 64 + 1_024 + 4),
    row(nf4_bytes, 16_384, double_quant=False, is_=8_192 + 1_024 + 64),
    row(weights, FULL, HALF_BILLION, is_=494_032_768 * 2 + 2 * 32 * 4),
    row(all_gradients, FULL, HALF_BILLION, is_=988_065_536),
    row(reference, FULL, HALF_BILLION, is_=0),
    row(reference, replace(FULL, beta=0.04), HALF_BILLION, is_=494_032_768 * 2 + 2 * 32 * 4),
    row(reference, replace(LORA, ref_adapter=True), HALF_BILLION, is_=8_798_208 * 4, why="a copy of the adapters"),
    row(reference, replace(QLORA, ref_adapter=True), HALF_BILLION, is_=8_798_208 * 4, why="the copy stays float32"),
    row(adapters, replace(QLORA, ref_adapter=True), HALF_BILLION, is_=8_798_208 * 2, why="what is trained"),
    row(adapters, LORA, HALF_BILLION, is_=8_798_208 * 4),
    row(adapters, QLORA, HALF_BILLION, is_=8_798_208 * 2),
    row(critic, replace(FULL, critic=True), HALF_BILLION, is_=988_067_586, why="(494,032,768 + 897) x 2 B + 256 B"),
    row(reward_models, FULL, SCORED, is_=(494_032_768 + 896) * 2 + 256),
    row(reward_models, WIDE, SCORED, is_=(494_032_768 + 896) * 4 + 256),
    row(reward_models, FULL, replace(SCORED, reward_models=(UNTIED,)), is_=(494_032_768 + 896) * 2 + 256),
    row(reward_models, FULL, HALF_BILLION, is_=0),
    row(untied_head, FULL, HALF_BILLION, is_=272_269_312),
    row(untied_head, FULL, UNTIED, is_=0),
    row(autocast_cache_bytes, LORA, HALF_BILLION, is_=17_596_416),
    row(autocast_cache_bytes, FULL, HALF_BILLION, is_=0),
    row(recomputed_copies_bytes, LORA, HALF_BILLION, is_=733_184),
    row(autocast_saved_bytes, LORA, HALF_BILLION, is_=0, why="autocast's cache ends with forward"),
    row(autocast_scoring_bytes, LORA, HALF_BILLION, is_=17_596_416),
    row(autocast_scoring_bytes, replace(LORA, bf16=False), HALF_BILLION, is_=0),
    row(autocast_scoring_bytes, QLORA, HALF_BILLION, is_=0, why="what is trained is bfloat16"),
    row(autocast_scoring_bytes, replace(QLORA, ref_adapter=True), HALF_BILLION, is_=17_596_416, why="the copy is not"),
    row(
        autocast_forward_bytes,
        WIDE_LORA,
        HALF_BILLION,
        in_layer=True,
        is_=8_798_208 * 2 + 896 * 4_864 * 2,
        why="under checkpointing the copy of a frozen weight is transient",
    ),
    row(
        autocast_forward_bytes,
        replace(HALF, gradient_checkpointing=False),
        HALF_BILLION,
        in_layer=False,
        is_=2 * LINEAR,
        why="each product saves its copy",
    ),
    row(autocast_more_bytes, WIDE_LORA, HALF_BILLION, in_layer=True, is_=26_312_704),
    row(autocast_more_bytes, WIDE_LORA, HALF_BILLION, in_layer=False, is_=8_798_208 * 2),
    row(
        autocast_forward_bytes,
        HALF,
        HALF_BILLION,
        in_layer=True,
        is_=896 * 4_864 * 2,
        why="one copy at a time, the largest",
    ),
    row(autocast_scoring_bytes, HALF, HALF_BILLION, is_=0, why="copies of float16 weights are not cached"),
    row(autocast_forward_bytes, WIDE, HALF_BILLION, in_layer=False, is_=2 * LINEAR),
    row(autocast_scoring_bytes, WIDE, HALF_BILLION, is_=2 * LINEAR),
    row(workspace, "h100-80gb", is_=67_108_864),
    row(workspace, None, is_=67_108_864),
    row(workspace, "a100-80gb", is_=2 * 8_519_680),
    row(
        data_inputs,
        replace(
            FULL, recipe=Recipe.SFT, max_length=1_024, per_device_train_batch_size=4, gradient_accumulation_steps=4
        ),
        is_=393_216,
        why="4 x 3 x 4 x 1,024 x 8",
    ),
    row(data_inputs, PAIRS, is_=393_216, why="4 x 3 x 4 x 1,024 x 8"),
    row(
        data_inputs,
        replace(PAIRS, precompute_ref_log_probs=True),
        is_=393_216 + 4 * 2 * 2 * 4,
        why="and two float32 numbers of each of 2 pairs, 4 times",
    ),
    row(
        data_inputs,
        replace(PAIRS, recipe=Recipe.REWARD),
        is_=4 * 2 * 4 * 1_024 * 8,
        why="4 x 2 x 4 x 1,024 x 8: ids and mask of 4 rows",
    ),
    row(
        data_inputs,
        replace(PAIRS, recipe=Recipe.KTO, precompute_ref_log_probs=True),
        is_=4 * (6 * 2 * 1_024 * 8 + 2 * 2 * 4),
        why="4 x 6 x 2 x 1,024 x 8, and two float32 numbers of each of 2 rows, 4 times",
    ),
)

OPTIMIZER_ROWS = (
    row(states_bytes, 1_000, 2, is_=4_000),
    row(eight_bit_states_bytes, 4_096, is_embedding=False, is_=8_320),
    row(eight_bit_states_bytes, 1_024, is_embedding=False, is_=8_192, can_fall=True, why="from 4,096 on in 8 bits"),
    row(eight_bit_states_bytes, 4_096, is_embedding=True, is_=32_768),
    row(paged_8bit_states_bytes, 102_400, is_embedding=False, is_=3_200),
    row(paged_8bit_states_bytes, 102_400, is_embedding=True, is_=0),
    row(rows_and_columns_bytes, (100, 50), is_=600),
    row(rows_and_columns_bytes, (50,), is_=200),
    *_optimizer(Optimizer.ADAMW_TORCH_FUSED, 2 * 102_400 * 2 + 4 + 2 * 50 * 2 + 4, 0),
    *_optimizer(Optimizer.ADAMW_TORCH, 2 * 102_400 * 2 + 2 * 50 * 2, 102_400 * 2),
    *_optimizer(Optimizer.ADAFACTOR, (100 + 1_024 + 50) * 4, 4 * 102_400 * 4),
    *_optimizer(Optimizer.SGD, 0, 0),
    row(
        optimizer_state,
        Optimizer.ADAMW_8BIT,
        [group(100, 1_024), group(50)],
        element=2,
        is_=2 * 102_400 + 3_200 + 2 * 50 * 4,
    ),
    row(optimizer_scratch, Optimizer.ADAMW_8BIT, [group(100, 1_024), group(50)], element=2, is_=0),
    row(
        optimizer_state,
        Optimizer.PAGED_ADAMW_8BIT,
        [group(100, 1_024), group(50)],
        element=2,
        is_=3_200 + 2 * 50 * 4,
        can_fall=True,
        why="a tensor of 100,000 values is paged",
    ),
    row(
        optimizer_state,
        Optimizer.PAGED_ADAMW_32BIT,
        [group(100, 1_024), group(50)],
        element=2,
        is_=2 * 50 * 4,
        why="a tensor of 100,000 values is paged",
    ),
    *_optimizer(Optimizer.LION_8BIT, 102_400 + 1_600 + 50 * 4, 0),
    *_optimizer(Optimizer.LION_32BIT, 102_450 * 4, 0),
    *_optimizer(Optimizer.ADEMAMIX_8BIT, 3 * (102_400 + 1_600 + 50 * 4), 0),
    *_optimizer(Optimizer.ADEMAMIX, 3 * 102_450 * 4, 0),
    row(optimizer_scratch, Optimizer.PAGED_ADAMW_8BIT, [group(100, 1_024), group(50)], element=2, is_=0),
    row(optimizer_scratch, Optimizer.ADAMW_TORCH, [group(100, 50), group(50, copies=3)], element=2, is_=10_000),
    row(optimizer_scratch, Optimizer.ADAFACTOR, [group(100, 50), group(50, copies=3)], element=2, is_=80_000),
    row(optimizer_scratch, Optimizer.ADAMW_TORCH_FUSED, [group(100, 50), group(50, copies=3)], element=2, is_=0),
    row(optimizer_scratch, Optimizer.SGD, [group(100, 50), group(50, copies=3)], element=2, is_=0),
    row(
        optimizer_scratch,
        Optimizer.SGD,
        [group(100, 50), group(50, copies=3)],
        element=2,
        weight_decay=0.1,
        is_=10_000,
        why="transformers decays matrices only",
    ),
    row(optimizer_scratch, Optimizer.ADAFACTOR, [group(100, 50)], element=2, weight_decay=0.1, is_=80_000),
)
