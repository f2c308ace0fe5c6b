"""Reading of points into specifications: normalisation, and all faults at once."""

from dataclasses import replace

import pytest

from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.key_values import DEFAULTS
from profiler.config.trials.specification import attention_line, kernels_line, parse_point, parse_points
from profiler.domain.errors import Fault, UsageError
from profiler.domain.trials.trial import SPEC_KEYS, Attention, Backend, TrialSpec, Tuning, Weights


def known(model):
    architecture = builtin_architecture(model)
    if architecture is None:
        raise UsageError([Fault(key="model", found=model, problem="is not known")])
    return architecture


def parse(**values):
    return parse_point({"backend": "simulated", "model": "tiny", **values}, architecture_of=known)


def faults(**values):
    with pytest.raises(UsageError) as caught:
        parse(**values)
    return {fault.key: fault for fault in caught.value.faults}


def test_defaults_are_those_of_the_declarations():
    assert parse() == TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="tiny")
    assert set(DEFAULTS) | {"backend", "model"} == set(SPEC_KEYS)


def test_an_emulated_trial_has_a_card_and_random_weights():
    emulated = parse(backend="emulated", weights="pretrained")
    assert (emulated.gpu, emulated.weights) == ("h100-80gb", Weights.RANDOM)
    assert parse(backend="emulated", gpu="t4-16gb").gpu == "t4-16gb"
    assert "attn_implementation" in faults(backend="emulated", gpu="t4-16gb", attn_implementation="flash_attention_2")


def test_steps_per_generation_follows_accumulation():
    assert parse(gradient_accumulation_steps=8).steps_per_generation == 8
    assert parse(gradient_accumulation_steps=8, steps_per_generation=2).steps_per_generation == 2


def test_pairs_have_a_reference_with_or_without_a_batch():
    assert parse(recipe="dpo").beta == 0.1
    assert (parse(recipe="dpo").max_length, parse(recipe="dpo").longest) == (1024, 1024 - 256)
    assert parse(recipe="dpo", beta=0.3).beta == 0.3
    assert parse(recipe="grpo", beta=None).beta == parse(recipe="rloo").beta == parse(recipe="sft").beta == 0.0
    assert parse(recipe="dpo").keeps_reference_model
    before = parse(recipe="dpo", precompute_ref_log_probs=True, per_device_train_batch_size=2)
    assert (before.precompute_ref_batch_size, before.training_rows) == (2, 4)
    assert not before.keeps_reference_model
    assert parse(recipe="dpo", precompute_ref_batch_size=8).precompute_ref_batch_size is None
    assert "precompute_ref_log_probs" in faults(precompute_ref_log_probs=True)
    assert "max_completion_length" in faults(recipe="dpo", max_completion_length=64)
    assert "leaves nothing" in faults(recipe="dpo", max_length=256)["max_length"].problem
    assert "the loss does not depend on the model" in faults(recipe="dpo", beta=0.0)["beta"].problem
    assert "is not a way of the trainer of recipe=dpo" in faults(recipe="dpo", logprobs="full")["logprobs"].problem
    assert (
        "is not a way of the trainer of recipe=reward" in faults(recipe="reward", logprobs="full")["logprobs"].problem
    )
    assert parse(recipe="kto").beta == 0.1
    assert (parse(recipe="reward").beta, parse(recipe="reward").longest) == (0.0, 1024)


def test_bf16_is_true_unless_fp16_is():
    assert (parse().bf16, parse().fp16) == (True, False)
    assert (parse(fp16=True, dtype="float32").bf16, parse(fp16=True, dtype="float32").fp16) == (False, True)
    assert not parse(bf16=False).fp16
    assert "is not combined with bf16=true" in faults(fp16=True, bf16=True, dtype="float32")["fp16"].problem
    assert "cannot do in bfloat16" in faults(fp16=True, tuning="qlora")["fp16"].problem
    assert "trains weights in dtype=float16" in faults(fp16=True, dtype="float16")["fp16"].problem
    assert parse(fp16=True, dtype="float16", tuning="lora").fp16


