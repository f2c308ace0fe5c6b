"""Numbers of mixtures of experts, vision towers, vLLM's engine and jobs of verl, worked out by hand."""

from dataclasses import replace

from formula_row import row
from toy_models import (
    ADDED_EXPERT,
    AUTOCAST,
    BIASED_EXPERTS,
    CONFIG,
    ENGINE,
    EVERYTHING,
    GATED,
    GELU,
    HALF_BILLION,
    JOB,
    LATENT,
    MIXTRAL,
    NO_AUTOCAST,
    NORMED_EXPERTS,
    OF_EXPERTS,
    OLMOE,
    QWEN2,
    SEVEN_BILLION,
    SOME_EXPERTS,
    TOY,
    TWO_STEPS,
    VISION,
    VISION_FULL,
    VISION_LORA,
    architecture_of,
    mixture,
)

from profiler.analytical.formulas.layers.experts import (
    added_bytes,
    decoding_bytes,
    experts_backward_bytes,
    experts_saved_bytes,
    experts_without_gradient_bytes,
    merged_bytes,
    norms_saved_bytes,
    recomputed_gate_bytes,
    sum_norm_bytes,
)
from profiler.analytical.formulas.models.parameters import (
    active_parameter_count,
    lora_parameter_count,
    parameter_count,
)
from profiler.analytical.formulas.models.weights import critic_count
from profiler.analytical.formulas.tower import (
    block_saved_bytes,
    block_without_gradient_bytes,
    image_patches,
    image_tokens,
    merger_saved_bytes,
    norm_saved_bytes,
    pixel_bytes,
    position_bytes,
    tower_kept_bytes,
)
from profiler.analytical.formulas.verl_pass import (
    entropy_log_prob_bytes,
    entropy_update_bytes,
    kv_demand_bytes,
    logits_bytes,
    pool_bytes,
    stack_bytes,
)
from profiler.analytical.formulas.vllm_memory import (
    buffer_bytes,
    kv_block_bytes,
    needed_cache_bytes,
    profile_run_bytes,
    requested_bytes,
    sent_weights,
    sharded_parameters,
    token_count_bytes,
)
from profiler.domain.trials.trial import ALL_LINEAR, Tuning, VllmMode
from profiler.domain.verl import EntropySettings

_ATTENTION = 16 * (4 * 1024 + 2 * (1024 + 256))
_ADAPTED_EXPERTS = 32 * 16 * (1024 + 2 * 512) + 16 * 16 * (512 + 1024) + 16 * (1024 + 16)
_LAYER = 1024 * 2560 + 128 + 16 * 1024 + 16 * 3 * 1024 * 512 + 2 * 1024
_SHARED = 1024 * 2560 + 1024 + 2 * 256 + 16 * 1024 + 16 * 3 * 1024 * 512 + 3 * 1024 * 2048 + 1024 + 2 * 1024
_30B = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "vocab_size": 151_936,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "head_dim": 128,
}
AIR = architecture_of("glm-4.5-air")
_AIR_ATTENTION = 2 * 4096 * 12_288 + 2 * 4096 * 1024 + 12_288 + 2 * 1024 + 2 * 4096
_AIR_EXPERTS = 129 * 3 * 4096 * 1408 + 128 * 4096
_OSS_ATTENTION = 2 * 2880 * 4096 + 2 * 2880 * 512 + 4096 + 2 * 512 + 2880 + 64
_A_LAYER = 16 * (2 * 1792 + 2 * 1024 + 3 * 5760)

