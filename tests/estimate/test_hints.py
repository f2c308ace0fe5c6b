"""What a hint promises is tried: each ``key=value`` of a hint is applied to the same input, and the fault is gone.

A table of inputs, each with a fault that has a hint; a hint with several settings ("or") has to hold with each.
"""

import re

import pytest
import yaml

from profiler.analytical.estimate import refuse_without_form
from profiler.analytical.explanation.explained import Fit, card_verdict
from profiler.config.models.lookup import suggested_model
from profiler.config.trials.specification import parse_point
from profiler.constraints.table import faults_in_a_sweep
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_OK, EXIT_USAGE, Fault, UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS, find_builtin
from profiler.domain.trials.trial import TrialSpec, key_named
from profiler.estimate.job.inputs import architecture_lookup
from profiler.estimate.main import main
from profiler.storage.foreign.model_config import load_model_config

MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
_SETTING = re.compile(r"\b([a-z][a-z0-9_]+)=((?:\[[^\]]*\])|[\w\-]+(?:\.\d+)?(?:(?:, \w+)* or \w+(?![\w=]))?)")


def _loaded(model: str) -> dict[str, object]:
    return MOE if model == "moe" else dict(load_model_config(model))


ARCHITECTURE_OF = architecture_lookup(_loaded)
COLOCATE = {"use_vllm": True, "vllm_mode": "colocate"}
SHARDED = {"num_processes": 2, "distributed_type": "fsdp"}
DEEPSPEED = {"num_processes": 2, "distributed_type": "deepspeed"}

INPUTS: tuple[dict[str, object], ...] = (
    {"num_generations": 7},
    {"num_generations": 6, "num_processes": 2, "distributed_type": "multi_gpu"},
    {"tuning": "qlora", "backend": "cpu"},
    {"recipe": "sft", "activation_offloading": True, "backend": "cpu"},
    {"activation_offloading": True, **SHARDED},
    {"critic": True, "tuning": "lora"},
    {"critic": True, **SHARDED},
    {"critic": True, "activation_offloading": True},
    {"critic": True, "use_liger_kernel": True},
    {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 100},
    {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 4096, "logprobs": "minibatch"},
    {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 4096, **SHARDED},
    {"attn_implementation": "flash_attention_2", "gpu": "t4-16gb"},
    {"attn_implementation": "flash_attention_2", "backend": "cpu"},
    {"attn_implementation": "flash_attention_2", "dtype": "float32", "bf16": False},
    {"model": "tiny", "weights": "pretrained", "backend": "cpu"},
    {"vllm_max_model_length": 100, **COLOCATE},
    {"vllm_max_model_length": 300, **COLOCATE},
    {"vllm_max_model_length": 10**7, **COLOCATE},
    {"vllm_tensor_parallel_size": 3, "num_processes": 3, "distributed_type": "multi_gpu", **COLOCATE},
    {"vllm_enable_sleep_mode": True, "use_vllm": True, "vllm_mode": "server"},
    {"backend": "cpu", **COLOCATE},
    {"use_vllm": True, "vllm_mode": "server", "backend": "cuda"},
    {"num_processes": 2},
    {"distributed_type": "fsdp"},
    {"offload_param_device": "cpu", "zero_stage": 2, **DEEPSPEED},
    {"offload_optimizer_device": "cpu", "zero_stage": 0, **DEEPSPEED},
    {"offload_optimizer_device": "cpu", "zero_stage": 2, "optim": "adamw_8bit", **DEEPSPEED},
    {"logprobs": "minibatch", "zero_stage": 2, **DEEPSPEED},
    {"fsdp_activation_checkpointing": True, "gradient_checkpointing": True, **SHARDED},
    {"tuning": "qlora", "zero_stage": 3, **DEEPSPEED},
    {"tuning": "qlora", **SHARDED},
    {"dtype": "float32", **SHARDED},
    {"logprobs": "minibatch", **SHARDED},
    {"fsdp_version": 1, **SHARDED},
    {"fsdp_offload_params": True, **SHARDED},
    {"zero_stage": 3, "reward_models": ["qwen2.5-0.5b"], **DEEPSPEED},
    {"backend": "cpu", **SHARDED},
    {"activation_offloading": True},
    {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 4096},
    {"critic": True, "logprobs": "minibatch"},
    {"critic": True, "steps_per_generation": 6},
    {"beta": 0.1, "recipe": "sft"},
    {"num_generations": 8, "recipe": "sft"},
    {"max_length": 512},
    *(
        {"model": "moe", **values}
        for values in (
            {"dtype": "float32"},
            {"bf16": False},
            {"logprobs": "full"},
            {"attn_implementation": "eager"},
            {"use_liger_kernel": True},
            {"critic": True},
            {"tuning": "lora", "lora_target_modules": ["gate_proj"]},
        )
    ),
    *(
        {"model": "qwen2.5-vl-3b", "images_per_prompt": 1, "max_prompt_length": 8192, **values}
        for values in (
            {"dtype": "float32"},
            {"tuning": "qlora"},
            {"attn_implementation": "eager"},
            {"use_liger_kernel": True},
            {"logprobs": "full"},
            {"max_prompt_length": 100},
        )
    ),
)


