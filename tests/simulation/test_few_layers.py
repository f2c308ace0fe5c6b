"""A trial that runs with few layers and is continued to all of them equals one that runs all, in everything."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from matrix import further
from peft import LoraConfig
from simulating import LORA, small_spec

from profiler.allocator import Trace
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.outcome import Outcome, Status
from profiler.domain.trials.optimizers import Kernels, Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import (
    Attention,
    DistributedType,
    Dtype,
    Lengths,
    Logprobs,
    Rollout,
    TrialSpec,
    Tuning,
    VllmMode,
)
from profiler.simulation.depth.repetitions import LAYERS_RUN
from profiler.simulation.depth.uniformity import (
    adapter_difference,
    config_difference,
    layer_difference,
    with_adapters,
)
from profiler.simulation.tracing.attribution import Attribution
from profiler.simulation.tracing.recorder import ModulePaths
from profiler.training.arguments import lora_config
from profiler.training.models.model import build_config, random_model
from profiler.training.models.parameter_count import parameter_counts
from profiler.training.placement import RealDevice
from profiler.worker import simulated
from profiler.worker.simulated import (
    SimulatedRun,
    equal_layers,
    outcome_on_card,
    simulate,
    simulate_few_layers,
    snapshot_on_card,
    with_layers,
)

LAYERS = 12
TINY = dict(BUILTIN_MODELS["tiny"].config) | {"num_hidden_layers": LAYERS}
DEEP_ENOUGH = {"num_hidden_layers": 7}
"""Layers of trials that run whole for a comparison: more than twice as many as run otherwise."""
QWEN3 = TINY | {"model_type": "qwen3", "head_dim": 16}
LLAMA = TINY | {"model_type": "llama"}
MISTRAL = TINY | {"model_type": "mistral", "sliding_window": None}
LORA_KEYS: dict[str, Any] = {"tuning": Tuning.LORA, **LORA}
QLORA_KEYS: dict[str, Any] = {"tuning": Tuning.QLORA, **LORA}


def described(trace: Trace) -> Iterator[tuple[Any, ...]]:
    """Blocks with their sites by value, as the numbers of sites depend on the order."""
    for size, category, site in zip(trace.sizes_bytes, trace.categories, trace.site_of, strict=True):
        yield size, category, trace.sites[site]


def without_layers_run(outcome: Outcome) -> Outcome:
    return replace(outcome, work=replace(outcome.work, layers_run=None))


def assert_equal(few: SimulatedRun, whole: SimulatedRun, spec: TrialSpec) -> None:
    assert few.trace.events == whole.trace.events
    assert all(one == other for one, other in zip(described(few.trace), described(whole.trace), strict=True))
    no_sites = {"sites": (), "site_of": ()}
    assert replace(few.trace, **no_sites) == replace(whole.trace, **no_sites)
    assert replace(few, trace=whole.trace, layers_run=None) == whole
    outcome = outcome_on_card(few, spec)
    assert outcome.work.layers_run == LAYERS_RUN
    assert without_layers_run(outcome) == outcome_on_card(whole, spec)


def both_ways(
    config: Mapping[str, Any] = TINY | DEEP_ENOUGH, *, others: tuple[str, ...] = (), **keys: Any
) -> tuple[SimulatedRun, SimulatedRun, TrialSpec]:
    spec = small_spec(**keys)
    gpus = [KNOWN_GPUS[name] for name in others]
    few = simulate_few_layers(spec, config, (KNOWN_GPUS[str(spec.gpu)], *gpus))
    assert few is not None
    return few, simulate(spec, config, gpus=gpus, all_layers=True), spec


ONE_PASS: dict[str, Any] = {
    "rollout": Rollout.SYNTHETIC,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 1,
}
"""For what differs in the update only; other cases decode, and accumulate gradients."""

OF_PAIRS: dict[str, Any] = {"recipe": Recipe.DPO, "max_length": 24, "max_prompt_length": 8, "beta": 0.1}
OF_ROWS: dict[str, Any] = {"recipe": Recipe.SFT, "max_length": 24}
BY_VLLM: dict[str, Any] = {
    "use_vllm": True,
    "vllm_mode": VllmMode.COLOCATE,
    "vllm_gpu_memory_utilization": 0.3,
    "vllm_tensor_parallel_size": 1,
}
SCALED: dict[str, Any] = {"fp16": True, "bf16": False, "dtype": Dtype.FLOAT32}
OF_SCORES: dict[str, Any] = {"recipe": Recipe.REWARD, "max_length": 24}

OPTIMIZERS = [each for each in Optimizer if each.traits.kernels is Kernels.TORCH or "adamw" in each] + [
    Optimizer.ADEMAMIX_8BIT
]
"""The others, of bitsandbytes, make the same tensors, fewer or without scales: they are among the further cases."""

OF_RMSPROP: dict[Optimizer, dict[str, Any]] = {
    optimizer: {"dtype": Dtype.FLOAT32} for optimizer in (Optimizer.RMSPROP_8BIT, Optimizer.RMSPROP_32BIT)
}
"""RMSprop of bitsandbytes has no kernel for small tensors in bfloat16."""

UPDATES = [Optimizer.ADAMW_TORCH, Optimizer.ADAMW_8BIT]
"""Of each owner of kernels one; an update of another optimizer is a further case."""

CASES: list[dict[str, Any]] = [
    *({"optim": optimizer, **ONE_PASS} for optimizer in UPDATES),
    LORA_KEYS,
    QLORA_KEYS | {"optim": Optimizer.PAGED_ADAMW_8BIT, "lengths": Lengths.FORCED},
    LORA_KEYS | {"rollout": Rollout.SYNTHETIC, "lora_target_modules": ("q_proj", "embed_tokens"), "lora_dropout": 0.1},
    {"recipe": Recipe.RLOO, "beta": 0.04, "per_device_eval_batch_size": 8, **ONE_PASS},
    {"config": MISTRAL | DEEP_ENOUGH, "attn_implementation": Attention.FLASH_ATTENTION_2, "gpu": "a100-40gb"},
    BY_VLLM | ONE_PASS | {"steps": 6, "beta": 0.04},
    OF_PAIRS,
    OF_PAIRS | {"recipe": Recipe.KTO, "per_device_train_batch_size": 2, "gradient_checkpointing": False},
    OF_SCORES,
    OF_ROWS,
    OF_ROWS | SCALED,
]
FURTHER: list[dict[str, Any]] = [
    *({"optim": optimizer, **ONE_PASS} for optimizer in OPTIMIZERS if optimizer not in UPDATES),
    LORA_KEYS | {"beta": 0.04, "gradient_checkpointing": False, "logprobs": Logprobs.FULL},
    LORA_KEYS | {"beta": 0.04, "ref_adapter": True},
    LORA_KEYS | {"logprobs": Logprobs.SLICED, "activation_offloading": True, "torch_empty_cache_steps": 2},
    {"logprobs": Logprobs.MINIBATCH, "use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 200},
    {"config": QWEN3 | DEEP_ENOUGH, "attn_implementation": Attention.EAGER, "dtype": Dtype.FLOAT32},
    {"config": LLAMA | DEEP_ENOUGH, "max_completion_length": 40, "steps": 6, "lengths": Lengths.FORCED},
    BY_VLLM | LORA_KEYS | {"vllm_enable_sleep_mode": True, "vllm_max_model_length": 200},
    OF_PAIRS | LORA_KEYS | {"gradient_checkpointing": False, "lengths": Lengths.FORCED},
    OF_PAIRS | QLORA_KEYS | {"config": LLAMA | DEEP_ENOUGH, "steps": 6},
    OF_PAIRS | QLORA_KEYS | {"ref_adapter": True, "precompute_ref_log_probs": True, "precompute_ref_batch_size": 3},
    OF_PAIRS | {"precompute_ref_log_probs": True, "precompute_ref_batch_size": 3, "optim": Optimizer.ADAMW_8BIT},
    OF_SCORES | LORA_KEYS | {"config": LLAMA | DEEP_ENOUGH, "steps": 6},
    OF_SCORES | QLORA_KEYS | {"gradient_checkpointing": False},
    OF_ROWS | LORA_KEYS | {"config": QWEN3 | DEEP_ENOUGH, "gradient_checkpointing": False, "steps": 6},
    *(OF_RMSPROP.get(each, {}) | {"optim": each, **ONE_PASS} for each in Optimizer if each not in OPTIMIZERS),
    *(LORA_KEYS | {"optim": optimizer} for optimizer in Optimizer),
    *(QLORA_KEYS | {"optim": optimizer} for optimizer in Optimizer if optimizer not in OF_RMSPROP),
    {"config": TINY | {"num_hidden_layers": 48}, **LORA_KEYS},
    {"config": TINY | {"num_hidden_layers": 48}, "optim": Optimizer.ADAMW_TORCH},
    {"bf16": False, "gpu": "t4-16gb", "logprobs": Logprobs.FULL},
    *({"logprobs": logprobs, **ONE_PASS} for logprobs in Logprobs),
    *(BY_VLLM | {"logprobs": logprobs, "vllm_enable_sleep_mode": True} for logprobs in Logprobs),
    *(BY_VLLM | LORA_KEYS | {"optim": optimizer} for optimizer in OPTIMIZERS),
    *(OF_ROWS | SCALED | keys | {"optim": optimizer} for optimizer in OPTIMIZERS for keys in ({}, LORA_KEYS)),
]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [*CASES, *further(*FURTHER)], ids=str)
def test_few_layers_equal_all_layers(keys: dict[str, Any]) -> None:
    few, whole, spec = both_ways(**keys)
    assert_equal(few, whole, spec)


@pytest.mark.slow
def test_weights_of_4_bits_that_vllm_gets_run_with_all_layers() -> None:
    """Each merge makes all weights anew, outside of the modules that they belong to."""
    spec = small_spec(**BY_VLLM | QLORA_KEYS)
    assert simulate_few_layers(spec, TINY | DEEP_ENOUGH, (KNOWN_GPUS[str(spec.gpu)],)) is None


@pytest.mark.slow
def test_a_card_that_is_too_small_among_several_cards() -> None:
    others = ("rtx-4090-24gb", "a100-40gb")
    large = TINY | DEEP_ENOUGH | {"intermediate_size": 2_600_000}
    few, whole, spec = both_ways(large, others=others, gpu="rtx-4060-ti-16gb", **LORA_KEYS)
    assert_equal(few, whole, spec)
    assert outcome_on_card(few, spec).status is Status.OOM
    assert snapshot_on_card(few, spec) == snapshot_on_card(whole, spec)
    for gpu in others:
        on_it = replace(spec, gpu=gpu)
        assert few.answers(on_it) == whole.answers(on_it)
        assert without_layers_run(outcome_on_card(few, on_it)) == outcome_on_card(whole, on_it)


# ---- which trials run with few layers --------------------------------------------------------------------------------

ANY_VALUE = """
    backend gpu alloc_conf seed model tuning lora_rank lora_alpha lora_target_modules lora_dropout
    bnb_4bit_use_double_quant optim num_generations max_prompt_length max_completion_length lengths steps
    per_device_train_batch_size gradient_accumulation_steps steps_per_generation gradient_checkpointing beta
    attn_implementation dtype bf16 fp16 rollout max_length precompute_ref_log_probs ref_adapter
    precompute_ref_batch_size weight_decay activation_offloading torch_empty_cache_steps use_dynamic_bsz
    ppo_max_token_len_per_gpu per_device_eval_batch_size use_vllm vllm_mode vllm_gpu_memory_utilization
    vllm_enable_sleep_mode vllm_max_model_length vllm_tensor_parallel_size vllm_model_impl