COUNT_ROWS = (
    row(
        parameter_count,
        mixture(CONFIG),
        is_=4 * _LAYER + 2 * 8192 * 1024 + 1024,
        why="attention and two norms of 64, a router, 16 experts of 3 x 1,024 x 512, norms",
    ),
    row(parameter_count, mixture({**CONFIG, **_30B}), is_=30_532_122_624, why="Qwen3-30B-A3B, as published"),
    row(
        active_parameter_count,
        mixture(CONFIG),
        is_=128_001_536 - 4 * 12 * 3 * 1024 * 512,
        why="12 of 16 experts of each layer are not used",
    ),
    row(
        parameter_count,
        mixture(QWEN2),
        is_=4 * _SHARED + 2 * 8192 * 1024 + 1024,
        why="biases, a router, 16 experts, a shared one and the row that weighs it, two norms",
    ),
    row(
        parameter_count,
        mixture(OLMOE),
        is_=128_001_536 + 4 * (1024 + 256 - 2 * 64),
        why="norms over all heads of queries and keys",
    ),
    row(
        parameter_count,
        AIR,
        is_=2 * 151_552 * 4096 + 46 * _AIR_ATTENTION + 3 * 4096 * 10_944 + 45 * _AIR_EXPERTS + 4096,
        why="one layer has a dense MLP, 45 have a router, 128 experts and a shared one",
    ),
    row(
        parameter_count,
        architecture_of("gpt-oss-20b"),
        is_=2 * 201_088 * 2880 + 2880 + 24 * (_OSS_ATTENTION + 32 * (3 * 2880**2 + 4 * 2880 + 1) + 2 * 2880),
        why="24 layers with sinks, and experts and a router with biases",
    ),
    row(
        active_parameter_count,
        AIR,
        is_=106_852_245_504 - 45 * 120 * 3 * 4096 * 1408,
        why="120 of 128 experts of 45 layers are not used",
    ),
    row(
        lora_parameter_count,
        AIR,
        1,
        ("down_proj", "o_proj"),
        is_=46 * (12_288 + 4096) + 45 * 128 * (4096 + 1408),
        why="peft takes the names of experts for theirs alone, not for the dense MLP or the shared expert",
    ),
    row(
        lora_parameter_count,
        mixture(CONFIG),
        16,
        (ALL_LINEAR,),
        is_=4 * (_ADAPTED_EXPERTS + _ATTENTION),
        why="gate and up of 16 experts have twice the rank, the router has an adapter too",
    ),
    row(
        lora_parameter_count,
        mixture(MIXTRAL),
        16,
        (ALL_LINEAR,),
        is_=4 * (_ATTENTION + 32 * 8 * (1024 + 2048) + 16 * 8 * (1024 + 1024) + 16 * (1024 + 8)),
        why="8 experts, which transformers 4 called w1, w3 and w2",
    ),
    row(lora_parameter_count, HALF_BILLION, 16, (ALL_LINEAR,), is_=24 * _A_LAYER, why="8,798,208: rank x (in + out)"),
    row(lora_parameter_count, HALF_BILLION, 16, ("q_proj", "v_proj"), is_=24 * 16 * (1792 + 1024)),
    row(critic_count, TOY, is_=parameter_count(TOY) + 9, why="one value and its bias"),
    row(
        critic_count,
        replace(TOY, tie_word_embeddings=False),
        is_=parameter_count(replace(TOY, tie_word_embeddings=False)) - 800 + 9,
    ),
)

