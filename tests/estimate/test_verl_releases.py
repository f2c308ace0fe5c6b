"""verl 0.9.1 next to 0.8: which release is taken, where its workers find their settings, and what they do otherwise."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analytical.explanation.boundary import verl_card
from profiler.analytical.formulas.models.parameters import layer_parameter_count
from profiler.analytical.formulas.verl_pass import engine_weights_bytes, stack_bytes, sync_bytes
from profiler.analytical.timeline.recipes.verl import Component, Role, VerlPhase, shardings_of, verl_estimate
from profiler.config.models.architecture import read_architecture
from profiler.config.models.lookup import builtin_architecture
from profiler.config.verl.config import read_verl
from profiler.config.verl.keys import DEFAULTS, LATER_MEMORY_KEYS
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_USAGE, UsageError
from profiler.domain.verl import EntropySettings, Release, RewardEngine, Strategy, Workers
from profiler.estimate.main import answer, main

ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
MEGATRON = f"{ACTOR}.megatron"
REWARD = "reward.reward_model"
GRPO = {"algorithm.adv_estimator": "grpo", f"{MODEL}.path": "qwen3-8b"}
WORDS = ("config=verl", "gpu=h100-80gb", *(f"{key}={value}" for key, value in GRPO.items()))
CALL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen3-8B "
CARD = KNOWN_GPUS["h100-80gb"]
DENSE = builtin_architecture("qwen3-8b")
OF_MIXTURE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": False,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
MIXTURE = read_architecture(OF_MIXTURE, model="mixture")


LORA = {f"{MODEL}.lora_rank": 16}
LOADED = {f"{ROLLOUT}.load_format": "safetensors"}
BY_LAYER = {f"{ROLLOUT}.layered_summon": True}
FSDP2 = {f"{ACTOR}.strategy": "fsdp2"}


def found(*words):
    return json.loads(answer([*words, "format=json"]))


def later(values=None, *, megatron=False):
    return read_verl({**GRPO, **(values or {})}, megatron=megatron, release=Release.V0_9_1)


def job(values=None, *, megatron=False):
    return later(values, megatron=megatron).job


def not_counted(values=None, *, megatron=False):
    reading = later(values, megatron=megatron)
    return [note.text for note in (*reading.notes, *reading.undecided) if not note.is_counted]


# Which release


def taken(*words):
    (text,) = [note for note in found(*words)["notes"] if "the defaults and workers of verl" in note]
    return text


def test_without_a_key_of_one_release_it_is_0_8():
    assert "defaults and workers of verl 0.8.0.dev (verl=0.9.1 takes those of 0.9.1)" in taken(*WORDS)
    assert found(*WORDS, "verl=0.8")["phases"] == found(*WORDS)["phases"]


@pytest.mark.parametrize(
    "word",
    [
        "model_engine=dp",
        "critic.fsdp.param_offload=false",
        f"{REWARD}.enable=false",
        "trainer.use_v1=true",
        f"{ACTOR}.fsdp_config.use_no_sync_for_gradient_accumulation=false",
    ],
)
def test_a_key_of_0_9_1_alone_takes_that_release(word):
    key = word.partition("=")[0]
    assert f"verl 0.9.1 (which alone has {key}; verl=0.8 takes those of 0.8.0.dev)" in taken(*WORDS, word)
    assert "verl 0.8.0.dev" in taken(*WORDS, word, "verl=0.8")


PADDED = (f"{MODEL}.use_remove_padding=false", f"{ACTOR}.ppo_micro_batch_size_per_gpu=8")
SMALL_POOL = f"{ROLLOUT}.gpu_memory_utilization=0.25"
LORA_WORD = f"{MODEL}.lora_rank=16"
BY_LAYERS = (LORA_WORD, f"{ROLLOUT}.load_format=safetensors", f"{ROLLOUT}.layered_summon=true")


def of_another(*words):
    return [note for note in found(*words)["notes"] if note.startswith("With verl=")]


@pytest.mark.parametrize(
    ("words", "verdicts"),
    [
        ((), ("fits", "fits")),
        ((*PADDED, SMALL_POOL, "gpu=35GiB"), ("fits", "tight")),
        (BY_LAYERS, ("not decided", "fits")),
        ((f"{ACTOR}.ppo_micro_batch_size=256",), ("fits", "not possible")),
    ],
)
def test_another_verdict_of_the_other_release_is_said(words, verdicts):
    all_words = (*WORDS, *words)
    older, newer = (found(*all_words, f"verl={release}")["fit"] for release in Release)
    assert (older, newer) == verdicts
    assert of_another(*all_words) == ([] if older == newer else [f"With verl=0.9.1: {newer}."])
    assert of_another(*all_words, "verl=0.8") == of_another(*all_words, "trainer.use_v1=true") == []
    # A key of 0.8 alone decides as well; keys of both decide nothing.
    older_key = "trainer.use_legacy_worker_impl=auto"
    assert of_another(*all_words, older_key) == []
    assert of_another(*all_words, older_key, "trainer.use_v1=true") == of_another(*all_words)


def test_the_other_release_is_judged_with_what_it_does_not_count():
    assert found(*WORDS, LORA_WORD)["fit"] == found(*WORDS, LORA_WORD, "verl=0.9.1")["fit"] == "not decided"
    assert of_another(*WORDS, LORA_WORD) == []


def test_a_job_that_the_other_release_refuses_is_said():
    """It counts the key, and three do not divide eight GPUs."""
    word = f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=3"
    with pytest.raises(UsageError):
        found(*WORDS, word, "verl=0.9.1")
    assert of_another(*WORDS, word) == ["With verl=0.9.1: refused."]


def test_keys_of_both_releases_or_added_ones_take_the_older():
    older = "critic.model.fsdp_config.param_offload=false"
    assert "verl 0.8.0.dev" in taken(*WORDS, older, "trainer.use_v1=true")
    assert "verl 0.8.0.dev" in taken(*WORDS, "+trainer.use_v1=true")
    # A script of 0.9 adds a key of 0.8, which decides nothing.
    assert "verl 0.9.1" in taken(*WORDS, "+trainer.use_legacy_worker_impl=disable", "trainer.use_v1=true")
    # 0.9.0 has it, and 0.9.1 has not.
    assert "verl 0.9.1" in taken(*WORDS, f"{MEGATRON}.grad_offload=true", "trainer.use_v1=true")


def test_a_script_that_names_its_engine_takes_0_9_1(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(f"{CALL} model_engine=dp\n")
    assert "verl 0.9.1 (which alone has model_engine" in taken(f"config={path}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("verl=0.7",), "verl=0.7: must be one of 0.8, 0.9.1"),
        (("verl=0.9.1", "model=qwen2.5-0.5b"), "verl=0.9.1: is for a job of verl"),
    ],
)
def test_a_release_that_is_not_known_or_of_no_job_is_refused(capsys, words, said):
    assert main(list(words)) == EXIT_USAGE
    assert said in capsys.readouterr().err


def test_every_default_is_known_and_changes_nothing():
    for defaults, is_megatron in zip(DEFAULTS[Release.V0_9_1], (False, True), strict=True):
        stated = {key: value for key, value in defaults.items() if key not in GRPO and not key.endswith(".path")}
        reading, plain = later(stated, megatron=is_megatron), later(megatron=is_megatron)
        assert reading.unknown == ()
        assert reading.job == plain.job
        assert [note.text for note in reading.notes if not note.is_counted] == [
            note.text for note in plain.notes if not note.is_counted
        ]


def test_the_further_keys_are_those_of_0_9_1():
    fsdp, megatron = DEFAULTS[Release.V0_9_1]
    assert [key for key in LATER_MEMORY_KEYS if key not in fsdp and key not in megatron] == []


def test_keys_of_the_other_release_are_listed():
    assert later({"critic.model.fsdp_config.param_offload": True}).unknown == (
        "critic.model.fsdp_config.param_offload",
    )
    assert later({f"{MEGATRON}.grad_offload": True}).unknown == ()
    assert later({f"{MEGATRON}.override_transformer_config.moe_grouped_gemm": True}).unknown == ()
    assert later({f"{ACTOR}.fsdp_config.my_own": 1}).unknown == (f"{ACTOR}.fsdp_config.my_own",)


# Where settings are


def test_the_critic_has_its_engine_in_a_section_of_its_own():
    values = {"algorithm.adv_estimator": "gae", "critic.fsdp.param_offload": True, "critic.fsdp.model_dtype": "bf16"}
    critic = job(values).critic
    assert (critic.param_offload, critic.weight_bytes) == (True, 2)
    assert job({"algorithm.adv_estimator": "gae"}).critic.weight_bytes == 4


def test_settings_that_the_engine_does_not_read_change_nothing():
    assert job({f"{ACTOR}.use_torch_compile": False}).entropy.is_compiled
    assert not job({f"{ACTOR}.fsdp_config.use_torch_compile": False}).entropy.is_compiled
    assert not job({f"{ACTOR}.use_fused_kernels": True}).use_fused_kernels
    assert job({f"{MODEL}.use_fused_kernels": True}).use_fused_kernels
    padded = {f"{MODEL}.use_remove_padding": False}
    assert not later({**padded, f"{ACTOR}.use_remove_padding": True}).removes_padding
    assert job(padded).entropy == EntropySettings(is_compiled=False)


def test_entropy_settings_of_the_engine_win():
    chunking, size = "entropy_from_logits_with_chunking", "entropy_from_logits_chunk_size"
    of_actor = {f"{ACTOR}.{chunking}": True, f"{ACTOR}.{size}": 512, f"{ACTOR}.entropy_checkpointing": True}
    read = job(of_actor)
    assert (read.entropy.chunking, read.entropy.checkpointing, read.workers.entropy_chunk) == (True, True, 512)
    of_engine = {f"{ACTOR}.fsdp_config.{chunking}": False, f"{ACTOR}.fsdp_config.{size}": 64}
    read = job({**of_actor, **of_engine})
    assert (read.entropy.chunking, read.workers.entropy_chunk) == (False, 64)


ROWS = {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 2}


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ({f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 4}, 4),
        ({f"{ACTOR}.ulysses_sequence_parallel_size": 2}, 2),
        # The older key wins if it is above 1.
        ({f"{ACTOR}.ulysses_sequence_parallel_size": 2, f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 4}, 2),
        ({f"{ACTOR}.ulysses_sequence_parallel_size": 1, f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 4}, 4),
        ({"critic.fsdp.ulysses_sequence_parallel_size": 4}, 1),
    ],
)
def test_gpus_that_share_rows_are_stated_by_the_engine(values, size):
    read = job({**ROWS, **values})
    # 2 rows of 512 + 512 tokens
    assert (read.actor.max_tokens, read.log_prob_max_tokens) == (2048 // size, 2048 // size)
    assert not [text for text in not_counted(values) if "ulysses" in text]


def test_a_critic_shares_rows_by_its_own_key():
    values = {"algorithm.adv_estimator": "gae", "critic.ppo_micro_batch_size_per_gpu": 2, **ROWS}
    assert job({**values, "critic.ulysses_sequence_parallel_size": 4}).critic.max_tokens == 2048
    assert job({**values, "critic.fsdp.ulysses_sequence_parallel_size": 4}).critic.max_tokens == 512


def test_the_reference_waits_on_the_host():
    values = {f"{ACTOR}.use_kl_loss": True}
    assert job(values).ref_param_offload
    assert not job(values, megatron=True).ref_param_offload
    assert job({**values, f"{MEGATRON}.param_offload": True}, megatron=True).ref_param_offload
    stated = {f"{MEGATRON}.param_offload": True, f"{REF}.megatron.param_offload": False}
    assert not job({**values, **stated}, megatron=True).ref_param_offload
    assert Role.REFERENCE in shardings_of(job(values), DENSE)
    assert not_counted({**values, f"{REF}.fsdp_config.model_dtype": "bf16"}) == []


SHORT = {
    "data.max_prompt_length": 8,
    "data.max_response_length": 8,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 1,
}
OUTSIDE_BYTES = (2 * 151_936 * 4096 + 4096) * 2
"""Embedding, LM head and final norm of the dense model in bfloat16."""


def roots(values):
    """What is added by models that do not compute, per phase."""
    values = {f"{ACTOR}.use_kl_loss": True, **values}
    whole = verl_estimate(job(values), DENSE, CARD).phases
    sizes = {f"{worker}.fsdp_config.fsdp_size": 8 for worker in (ACTOR, REF)}
    without = verl_estimate(job({**values, **sizes}), DENSE, CARD).phases
    return {phase: sum(whole[phase].values()) - sum(without[phase].values()) for phase in whole}


def test_what_is_outside_of_layers_stays_gathered_after_a_pass():
    found = roots({})
    # The reference's at all other times, and the actor's while the reference scores.
    assert set(found.values()) == {OUTSIDE_BYTES}
    of_critic = roots({"algorithm.adv_estimator": "gae"})
    assert of_critic.pop(VerlPhase.UPDATE_CRITIC) == of_critic.pop(VerlPhase.STEP_CRITIC) == 2 * OUTSIDE_BYTES
    assert set(of_critic.values()) == {OUTSIDE_BYTES}
    assert set(roots(FSDP2).values()) == {0}
    alone = {"trainer.n_gpus_per_node": 1, f"{ROLLOUT}.tensor_model_parallel_size": 1, f"{ACTOR}.use_kl_loss": True}
    assert not any(Component.REFERENCE in parts for parts in verl_estimate(job(alone), DENSE, CARD).phases.values())
    # The reference of LoRA is the actor, which has it once.
    assert set(roots(LORA | LOADED | BY_LAYER).values()) == {0}


@pytest.mark.parametrize(("dtype", "values"), [("fp32", 3), ("bf16", 1)])
def test_a_reference_on_the_host_is_copied_before_it_is_gathered(dtype, values):
    """By hand, over 8: the shard and it in bfloat16, next to both models' roots; alone three copies of its root."""
    scores = {f"{ACTOR}.use_kl_loss": True, f"{REF}.fsdp_config.model_dtype": dtype, **SHORT}
    found = verl_estimate(job(scores), DENSE, CARD).phases[VerlPhase.REFERENCE]
    of_layer = 2 * OUTSIDE_BYTES + layer_parameter_count(DENSE) * 2
    assert found[Component.GATHERED] == max(2 * OUTSIDE_BYTES + values * OUTSIDE_BYTES // 8, of_layer * (values == 1))
    alone = {"trainer.n_gpus_per_node": 1, f"{ROLLOUT}.tensor_model_parallel_size": 1}
    found = verl_estimate(job(scores | alone), DENSE, CARD).phases[VerlPhase.REFERENCE]
    assert found[Component.GATHERED] == (3 * OUTSIDE_BYTES if values == 3 else OUTSIDE_BYTES + of_layer % OUTSIDE_BYTES)
    assert job(scores | FSDP2).workers.copied_reference_bytes == job(scores | LORA).workers.copied_reference_bytes == 0


# Logits


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (1, 1, False)),
        ({f"{ROLLOUT}.temperature": 0.6}, (2, 2, False)),
        ({f"{ACTOR}.entropy_coeff": 0.001}, (2, 1, False)),
        ({f"{MODEL}.use_remove_padding": False}, (3, 1, True)),
        ({f"{MODEL}.use_remove_padding": False, f"{ACTOR}.calculate_entropy": True}, (2, 1, True)),
    ],
)
def test_how_many_tensors_of_logits_there_are(values, expected):
    workers = job(values).workers
    assert (workers.logits_in_update, workers.logits_in_scoring, workers.repacks_logits) == expected