def _name(values: dict[str, object]) -> str:
    return ",".join(f"{key}={value}" for key, value in values.items())


def _parsed(values: dict[str, object]) -> TrialSpec:
    return parse_point(values, architecture_of=ARCHITECTURE_OF)


def _faults(values: dict[str, object], *, runs: bool = True) -> list[Fault]:
    """Return the faults of an input: those of its keys, or else those of a sweep and of the closed form."""
    try:
        spec = _parsed(values)
    except UsageError as error:
        return list(error.faults)
    found = list(faults_in_a_sweep([spec], ARCHITECTURE_OF)) if runs else []
    try:
        refuse_without_form(spec, ARCHITECTURE_OF(spec.model))
    except UsageError as error:
        found.extend(error.faults)
    return found


def _values(**values: object) -> dict[str, object]:
    return {"backend": "simulated", "model": "qwen2.5-0.5b", "gpu": "h100-80gb", **values}


def _settings(hint: str) -> list[tuple[str, object]]:
    """Return the settings that a hint promises something of; alternatives of one key are settings of their own."""
    found: list[tuple[str, object]] = []
    hint = hint.replace("A sweep with backend=emulated runs it.", "")  # tried by a test of its own
    for key, text in _SETTING.findall(hint):
        options = [text] if text.startswith("[") else re.split(r", | or ", text)
        found += [(key, yaml.safe_load(option)) for option in options if option not in ("with", "null", "a")]
    return found


@pytest.mark.parametrize("values", INPUTS, ids=_name)
def test_a_setting_of_a_hint_removes_its_fault(values):
    given = _values(**values)
    faults = _faults(given)
    assert faults, "the table has inputs with a fault only"
    for fault in faults:
        for key, value in _settings(fault.hint):
            assert key_named(key)
            after = _faults({**given, key: value})
            again = [each for each in after if each.key == fault.key and each.problem == fault.problem]
            assert not again, f"{fault.sentence()} {key}={value} does not help"


@pytest.mark.parametrize("values", INPUTS, ids=_name)
def test_a_hint_to_run_it_names_a_run_that_is_not_refused(values):
    """ "A sweep simulates it" and "backend=emulated runs it" are said of trials that a sweep takes only."""
    for fault in _faults(_values(**values), runs=False):
        simulates, emulates = "profiler.sweep` simulates it" in fault.hint, "backend=emulated runs it" in fault.hint
        if simulates or emulates:
            spec = _parsed(_values(**values, backend="emulated" if emulates else "simulated"))
            assert not faults_in_a_sweep([spec], ARCHITECTURE_OF), fault.sentence()


def test_the_table_tries_hints():
    """At least so many settings are tried: a change of wording must not empty the test."""
    tried = [setting for values in INPUTS for fault in _faults(_values(**values)) for setting in _settings(fault.hint)]
    assert len(tried) >= 40