EXPERT_ROWS = (
    row(experts_saved_bytes, TWO_STEPS, SOME_EXPERTS, 2, is_=256 + 4 * 64, why="2 tokens: 8 pairs"),
    row(experts_saved_bytes, OF_EXPERTS, SOME_EXPERTS, 2, is_=8 * (4 + 3 * 2) * 2 + 4 * 64),
    row(experts_without_gradient_bytes, TWO_STEPS, SOME_EXPERTS, 2, **AUTOCAST, is_=256 + 4 * 64),
    row(
        experts_without_gradient_bytes,
        TWO_STEPS,
        replace(SOME_EXPERTS, model_type="mixtral"),
        2,
        **AUTOCAST,
        is_=384 + 4 * 64,
    ),
    row(experts_backward_bytes, OF_EXPERTS, replace(SOME_EXPERTS, model_type="mixtral"), 2, is_=3 * 8 * 4 * 4),
    row(
        experts_saved_bytes,
        TWO_STEPS,
        ADDED_EXPERT,
        2,
        is_=256 + 4 * 64 + 2 * 4 * 2,
        why="the router's copy of its input",
    ),
    row(added_bytes, TWO_STEPS, ADDED_EXPERT, 2, is_=2 * 4 * 2),
    row(
        experts_without_gradient_bytes,
        OF_EXPERTS,
        ADDED_EXPERT,
        2,
        **NO_AUTOCAST,
        is_=2 * 8 * 4 * (2 + 4) + 4 * 64,
        why="the router computes in float32 without autocast",
    ),
    row(
        experts_without_gradient_bytes,
        OF_EXPERTS,
        replace(ADDED_EXPERT, model_type="deepseek_v2"),
        2,
        **AUTOCAST,
        is_=2 * 8 * 4 * (2 + 4) + 4 * 64,
        why="a softmax in float32, whatever autocast does",
    ),
    row(norms_saved_bytes, TWO_STEPS, replace(NORMED_EXPERTS, hidden_size=8), 10, is_=2720),
    row(norms_saved_bytes, OF_EXPERTS, replace(NORMED_EXPERTS, hidden_size=8), 10, is_=4 * 360),
    row(norms_saved_bytes, EVERYTHING, NORMED_EXPERTS, 2, is_=4 * 40 + 2 * 4 * 2 + 2 * 16 * 2, why="an adapted router"),
    row(norms_saved_bytes, TWO_STEPS, SOME_EXPERTS, 2, is_=0),
    row(sum_norm_bytes, TWO_STEPS, replace(NORMED_EXPERTS, hidden_size=8), 10, is_=680),
    row(experts_without_gradient_bytes, TWO_STEPS, NORMED_EXPERTS, 2, **AUTOCAST, is_=384 + 4 * 64 + 2 * 16),
    row(experts_backward_bytes, OF_EXPERTS, NORMED_EXPERTS, 2, is_=3 * 8 * 4 * 4 + 16 - 40, why="less a norm"),
    row(recomputed_gate_bytes, OF_EXPERTS, BIASED_EXPERTS, 2, is_=192),
    row(experts_saved_bytes, OF_EXPERTS, BIASED_EXPERTS, 2, is_=8 * (4 + 6 * 2) * 2 + 4 * 64, why="a clamped gate"),
    row(
        experts_without_gradient_bytes,
        OF_EXPERTS,
        BIASED_EXPERTS,
        2,
        **NO_AUTOCAST,
        is_=8 * (4 + 9 * 2) * 2 + 4 * 64,
        why="at the product of the clamped gate",
    ),
    row(experts_backward_bytes, OF_EXPERTS, ADDED_EXPERT, 2, is_=3 * 8 * 4 * 2 + 2 * 4 * 2),
    row(merged_bytes, replace(EVERYTHING, lora_rank=3), replace(SOME_EXPERTS, experts_per_token=4), is_=768 + 2112),
    row(
        merged_bytes,
        replace(EVERYTHING, lora_rank=3, tuning=Tuning.QLORA),
        SOME_EXPERTS,
        is_=768,
        why="over 4-bit weights adapters are in bfloat16 already",
    ),
    row(merged_bytes, OF_EXPERTS, SOME_EXPERTS, is_=0),
    row(merged_bytes, TWO_STEPS, SOME_EXPERTS, is_=0),
    row(decoding_bytes, TWO_STEPS, SOME_EXPERTS, 2, is_=384),
)

_TWO_IMAGES = replace(VISION_FULL, images_per_prompt=2)
_BLOCK = 10 * (2 * 52 + 6 * 8 * 2 + 2 * 4 + 3 * 16 * 2 + 3 * 8 * 2 + 16 * 2)