def test_rows_of_sft_have_a_length_and_trials_of_grpo_have_none():
    assert parse(recipe="sft").max_length == 1024
    assert parse(recipe="sft", max_length=64).max_length == 64
    assert parse().max_length is None
    assert parse(recipe="sft", gradient_accumulation_steps=8) == parse(
        recipe="sft", gradient_accumulation_steps=8, steps_per_generation=None, beta=0.0
    )


def test_rules_of_another_recipe_are_not_checked():
    keys = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 1}
    assert "num_generations" in faults(**keys)
    assert parse(recipe="sft", **keys).per_device_train_batch_size == 3
    assert "num_generations" in faults(recipe="sft", num_generations=8)
    assert "max_length" in faults(max_length=64)


def test_lora_keys_have_no_meaning_with_full_fine_tuning():
    assert parse(lora_rank=8, lora_alpha=3, lora_target_modules=["q_proj"]) == parse()


def test_lora_defaults():
    spec = parse(tuning="lora")
    assert (spec.lora_rank, spec.lora_alpha, spec.lora_target_modules) == (16, 32, ("all-linear",))
    assert parse(tuning="lora", lora_rank=8).lora_alpha == 16


def test_target_modules_have_the_order_of_the_layer():
    wanted = ("q_proj", "v_proj", "down_proj")
    names = ["down_proj", "v_proj", "q_proj", "v_proj"]
    assert parse(tuning="lora", lora_target_modules=names).lora_target_modules == wanted
    assert parse(tuning="lora", lora_target_modules="q_proj").lora_target_modules == ("q_proj",)
    assert parse(tuning="lora", lora_target_modules="down_proj, v_proj,q_proj").lora_target_modules == wanted
    assert parse(tuning="lora", lora_target_modules=["down_proj,q_proj,v_proj"]).lora_target_modules == wanted
    assert parse(tuning="lora", lora_target_modules=["all-linear"]) == parse(tuning="lora")


@pytest.mark.parametrize(
    ("backend", "gpu", "expected"),
    [
        ("simulated", None, "h100-80gb"),
        ("simulated", "t4-16gb", "t4-16gb"),
        ("cuda", None, None),
        ("cuda", "a100-40gb", "a100-40gb"),
        ("cpu", None, None),
        ("cpu", "t4-16gb", None),
    ],
)
def test_gpu_by_backend(backend, gpu, expected):
    assert parse(backend=backend, gpu=gpu).gpu == expected


def test_weights_of_a_simulated_card_are_random():
    assert parse(model="qwen2.5-0.5b", weights="pretrained").weights is Weights.RANDOM
    assert parse(model="qwen2.5-0.5b", weights="pretrained", backend="cpu").weights is Weights.PRETRAINED


def test_pretrained_weights_keep_their_checkpoint():
    def model_of(model: str) -> str:
        return parse(model=model, weights="pretrained", backend="cpu").model

    assert model_of("Qwen/Qwen2.5-7B-Instruct") == "Qwen/Qwen2.5-7B-Instruct"
    assert model_of("qwen2.5-7b") == "Qwen/Qwen2.5-7B"
    assert parse(model="Qwen/Qwen2.5-7B-Instruct").model == "qwen2.5-7b"


def test_hub_ids_and_empty_values_are_normalised():
    assert parse(model="Qwen/Qwen2.5-7B-Instruct").model == "qwen2.5-7b"
    assert parse(alloc_conf=None) == parse(alloc_conf="") == parse()
    assert parse(beta=0) == parse(beta=-0.0) == parse()
    assert str(parse(beta=-0.0).beta) == "0.0"