def test_0_8_keeps_its_own_ways():
    assert read_verl({**GRPO, f"{ROLLOUT}.temperature": 0.6}).job.workers == Workers()


# The rollout engine and the reward model


def test_adapters_are_found_among_all_weights_with_fsdp_1():
    """By hand for qwen3-8b with rank 64 on 2 GPUs. The trainer of its emulated run had 29.775 GiB."""
    read = job({**LORA, **BY_LAYER, **LOADED, "trainer.n_gpus_per_node": 2})
    outside = 2 * 151_936 * 4_096 + 4_096
    layers = 14_241_318_912
    shards = layers + outside // 2 * 4
    assert sync_bytes(read, DENSE, shards, outside) == layers + 12_288 * 4_096 * 4
    assert sync_bytes(read, DENSE, outside // 2 * 4, outside) == outside * 4  # it is gathered before the layers
    assert (
        sync_bytes(replace(read, strategy=Strategy.FSDP2), DENSE, shards, outside) == read.workers.update_bucket_bytes
    )


@given(shards=st.integers(0, 2**36), more=st.integers(0, 2**36), rank=st.sampled_from((8, 64)))
def test_more_weights_on_a_gpu_need_no_less_to_be_sent(shards, more, rank):
    read = job({f"{MODEL}.lora_rank": rank, **BY_LAYER, **LOADED, "trainer.n_gpus_per_node": 2})
    sent = sync_bytes(read, DENSE, shards, 1_000)
    assert read.workers.update_bucket_bytes <= sent <= sync_bytes(read, DENSE, shards + more, 1_000) <= sent + more


@given(shards=st.integers(0, 2**36), outside=st.integers(0, 2**31), more=st.integers(0, 2**31))
def test_a_state_dictionary_needs_no_less_for_more_weights(shards, outside, more):
    """Of all weights by FSDP 1: no less than the bucket, a whole tensor and the copies, and what is gathered."""
    read = job({})
    sent = sync_bytes(read, DENSE, shards, outside)
    largest = DENSE.vocab_size * DENSE.hidden_size
    assert sent >= read.workers.update_bucket_bytes + 4 * largest + shards
    assert sent >= 4 * (outside + largest) + shards
    assert sent <= sync_bytes(read, DENSE, shards + more, outside) <= sent + more
    assert sync_bytes(read, replace(DENSE, tie_word_embeddings=True), shards, outside) >= sent


def test_weights_are_sent_in_a_bucket_next_to_the_engine_s():
    small = replace(DENSE, vocab_size=100, hidden_size=10, intermediate_size=10)
    bucket = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
    read = job({bucket: 1})
    assert sync_bytes(read, small, 500, 0) == 2**20 + 4_000 + 500
    assert sync_bytes(replace(read, strategy=Strategy.FSDP2), small, 500, 0) == 2**20 + 4_000
    # FSDP 1 copies the shard of a tied embedding twice; on one GPU the copies are whole
    tied = replace(small, tie_word_embeddings=True)
    assert read.fsdp_size == 8 and sync_bytes(read, tied, 500, 0) == 2**20 + 4_000 + 500 + 500
    assert sync_bytes(replace(read, n_gpus=1, fsdp_size=1), small, 4_000, 0) == 2**20 + 4_000
    assert sync_bytes(replace(read, n_gpus=1, fsdp_size=1), tied, 4_000, 0) == 2**20 + 8_000
    # What is outside of layers is gathered while the state dictionary is made, and one of its tensors copied whole.
    assert sync_bytes(read, small, 150_000, 1_000_000) == 4_000_000 + 4_000 + 150_000
    # 48 layers with 128 experts of 768: gates and up projections are larger than the embedding
    assert sync_bytes(replace(read, strategy=Strategy.FSDP2), MIXTURE, 0, 0) == 2**20 + 2 * 128 * 2048 * 768 * 4
    parts = verl_estimate(read, DENSE, CARD).phases[VerlPhase.SYNC]
    assert parts[Component.POOL] == engine_weights_bytes(read, DENSE)
    assert job({f"{ROLLOUT}.checkpoint_engine.backend": "nccl"}).workers.update_bucket_bytes == 0
    assert not_counted({f"{ROLLOUT}.checkpoint_engine.backend": "nccl"}) != []


@pytest.mark.parametrize(("strategy", "is_there"), [("fsdp", True), ("fsdp2", False)])
def test_offloaded_weights_are_loaded_or_moved_one_by_one(strategy, is_there):
    values = {f"{ACTOR}.strategy": strategy, f"{ACTOR}.fsdp_config.param_offload": True}
    parts = verl_estimate(job(values), DENSE, CARD).phases[VerlPhase.SYNC]
    assert (Component.ACTOR in parts) is is_there


def test_a_reward_model_on_the_same_gpus_has_a_pool_and_a_phase():
    values = {f"{REWARD}.enable": True, f"{REWARD}.rollout.gpu_memory_utilization": 0.8}
    read = job(values)
    assert read.workers.reward == RewardEngine(gpu_memory_utilization=0.8, free_cache_engine=True)
    phases = verl_estimate(read, DENSE, CARD).phases
    pool = int(CARD.memory_bytes * 0.8)
    assert {phase for phase, parts in phases.items() if Component.REWARD_POOL in parts} == {VerlPhase.REWARD}
    assert phases[VerlPhase.REWARD][Component.REWARD_POOL] == pool
    assert Component.POOL not in phases[VerlPhase.REWARD]
    awake = verl_estimate(job({**values, f"{REWARD}.rollout.free_cache_engine": False}), DENSE, CARD).phases
    assert {parts.get(Component.REWARD_POOL) for parts in awake.values()} == {pool}
    assert job({**values, f"{REWARD}.enable_resource_pool": True}).workers.reward is None
    assert job({"reward_model.enable": True}).workers.reward.gpu_memory_utilization == 0.5
    assert not_counted(values) == not_counted({"reward_model.enable": True}) == []


def test_a_rollout_engine_that_never_sleeps_is_awake_in_scoring():
    values = {f"{REWARD}.enable": True, f"{ROLLOUT}.free_cache_engine": False}
    assert Component.POOL in verl_estimate(job(values), DENSE, CARD).phases[VerlPhase.REWARD]


# LoRA


@pytest.mark.parametrize(
    ("values", "is_decided"),
    [
        (LOADED | BY_LAYER, True),
        (LOADED | FSDP2, True),
        ({f"{MODEL}.lora.merge": True} | FSDP2, True),
        ({}, False),
        (LOADED, False),
        (FSDP2, False),
        (BY_LAYER, False),
        ({f"{MODEL}.lora.merge": True} | LOADED | BY_LAYER, False),
        (LOADED | BY_LAYER | {f"{ROLLOUT}.name": "sglang"}, False),
        (LOADED | BY_LAYER | {f"{MODEL}.exclude_modules": ".*up_proj"}, False),
    ],
)
def test_lora_is_decided_where_no_whole_weights_are_gathered(values, is_decided):
    assert (not_counted(LORA | values) == []) is is_decided


def test_adapters_count_with_weights_states_and_activations():
    plain, adapted = (job(values | ROWS) for values in ({}, LORA | LOADED | BY_LAYER))
    actor = shardings_of(adapted, DENSE)[Role.ACTOR]
    whole, per_layer = 8_190_735_360, 16 * (2 * (4096 + 12288) + 12288 + 4096 + 4 * 4096 + 2 * (4096 + 1024))
    assert (actor.values, actor.trained) == (whole + 36 * per_layer, 36 * per_layer)
    assert actor.weights.size == (whole + 36 * per_layer) // 8 * 4
    found = {each: verl_estimate(each, DENSE, CARD) for each in (plain, adapted)}
    update, scored = VerlPhase.UPDATE_ACTOR, VerlPhase.LOG_PROB
    # A layer with adapters saves their low-rank results, and computes with one more tensor of the MLP's width.
    assert found[adapted].phases[scored][Component.ACTIVATIONS] > found[plain].phases[scored][Component.ACTIVATIONS]
    assert found[adapted].phases[update][Component.ACTOR_STATE] == -(-36 * per_layer // 8) * 8


def test_the_reference_of_lora_is_the_loaded_actor():
    values = {**LORA, **LOADED, **BY_LAYER, f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.fsdp_config.param_offload": True}
    size = {f"{REF}.log_prob_micro_batch_size_per_gpu": 8, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 2}
    read = job({**values, **size})
    assert read.log_prob_max_tokens == 2 * 1024
    assert Component.ACTOR in verl_estimate(read, DENSE, CARD).phases[VerlPhase.REFERENCE]


def test_merged_adapters_are_sent_as_whole_weights():
    parts = [
        verl_estimate(job(LORA | FSDP2 | LOADED | more), DENSE, CARD).phases[VerlPhase.SYNC][Component.GATHERED]
        for more in ({}, {f"{MODEL}.lora.merge": True})
    ]
    assert parts[1] - parts[0] == DENSE.vocab_size * DENSE.hidden_size * 4


# Experts and Megatron


def test_experts_have_formulas_with_0_9_1(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(OF_MIXTURE))
    words = (*WORDS, f"{MODEL}.path={tmp_path}")
    with pytest.raises(UsageError, match="a mixture of 128 experts has no closed-form estimate in a job of verl"):
        answer(list(words))
    assert found(*words, "verl=0.9.1")["fit"] != "not decided"


def test_a_layer_of_experts_counts_each_pair():
    read = job(ROWS)
    scoring = verl_estimate(read, MIXTURE, CARD).phases[VerlPhase.LOG_PROB][Component.ACTIVATIONS]
    tokens, hidden, pairs = 2048, 2048, 8 * 2048
    # Four [T, H] around them; inputs, results, and weighted results twice of each pair; four indices of each pair.
    assert scoring == (4 * tokens * hidden + 4 * pairs * hidden) * 2 + 4 * pairs * 8


def test_expert_parallelism_shares_the_experts_of_megatron():
    sizes = {f"{MEGATRON}.tensor_model_parallel_size": 2, f"{MEGATRON}.pipeline_model_parallel_size": 2}
    experts = {f"{MEGATRON}.expert_model_parallel_size": 4, f"{MEGATRON}.expert_tensor_parallel_size": 1}
    actor = shardings_of(job({**sizes, **experts, "trainer.nnodes": 2}, megatron=True), MIXTURE)[Role.ACTOR]
    of_experts = 48 * 3 * 128 * 2048 * 768
    dense = actor.values - of_experts
    assert actor.weights.size == (-(-dense // 4) + of_experts // 8) * 2
    assert actor.gradients.size == (-(-dense // 4) + of_experts // 8) * 4
    assert actor.states.size == -(-actor.values // 16) * 12
    # Without a size of their own they are split like the others.
    alone = shardings_of(job(sizes, megatron=True), MIXTURE)[Role.ACTOR]
    assert alone.weights.size == (-(-dense // 4) + of_experts // 4) * 2


def test_context_parallelism_shares_rows_and_not_a_budget():
    context = {f"{MEGATRON}.context_parallel_size": 4, **ROWS}
    assert job(context, megatron=True).actor.max_tokens == 512
    budget = {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 3000}
    assert job({**context, **budget}, megatron=True).actor.max_tokens == 3000
    with pytest.raises(UsageError, match="and context_parallel_size must divide the 8 GPUs"):
        job({**context, f"{MEGATRON}.tensor_model_parallel_size": 4}, megatron=True)
    with pytest.raises(UsageError, match="expert_model_parallel_size=3"):
        job({f"{MEGATRON}.expert_model_parallel_size": 3}, megatron=True)


RECOMPUTE = "megatron.override_transformer_config.recompute"
UNIFORM = {"granularity": "full", "method": "uniform", "num_layers": 1}


def recomputed(worker=ACTOR, **keys):
    return {f"{worker}.{RECOMPUTE}_{name}": value for name, value in keys.items()}


@pytest.mark.parametrize("release", Release)
def test_megatron_recomputes_layers_only_by_its_own_keys(release):
    def read(**values):
        return read_verl({**GRPO, **values}, megatron=True, release=release)

    def kept(**values):
        return [note.text for note in read(**values).notes if not note.is_counted]

    key = f"{ACTOR}.{RECOMPUTE}"
    assert not read(**{f"{MODEL}.enable_gradient_checkpointing": True}).job.actor.gradient_checkpointing
    assert not read(**recomputed(granularity="selective")).job.actor.gradient_checkpointing
    assert read(**recomputed(**UNIFORM)).job.actor.gradient_checkpointing
    layers, cross_entropy = kept()
    assert layers == f"what Megatron-Core's layers keep (all of them, because {key}_granularity is not full)"
    assert kept(**recomputed(**UNIFORM)) == ["what Megatron-Core's layers keep (one computed again)", cross_entropy]
    block = recomputed(**UNIFORM | {"method": "block"})
    assert not read(**block).job.actor.gradient_checkpointing
    assert f"all of them, because {key}_method is block" in kept(**block)[0]


@pytest.mark.parametrize("release", Release)
def test_megatron_ignores_the_keys_of_fsdp(release):
    """By hand, qwen2.5-7b (H = 3,584, I = 18,944, 28 heads, 4 of keys of 128), per token and layer.

    Norms 2 x (3,584 x 4 + 4 + 3,584 x 2), attention (2 x 3,584 + 2 x 512) x 2 + 28 x 4, inputs of linear layers
    (2 x 3,584 + 18,944) x 2, MLP 3 x 18,944 x 2: 43,016 + 16,496 + 52,224 + 113,664 = 225,400 B. Recomputed, the input
    alone: 3,584 x 2 B.
    """
    shape = builtin_architecture("qwen2.5-7b")
    tokens = 512 + 512
    values = {f"{MODEL}.path": "qwen2.5-7b", "algorithm.adv_estimator": "gae", **recomputed("critic", **UNIFORM)}
    ignored = {f"{MODEL}.enable_gradient_checkpointing": True, f"{MODEL}.enable_activation_offload": True}
    read = read_verl({**values, **ignored}, megatron=True, release=release).job
    assert read.critic is not None
    assert stack_bytes(read, shape, read.actor) == 28 * tokens * 225_400 == 6_462_668_800
    assert stack_bytes(read, shape, read.critic) == 28 * tokens * 3_584 * 2 == 205_520_896
    sharded = read_verl({**values, **ignored}, release=release).job
    assert stack_bytes(sharded, shape, sharded.actor) == 2 * tokens * 3_584 * 2


@pytest.mark.parametrize("release", ["verl=0.8", "verl=0.9.1"])
def test_megatron_recomputes_by_a_method_and_a_number(release):
    words = (*WORDS, release, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=1")

    def said(megatron="model_engine=megatron", **keys):
        read = found(*words, megatron, *(f"{key}={value}" for key, value in recomputed(**keys).items()))
        return [reason.partition("needs ")[2] for reason in read.get("reasons", ()) if "granularity=full" in reason]

    section = f"{ACTOR}.{RECOMPUTE}"
    assert said(granularity="full") == [f"{section}_method=uniform or block", f"{section}_num_layers"]
    assert said(**UNIFORM | {"method": "blocks"}) == [f"{section}_method=uniform or block"]
    assert said(**UNIFORM) == said(granularity="selective") == said("model_engine=dp", granularity="full") == []


# What verl refuses


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((f"{ACTOR}.use_dynamic_bsz=true", f"{ROLLOUT}.log_prob_use_dynamic_bsz=false"), "must be equal"),
        ((f"{ACTOR}.ppo_micro_batch_size=64",), "ppo_micro_batch_size is the older name"),
        ((f"{ACTOR}.ppo_mini_batch_size=20",), "= 20 rows must be divisible by 8"),
        ((f"{ROLLOUT}.expert_parallel_size=4",), "expert_parallel_size=4 must be the 2 GPUs"),
        (
            (f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.enable_chunked_prefill=false", f"{ROLLOUT}.max_model_len=8193"),
            f"needs {ROLLOUT}.max_num_batched_tokens=8193 or more, not 8192",
        ),
        (
            (*(f"{key}={value}" for key, value in LORA.items()), f"{ROLLOUT}.layered_summon=true"),
            f"needs {ROLLOUT}.load_format=safetensors",
        ),
        (
            (*BY_LAYERS, "trainer.n_gpus_per_node=1", f"{ROLLOUT}.tensor_model_parallel_size=1"),
            f"one needs {ACTOR}.strategy=fsdp2",
        ),
        (
            (f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=3", "trainer.n_gpus_per_node=6"),
            f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=3 must divide the 32 attention heads",
        ),
    ],
)
def test_what_0_9_1_asserts_in_addition_is_not_possible(words, said):
    with_sizes = (*WORDS, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=1", *words)
    read = found(*with_sizes, "verl=0.9.1")
    assert read["fit"] == "not possible"
    assert any(said in reason for reason in read["reasons"]), read["reasons"]
    older = found(*with_sizes, "verl=0.8")
    assert not any(said in reason for reason in older.get("reasons", ()))


@pytest.mark.parametrize("changed", [{"max_model_len": 8192}, {"name": "sglang"}, {"max_num_batched_tokens": 40960}])
def test_chunks_of_a_prefill_may_be_off_where_a_row_fits(changed):
    settings = {"name": "vllm", "enable_chunked_prefill": "false", "max_model_len": 8193} | changed
    words = (f"{ROLLOUT}.{key}={value}" for key, value in settings.items())
    reasons = found(*WORDS, "verl=0.9.1", *words).get("reasons", ())
    assert not any("enable_chunked_prefill" in reason for reason in reasons)


def test_experts_of_the_engine_are_split_by_tensorrt_llm_alone():
    words = (*WORDS, "verl=0.9.1", f"+{ROLLOUT}.moe_tensor_parallel_size=2")
    assert any("is for actor_rollout_ref.rollout.name=trtllm only" in reason for reason in found(*words)["reasons"])
    other = found(*words, f"{ROLLOUT}.name=trtllm")
    assert other["fit"] == "not decided"
    assert any("moe_tensor_parallel_size=2" in reason for reason in other["reasons"])


def test_adapters_of_a_mixture_are_not_decided(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(OF_MIXTURE))
    words = [f"{key}={str(value).lower()}" for key, value in (LORA | LOADED | BY_LAYER).items()]
    read = found(*WORDS, "verl=0.9.1", f"{MODEL}.path={tmp_path}", *words)
    assert (read["fit"], read["reasons"]) == ("not decided", ["adapters of a mixture of experts"])


def test_the_pool_of_a_reward_model_decides_without_fragments():
    values = {f"{REWARD}.enable": True, f"{REWARD}.rollout.gpu_memory_utilization": 0.8}
    estimated = verl_estimate(job(values), DENSE, CARD)
    assert verl_card(estimated).peak_reserved_bytes == sum(estimated.phases[VerlPhase.REWARD].values())