"""
WITHOUT_EFFECT = """
    min_pixels max_pixels fsdp_version fsdp_reshard_after_forward fsdp_offload_params fsdp_activation_checkpointing
    zero_stage cp_size offload_optimizer_device offload_param_device fsdp_cpu_ram_efficient_loading
"""
"""Keys that need another recipe, several GPUs or images, each of which runs with all layers."""


def test_a_new_key_of_a_trial_is_proven_or_runs_with_all_layers() -> None:
    """A key that nobody has decided about would be extrapolated with any value."""
    decided = [*simulated._PROVEN, *ANY_VALUE.split(), *WITHOUT_EFFECT.split()]
    assert sorted(decided) == sorted(field.name for field in fields(TrialSpec))


GEMMA_4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 8,
}
GEMMA_3N: dict[str, Any] = {
    "model_type": "gemma3n_text",
    "head_dim": 16,
    "intermediate_size": [128] * 11 + [256],
    "vocab_size_per_layer_input": 96,
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 2,
    "laurel_rank": 8,
    "activation_sparsity_pattern": [0.0] * 12,
    "altup_num_inputs": 2,
    "sliding_window": 8,
}
UNEVEN_CONFIGS: dict[str, dict[str, Any]] = {
    "layer_types": TINY | {"layer_types": ["full_attention"] * 11 + ["sliding_attention"], "sliding_window": 8},
    "layer_types without a window": QWEN3 | {"layer_types": ["full_attention"] * 11 + ["sliding_attention"]},
    "max_window_layers": TINY | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 6},
    "Gemma 3": TINY | {"model_type": "gemma3_text", "sliding_window": 8, "head_dim": 16},
    "first_k_dense_replace": QWEN3 | {"first_k_dense_replace": 6},
    "mlp_only_layers": QWEN3
    | {"model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 32, "mlp_only_layers": [7]},
    "no_rope_layers": TINY | {"model_type": "smollm3", "no_rope_layers": [1] * 11 + [0]},
    "Gemma 4": TINY | GEMMA_4,
    "Gemma 3n": TINY | GEMMA_3N,
    "Nemotron-H": TINY | {"model_type": "nemotron_h", "layers_block_type": ["mamba"] * 11 + ["attention"]},
    "EXAONE 4": QWEN3 | {"model_type": "exaone4", "sliding_window": 8},
    "a window in every layer": MISTRAL | {"sliding_window": 4096},
}


@pytest.mark.parametrize("name", UNEVEN_CONFIGS)
def test_a_configuration_with_other_layers_is_not_proven(name: str) -> None:
    config = UNEVEN_CONFIGS[name]
    few = build_config(with_layers(config, LAYERS_RUN), name="tiny")
    assert config_difference(build_config(config, name="tiny"), few)
    assert equal_layers(small_spec(), config) is None


@pytest.mark.parametrize("name", ["Gemma 4", "Gemma 3n", "Nemotron-H", "EXAONE 4"])
def test_layers_of_other_kinds_differ_in_the_model_too(name: str) -> None:
    """A row that said that such layers repeat would still run all of them."""
    assert layer_difference(model_of(UNEVEN_CONFIGS[name]))


UNEVEN_ADAPTERS: dict[str, dict[str, Any]] = {
    "layers_to_transform": {"layers_to_transform": list(range(11))},
    "rank_pattern": {"rank_pattern": {"layers.9.mlp.up_proj": 4}},
    "alpha_pattern": {"alpha_pattern": {"layers.9.mlp.up_proj": 4}},
    "target_modules": {"target_modules": ["q_proj", "layers.9.mlp.up_proj"]},
    "modules_to_save": {"modules_to_save": ["layers.9.mlp.up_proj"]},
}


def model_of(config: Mapping[str, Any] = TINY) -> Any:
    return random_model(small_spec(), build_config(config, name="tiny"), RealDevice(device=torch.device("meta")))


@pytest.mark.parametrize("name", UNEVEN_ADAPTERS)
def test_adapters_of_some_layers_are_a_difference(name: str) -> None:
    keys = {"target_modules": ["q_proj", "up_proj"], "r": 8} | UNEVEN_ADAPTERS[name]
    adapted = with_adapters(model_of(), LoraConfig(task_type="CAUSAL_LM", **keys))
    assert "layer" in layer_difference(adapted)


@pytest.mark.parametrize("name", UNEVEN_ADAPTERS)
def test_adapters_that_may_choose_layers_are_not_proven(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"target_modules": ["q_proj", "up_proj"], "r": 8}
    assert adapter_difference(LoraConfig(task_type="CAUSAL_LM", **keys)) == ""
    adapters = LoraConfig(task_type="CAUSAL_LM", **keys | UNEVEN_ADAPTERS[name])
    assert adapter_difference(adapters) == f"{name} may choose layers"
    monkeypatch.setattr(simulated, "lora_config", lambda _: adapters)
    assert equal_layers(small_spec(**LORA_KEYS), TINY) is None


def test_the_counts_of_few_layers_are_those_of_all_layers() -> None:
    for keys in (LORA_KEYS, {}):
        spec, model = small_spec(**keys), with_adapters(model_of(), lora_config(small_spec(**keys)))
        equal = equal_layers(spec, TINY)
        assert equal is not None
        assert (equal.parameters, equal.trainable_parameters) == parameter_counts(model)
        assert equal.trained.all == sum(parameter.requires_grad for parameter in model.parameters())


def test_equal_layers_have_no_difference() -> None:
    for config in (TINY, QWEN3, LLAMA, MISTRAL):
        few = build_config(with_layers(config, LAYERS_RUN), name="tiny")
        assert config_difference(build_config(config, name="tiny"), few) == ""
        assert layer_difference(model_of(config)) == ""
    adapters = LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=8)
    assert layer_difference(with_adapters(model_of(), adapters)) == ""


def _other_attribute(layer: Any) -> None:
    layer.self_attn.scaling = 1.0


def _other_type(layer: Any) -> None:
    layer.mlp.to(torch.float32)


def _frozen(layer: Any) -> None:
    layer.mlp.requires_grad_(requires_grad=False)


def _other_module(layer: Any) -> None:
    layer.input_layernorm = torch.nn.Identity()


def _other_number(layer: Any) -> None:
    layer.self_attn.layer_idx = 3


@pytest.mark.parametrize("change", [_other_attribute, _other_type, _frozen, _other_module, _other_number])
def test_one_changed_layer_is_a_difference(change: Any) -> None:
    model = model_of()
    change(model.model.layers[LAYERS - 1])
    assert f"layer {LAYERS - 1} " in layer_difference(model)


@pytest.mark.parametrize(
    "keys",
    [
        {"critic": True},
        QLORA_KEYS | {"logprobs": Logprobs.SLICED},
        {"num_processes": 2, "distributed_type": DistributedType.MULTI_GPU},
        {"steps": 100},
        LORA_KEYS | {"lora_target_modules": ("layers.9.mlp.up_proj",)},
    ],
    ids=str,
)
def test_jobs_that_are_not_proven(keys: dict[str, Any]) -> None:
    assert equal_layers(small_spec(), TINY) is not None
    assert equal_layers(small_spec(**keys), TINY) is None


def test_a_model_that_draws_numbers_on_the_host_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of its rows would depend on its depth."""
    adapted = simulated.with_adapters

    def drawing(model: Any, adapters: Any) -> Any:
        torch.rand(1)
        return adapted(model, adapters)

    monkeypatch.setattr(simulated, "with_adapters", drawing)
    assert equal_layers(small_spec(), TINY) is None


def test_a_model_that_runs_before_it_has_names_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks would be taken for blocks of no layer."""
    know, trainer_ready, is_ready = ModulePaths.know, Attribution.trainer_ready, []

    def ready(self: Attribution, trainer: Any) -> None:
        is_ready.append(True)
        trainer_ready(self, trainer)

    def known_later(self: ModulePaths, model: Any, **keys: Any) -> None:
        if is_ready:
            know(self, model, **keys)

    monkeypatch.setattr(Attribution, "trainer_ready", ready)
    monkeypatch.setattr(ModulePaths, "know", known_later)
    spec = small_spec(**OF_PAIRS, precompute_ref_log_probs=True)
    assert simulate_few_layers(spec, TINY, (KNOWN_GPUS["h100-80gb"],)) is None


@pytest.mark.slow
def test_a_deep_model_runs_with_few_layers_and_another_one_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert simulate(small_spec(), TINY).layers_run is None
    monkeypatch.setattr(simulated, "FEWEST_LAYERS", LAYERS)
    assert simulate(small_spec(), TINY).layers_run == LAYERS_RUN
    assert simulate(small_spec(), UNEVEN_CONFIGS["max_window_layers"]).layers_run is None