@pytest.mark.parametrize(
    "text",
    [
        "expandable_segments:True",
        "max_split_size_mb:128, garbage_collection_threshold:0.8",
        "roundup_power2_divisions:[256:1,512:2,>:4],backend:native",
    ],
)
def test_alloc_conf_is_accepted(text):
    assert parse(alloc_conf=text).alloc_conf == text.replace(" ", "")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("backend", "gpu", "auto, cuda, emulated, simulated, cpu"),
        ("gpu", "h100-80g", "Did you mean 'h100-80gb'?"),
        ("model", "", "a built-in name"),
        ("model", 3, "a built-in name"),
        ("model", "unheard-of", "is not known"),
        ("weights", "trained", "Did you mean 'pretrained'?"),
        ("dataset", "", "or null"),
        ("tuning", "qlorra", "Did you mean 'qlora'?"),
        ("lora_rank", 0, "at least 1"),
        ("lora_target_modules", [], "all-linear or a list"),
        ("lora_target_modules", r".*\.(q|v)_proj", "peft takes another text as a regular expression"),
        ("lora_target_modules", [r"model\.layers\.\d+\.mlp\..*"], "peft takes another text as a regular expression"),
        ("lora_target_modules", "q_proj,", "peft takes another text as a regular expression"),
        ("optim", "adamw_8bits", "Did you mean 'adamw_8bit'?"),
        ("optim", "paged_adamw", "Ask with optim=paged_adamw_32bit, which is transformers' name of it."),
        (
            "optim",
            "rmsprop",
            "Ask with optim=adamw_torch, which keeps two states of each parameter where rmsprop keeps",
        ),
        ("num_generations", 1, "at least 2"),
        ("num_generations", 2.0, "whole number"),
        ("num_generations", True, "whole number"),
        ("per_device_train_batch_size", True, "whole number"),
        ("max_prompt_length", -5, "at least 1"),
        ("max_completion_length", 0, "at least 1"),
        ("lengths", "raged", "Did you mean 'ragged'?"),
        ("per_device_train_batch_size", 0, "at least 1"),
        ("gradient_accumulation_steps", None, "at least 1"),
        ("steps_per_generation", 0, "at least 1"),
        ("gradient_checkpointing", "yes", "true or false"),
        ("beta", -0.1, "at least 0"),
        ("beta", float("nan"), "at least 0"),
        ("attn_implementation", "flash_attention", "Did you mean 'flash_attention_2'?"),
        ("dtype", "bf16", "bfloat16, float16, float32"),
        ("bf16", 1, "true or false"),
        ("logprobs", "slices", "Did you mean 'sliced'?"),
        ("rollout", "vllm", "generate, synthetic"),
        ("steps", 0, "at least 1"),
        ("alloc_conf", "max_split_size_mb", "key:value"),
        ("seed", -1, "at least 0"),
        ("modle", "tiny", "Did you mean 'model'?"),
    ],
)
def test_one_wrong_value_is_one_fault(key, value, problem):
    found = faults(**{key: value})
    assert list(found) == [key]
    assert problem in found[key].sentence()


def test_groups_have_to_be_whole():
    sentence = faults(num_generations=8, gradient_accumulation_steps=1)["num_generations"].sentence()
    assert "4 x 1 = 4" in sentence
    assert "per_device_train_batch_size=8" in sentence
    assert parse(num_generations=8, gradient_accumulation_steps=1, per_device_train_batch_size=8)


def test_qlora_needs_a_gpu():
    assert "backend=cuda" in faults(tuning="qlora", backend="cpu")["tuning"].sentence()
    assert parse(tuning="qlora").tuning is Tuning.QLORA


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"backend": "cpu"}, "CUDA only"),
        ({"gpu": "t4-16gb"}, "Ampere"),
        ({"dtype": "float32", "bf16": False}, "16-bit"),
    ],
)
def test_flash_attention_needs_a_card_and_16_bits(values, reason):
    found = faults(attn_implementation="flash_attention_2", **values)
    assert reason in found["attn_implementation"].sentence()