ENGINES = [
    (model, gpu, values)
    for model in ("qwen2.5-0.5b", "qwen2.5-7b", "qwen2.5-32b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-14b")
    for gpu in ("rtx-4090-24gb", "a100-40gb", "h100-80gb", "b200-180gb")
    for values in ({}, {"tuning": "lora"}, {"vllm_gpu_memory_utilization": 0.1}, {"max_completion_length": 8192})
]


@pytest.mark.parametrize(("model", "gpu", "values"), ENGINES)
def test_settings_for_vllm_let_the_job_fit(model, gpu, values):
    """What vLLM is to use lets it start and the whole job fit; otherwise what is missing is said."""
    architecture = ARCHITECTURE_OF(model)
    given = _values(model=model, gpu=gpu, **COLOCATE, **values)
    try:
        verdict = card_verdict(_parsed(given), architecture, KNOWN_GPUS[gpu])
    except UsageError:
        return
    if verdict.fit is not Fit.NO_ENGINE:
        return
    said = verdict.no_engine.rpartition("; ")[2]
    settings = dict(_settings(said))
    if not settings:
        assert "no part of the card is enough" in said
        return
    after = card_verdict(_parsed({**given, **settings}), architecture, KNOWN_GPUS[gpu])
    assert after.fit is not Fit.NO_ENGINE
    assert said.startswith("use ") is (after.fit is Fit.FITS), (said, after.fit)


@pytest.mark.parametrize(
    ("model", "near"),
    [
        ("Qwen/Qwen3-31B-A3B", "Qwen/Qwen3-30B-A3B"),
        ("qwen3-80b-a3b", ""),
        ("Qwen/Qwen3-8b-base", "Qwen/Qwen3-8B-Base"),
        ("Qwen/Qwen2.5-7B-Instuct", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen/Qwen2.5-VL-7B", ""),
        ("Qwen/Qwen2.5-7B-GPTQ", ""),
        ("qwen2.5-8b", "qwen2.5-7b"),
        ("qwen2.5-70b", "qwen2.5-72b"),
        ("llama-3-70b", "llama-3.1-70b"),
        ("llama-3.2-90b", ""),
        ("openai/gpt-oss-120b", ""),
        ("mistral-8x7b", "mixtral-8x7b"),
        ("smollm2-1.7", "smollm2-1.7b"),
    ],
)
def test_a_suggested_model_is_near_and_of_the_same_size(model, near):
    known = (
        [hub_id for each in BUILTIN_MODELS.values() for hub_id in each.hub_ids] if "/" in model else [*BUILTIN_MODELS]
    )
    assert suggested_model(model, known) == (f"Did you mean '{near}'?" if near else "")


def test_each_slip_of_the_pen_in_a_built_in_name_has_its_size():
    """Every name with one character less, more or another: what is suggested is a valid name of that size class."""
    for name, model in BUILTIN_MODELS.items():
        for position in range(len(name)):
            written = name[:position] + name[position + 1 :]
            found = re.search(r"'(.+)'", suggested_model(written, [*BUILTIN_MODELS]))
            stated = re.search(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", written)
            if found is not None and stated is not None:
                size = float(stated[1]) * (1e9 if stated[2] == "b" else 1e6)
                other = find_builtin(found[1])
                assert other is not None
                assert 0.6 <= other.parameters / size <= 1.4, (written, found[1])
            if found is not None:
                assert find_builtin(found[1]) is not None
        assert suggested_model(name.upper(), [*BUILTIN_MODELS]) == f"Did you mean '{model.name}'?"


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("./Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("./checkpoints/qwen3-8b-grpo", "qwen3-8b"),
        ("./my-model", None),
        ("./Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("./Qwen2.5-VL-7B", None),
    ],
)
def test_only_a_model_of_the_same_name_shares_its_architecture(model, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([f"model={model}"]) == EXIT_USAGE
    said = capsys.readouterr().err
    found = re.search(r"model=([\w.\-]+)\.$", said.strip())
    assert (found[1] if found is not None else None) == named
    if found is not None:
        assert main([f"model={found[1]}"]) == EXIT_OK