TOWER_ROWS = (
    row(image_tokens, _TWO_IMAGES, VISION, 4, is_=4_096, why="401,408 pixels / 784 = 512 tokens of four patches"),
    row(image_patches, _TWO_IMAGES, VISION, 4, is_=16_384),
    row(pixel_bytes, _TWO_IMAGES, VISION, 4, is_=16_384 * 1_176 * 4),
    row(position_bytes, VISION_FULL, GATED, 10, is_=2 * 10 * 4 * 4, why="cosines and sines of 10 patches"),
    row(
        position_bytes,
        VISION_FULL,
        replace(GATED, position_embeddings=16),
        10,
        is_=320 + 10 * 4 * (4 + 8),
        why="four weights and indices each where learned positions are interpolated",
    ),
    row(norm_saved_bytes, VISION_LORA, GATED, 80, 10, is_=360),
    row(norm_saved_bytes, VISION_FULL, GATED, 80, 10, is_=520),
    row(norm_saved_bytes, VISION_FULL, GELU, 80, 10, is_=400),
    row(block_saved_bytes, VISION_FULL, GATED, 10, is_=_BLOCK, why="3,840 B"),
    row(
        block_saved_bytes,
        VISION_FULL,
        GELU,
        10,
        is_=10 * (2 * 40 + 6 * 8 * 2 + 2 * 4 + 16 * 2 + 3 * 8 * 2 + 16 * 2),
    ),
    row(merger_saved_bytes, VISION_FULL, replace(GATED, hidden_size=4), 8, is_=416),
    row(block_without_gradient_bytes, VISION_FULL, GATED, 10, adapted=True, autocast=False, is_=2_720),
    row(
        tower_kept_bytes,
        replace(VISION_FULL, max_pixels=32),
        GATED,
        1,
        is_=128 + (8 * 52 + 3 * 2 * 32 * 2) + 2 * 8 * 4 * 4 + 8 * 12 * 2,
        why="checkpointed: input, merger, positions and cast pixels; 8 patches of 12 values are 2 tokens",
    ),
)

_LONG = replace(architecture_of("qwen2.5-1.5b"), max_position_embeddings=131_072)
_LLAMA = architecture_of("llama-3.1-8b")
_NORMS, _OF_HEAD = 49 * 896, 2 * 24 * 64 * 897