def test_the_tiny_model_has_no_published_weights():
    assert "no published weights" in faults(backend="cpu", weights="pretrained")["weights"].sentence()


def test_targets_are_modules_of_the_model():
    found = faults(tuning="lora", lora_target_modules=["q_proj", "v_porj"])
    assert "Did you mean 'v_proj'?" in found["lora_target_modules"].sentence()
    assert faults(tuning="lora", lora_target_modules=["all-linear", "q_proj"])


@pytest.mark.parametrize("targets", [None, ["in_proj", "out_proj"]])
def test_layers_of_mamba_without_adapters(targets):
    def falcon(_):
        return replace(known("tiny"), model_type="falcon_h1")

    asked = {"backend": "simulated", "model": "tiny", "tuning": "lora", "lora_target_modules": targets}
    with pytest.raises(UsageError, match="includes conv1d or out_proj, which peft refuses to adapt in falcon_h1"):
        parse_point(asked, architecture_of=falcon)
    named = parse_point({**asked, "lora_target_modules": ["in_proj"]}, architecture_of=falcon)
    assert named.lora_target_modules == ("in_proj",)
    assert parse_point({**asked, "tuning": "full", "lora_target_modules": None}, architecture_of=falcon)


def test_rules_skip_keys_with_a_fault():
    found = faults(optim="x", num_generations=3, max_prompt_length=0, steps=0)
    assert set(found) == {"optim", "num_generations", "max_prompt_length", "steps"}


def test_points_that_mean_the_same_are_one_trial_in_order():
    base = {"backend": "simulated", "model": "tiny"}
    points = [{**base, "lora_rank": 8}, {**base, "tuning": "lora"}, {**base, "lora_rank": 9}]
    specs = parse_points(points, architecture_of=known)
    assert [spec.tuning for spec in specs] == [Tuning.FULL, Tuning.LORA]


def test_faults_of_all_points_are_reported_at_once():
    base = {"backend": "simulated", "model": "tiny"}
    points = [{**base, "steps": 0}, {**base, "steps": 0, "seed": -1}, {**base, "optim": "x"}]
    with pytest.raises(UsageError) as caught:
        parse_points(points, architecture_of=known)
    assert [fault.key for fault in caught.value.faults] == ["steps", "seed", "optim"]


def parse_gemma2(**values):
    gemma2 = replace(known("tiny"), model_type="gemma2", has_sdpa=False)
    return parse_point({"backend": "simulated", "model": "my/gemma2", **values}, architecture_of=lambda _: gemma2)


def test_the_default_attention_is_eager_where_transformers_has_no_sdpa():
    assert parse().attn_implementation is Attention.SDPA
    spec = parse_gemma2()
    assert spec.attn_implementation is Attention.EAGER
    line = attention_line(spec, replace(known("tiny"), model_type="gemma2", has_sdpa=False))
    assert line == "my/gemma2: attn_implementation=eager, because transformers has no sdpa for gemma2."
    assert not attention_line(parse(attn_implementation="eager"), known("tiny"))


def test_what_pytorch_runs_in_place_of_other_kernels_is_said_unless_it_is_measured():
    hybrid = replace(known("tiny"), model_type="qwen3_next", has_optional_kernels=True)
    line = kernels_line(replace(parse(), model="my/hybrid"), hybrid)
    assert line.startswith("my/hybrid: its recurrent layers run in PyTorch, as transformers runs them without flash-")
    assert not kernels_line(replace(parse(), backend=Backend.CUDA), hybrid)
    assert not kernels_line(parse(), known("tiny"))


def test_a_stated_sdpa_is_refused_where_transformers_has_none():
    with pytest.raises(UsageError, match="transformers has no sdpa for gemma2"):
        parse_gemma2(attn_implementation="sdpa")
    assert parse_gemma2(attn_implementation="flash_attention_2").attn_implementation is Attention.FLASH_ATTENTION_2