ENGINE_ROWS = (
    row(requested_bytes, ENGINE, is_=25_483_227_956, why="0.3 x 84,944,093,184 B, rounded up as vLLM does"),
    row(requested_bytes, replace(ENGINE, use_vllm=False), is_=0),
    row(requested_bytes, replace(ENGINE, vllm_mode=VllmMode.SERVER), is_=0),
    row(sent_weights, ENGINE, HALF_BILLION, is_=0, why="colocated"),
    row(
        sent_weights,
        replace(ENGINE, vllm_mode=VllmMode.SERVER),
        architecture_of("qwen2.5-7b"),
        is_=3_373_268_992,
        why="2 GiB, 3,584 x 18,944 x 2 B, and 152,064 x 3,584 x 2 B",
    ),
    row(token_count_bytes, HALF_BILLION, is_=626_736, why="4 x (151,936 + 4,748)"),
    row(profile_run_bytes, ENGINE, HALF_BILLION, is_=148_897_792, why="4,096 x (3 x 4,864 + 4 x 896) x 2"),
    row(
        profile_run_bytes,
        replace(ENGINE, per_device_train_batch_size=128),
        HALF_BILLION,
        is_=(512 * 151_936 + 4_096 * 896) * 2,
        why="logits of 512 sequences exceed an MLP",
    ),
    row(buffer_bytes, ENGINE, _LONG, is_=45_428_736, why="as an emulated engine keeps in its sleep"),
    row(
        buffer_bytes,
        replace(ENGINE, vllm_max_model_length=2048),
        HALF_BILLION,
        is_=45_428_736 - 2 * 16 * (8192 - 128) * 4,
    ),
    *(
        row(
            buffer_bytes,
            replace(ENGINE, per_device_train_batch_size=sequences, steps_per_generation=1),
            HALF_BILLION,
            is_=33_554_432 + 1_015_808 + 86_016 + 2 * sequences * 2048 * 4 + rows * 607_744,
            why="132 multiprocessors run 132 programs at most, for which 132 rows are kept; 33 sequences have 64",
        )
        for sequences, rows in ((512, 132), (33, 64))
    ),
    row(parameter_count, LATENT, is_=100 * 8 + 8 + 2 * (48 + 72 + 48 + 56 + 48 + 3 * 8 * 16 + 2 * 8 + 6 + 4)),
    row(kv_block_bytes, LATENT, gpus=2, is_=2 * (4 + 2) * 16 * 2, why="each GPU has what heads are made of"),
    row(sharded_parameters, LATENT, gpus=2, is_=60 + 2 * 96 + (2172 - 60 - 192) // 2),
    row(kv_block_bytes, HALF_BILLION, gpus=1, is_=196_608),
    row(kv_block_bytes, HALF_BILLION, gpus=2, is_=98_304, why="of 2 heads, each of 2 GPUs has one"),
    row(kv_block_bytes, HALF_BILLION, gpus=7, is_=98_304, why="and so has each of 7"),
    row(sharded_parameters, HALF_BILLION, gpus=2, is_=247_038_336),
    row(
        sharded_parameters,
        HALF_BILLION,
        gpus=7,
        is_=_NORMS + -(-(494_032_768 - _NORMS - 2 * _OF_HEAD) // 7) + _OF_HEAD,
    ),
    row(needed_cache_bytes, replace(ENGINE, vllm_max_model_length=None), _LLAMA, is_=16 * 2**30, why="131,072 tokens"),
    row(needed_cache_bytes, replace(ENGINE, vllm_max_model_length=8_192), _LLAMA, is_=2**30),
)

_SMALL = replace(SEVEN_BILLION, vocab_size=100)


def _entropy(**keys: bool) -> object:
    return replace(JOB, entropy=EntropySettings(**keys))


_IN_LOSS = {"in_update": True, "in_loss": True}

VERL_ROWS = tuple(
    replace(each, of_arrays=False)
    for each in (
        row(entropy_update_bytes, JOB, _SMALL, 1_000, is_=0),
        row(entropy_update_bytes, _entropy(**_IN_LOSS), _SMALL, 1_000, is_=200_000, why="one more bfloat16 gradient"),
        row(entropy_update_bytes, _entropy(**_IN_LOSS, is_compiled=False), _SMALL, 1_000, is_=2_400_000),
        row(entropy_update_bytes, _entropy(in_update=True, is_compiled=False), _SMALL, 1_000, is_=1_000_000),
        row(
            entropy_update_bytes,
            _entropy(in_update=True, is_compiled=False, checkpointing=True),
            _SMALL,
            1_000,
            is_=200_000,
        ),
        row(
            entropy_update_bytes,
            _entropy(**_IN_LOSS, is_compiled=False, only_responses=True),
            _SMALL,
            1_536,
            is_=1_024 * 100 * 24,
            why="1,024 of 1,536 tokens are responses",
        ),
        row(entropy_update_bytes, replace(_entropy(**_IN_LOSS), use_fused_kernels=True), _SMALL, 1_000, is_=0),
        row(entropy_log_prob_bytes, JOB, _SMALL, 1_000, is_=0),
        row(entropy_log_prob_bytes, _entropy(is_compiled=False), _SMALL, 1_000, is_=1_200_000),
        row(
            entropy_log_prob_bytes,
            _entropy(is_compiled=False, chunking=True),
            _SMALL,
            10_000,
            is_=2_048 * 100 * 12,
        ),
        row(logits_bytes, JOB, HALF_BILLION, 1_000, training=True, is_=2 * 303_872_000),
        row(logits_bytes, replace(JOB, use_fused_kernels=True), HALF_BILLION, 1_000, training=True, is_=0),
        row(stack_bytes, JOB, SEVEN_BILLION, JOB.actor, is_=200_704_000),
        row(stack_bytes, JOB, SEVEN_BILLION, replace(JOB.actor, activation_offload=True), is_=14_336_000),
        row(pool_bytes, JOB, 80 * 10**9, is_=40_000_000_000),
        row(kv_demand_bytes, JOB, SEVEN_BILLION, is_=90_194_313_216),
    )
)
