import json
import re
from pathlib import Path

import pytest
import yaml

from profiler.config.verl.config import read_verl_config
from profiler.domain.errors import EXIT_USAGE, UsageError
from profiler.domain.memory import GIB, MIB
from profiler.domain.verl import Strategy
from profiler.estimate.main import answer, main

_EXAMPLES = Path(__file__).parents[2] / "examples" / "verl"


def _write(tmp_path, **dotted):
    values = {
        "actor_rollout_ref": {"model": {"path": "Qwen/Qwen2.5-7B-Instruct"}},
        "algorithm": {"adv_estimator": "grpo"},
    }
    for key, value in dotted.items():
        section = values
        *parents, last = key.split("__")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    path = tmp_path / "verl.yaml"
    path.write_text(yaml.safe_dump(values))
    return f"config={path}"


@pytest.mark.parametrize(
    ("name", "training_gb", "peak_phase"),
    [("basic", 32.4, "rollout"), ("optimised", 24.7, "rollout"), ("extreme", 7.6, "rollout")],
)
def test_the_examples(name, training_gb, peak_phase):
    """The report claims 35, 16 and 8 GB for them."""
    words = [f"config={_EXAMPLES / name}.yaml"]
    found = json.loads(answer([*words, "format=json"]))
    text = answer(words)

    assert round(found["training_peak_bytes"] / 1e9, 1) == training_gb
    assert found["peak_phase"] == peak_phase
    assert found["tag"] == "estimated, not yet measured"
    assert found["report_bytes"] + sum(each["bytes"] for each in found["differences"]) == sum(
        found["phases"]["actor"].values()
    )
    assert max(map(len, text.splitlines())) <= 80
    assert "estimated, not yet measured" in " ".join(text.split())
    assert "32.8 printed, 47.75 by its own parts" in text
    assert "7B PPO 126 GB, GRPO 70 GB, 44% saved" in text


def test_the_answer_is_that_of_any_trial():
    """The verdict, the phase of the peak and its categories are said as for a trial of trl."""
    words = [f"config={_EXAMPLES / 'basic.yaml'}", "gpu=rtx-4090-24gb"]
    short, whole = answer(words), answer([*words, "details=true"])
    order = ["Does not fit: ", "<- the peak", "Peak allocated ", "Other phases: ", "Fragments: ", "details=true"]
    assert [short.find(each) for each in order] == sorted(short.find(each) for each in order)
    assert short.startswith(order[0]) and all(each in short for each in order)
    assert re.findall(r"(?m)^(\w+) +\d+\.\d  ", whole) == ["rollout", "score", "backward", "optimizer"]
    assert "  optimizer state       7.1  7.62e9 x 8 B / 8 GPUs" in short.splitlines()
    assert "Other phases" not in whole and "details=true" not in whole


def test_absent_keys_have_the_defaults_of_verl():
    job = read_verl_config({"actor_rollout_ref": {"model": {"path": "Qwen/Qwen2.5-7B"}}})

    assert (job.n_gpus, job.fsdp_size, job.strategy) == (8, 8, Strategy.FSDP)
    assert job.critic is not None
    assert not job.has_reference
    assert (job.actor.weight_bytes, job.actor.max_tokens) == (4, 1_024)
    assert job.gpu_memory_utilization == 0.5


def test_keys_that_decide_memory_are_read():
    text = """
    data: {max_prompt_length: 100, max_response_length: 300, train_batch_size: 64}
    algorithm: {adv_estimator: gae, use_kl_in_reward: true}
    trainer: {nnodes: 2, n_gpus_per_node: 8, logger: [console], total_epochs: 3}
    actor_rollout_ref:
      model: {path: Qwen/Qwen2.5-7B, lora_rank: 32, target_modules: [q_proj], enable_activation_offload: true}
      actor:
        strategy: megatron
        use_dynamic_bsz: true
        ppo_max_token_len_per_gpu: 5000
        megatron: {tensor_model_parallel_size: 4, pipeline_model_parallel_size: 2, param_offload: true}
        optim: {lr: 1e-6}
      rollout: {name: vllm, n: 5, tensor_model_parallel_size: 4, gpu_memory_utilization: 0.7, free_cache_engine: false,
                log_prob_max_token_len_per_gpu: 9000, engine_kwargs: {vllm: {swap_space: 4}}}
    critic: {ppo_max_token_len_per_gpu: 7000, megatron: {optimizer_offload: true}}
    """
    job = read_verl_config(yaml.safe_load(text))

    assert (job.n_gpus, job.strategy) == (16, Strategy.MEGATRON)
    assert (job.tensor_model_parallel_size, job.pipeline_model_parallel_size) == (4, 2)
    assert job.actor.param_offload and job.actor.max_tokens == 5000
    # Megatron reads neither of the keys of its model.
    assert not job.actor.activation_offload and not job.actor.gradient_checkpointing
    assert job.critic is not None and job.critic.optimizer_offload and job.critic.max_tokens == 7000
    assert job.has_reference and not job.free_cache_engine
    assert (job.lora_rank, job.lora_target_modules, job.rollout_n) == (32, ("q_proj",), 5)
    # the larger of the budgets of rollout and reference; that of the reference defaults to the budget of the actor
    assert (job.log_prob_max_tokens, job.gpu_memory_utilization) == (9000, 0.7)


@pytest.mark.parametrize(("shared", "tokens"), [(1, 401), (2, 201), (4, 101)])
def test_tokens_of_shared_rows_are_rounded_up(shared, tokens):
    """401 tokens on two GPUs are 201 on one of them: rounded down, the estimate of the larger part is too low."""
    actor = {"ulysses_sequence_parallel_size": shared, "ppo_mini_batch_size": 64, "ppo_micro_batch_size_per_gpu": 1}
    config = {
        "data": {"max_prompt_length": 101, "max_response_length": 300, "train_batch_size": 64},
        "algorithm": {"adv_estimator": "grpo"},
        "actor_rollout_ref": {"model": {"path": "Qwen/Qwen2.5-7B"}, "actor": actor},
    }
    job = read_verl_config(config)
    assert job.actor.max_tokens == tokens


def test_unknown_keys_and_wrong_values_are_reported_together(tmp_path, capsys):
    word = _write(
        tmp_path,
        data__max_promt_length=512,
        trainer__n_gpus_per_node=0,
        actor_rollout_ref__rollout__gpu_memory_utilization="much",
    )

    assert main([word, "model=qwen2.5-7b", "gpu=a100"]) == EXIT_USAGE
    said = {line.partition("=")[0]: line for line in capsys.readouterr().err.splitlines()}
    assert set(said) == {
        "model",
        "gpu",
        "data.max_promt_length",
        "trainer.n_gpus_per_node",
        "actor_rollout_ref.rollout.gpu_memory_utilization",
    }
    assert "Did you mean 'data.max_prompt_length'?" in said["data.max_promt_length"]


@pytest.mark.parametrize(
    ("section", "key", "value", "named"),
    [
        ("rollout", "tensor_model_parallel_size", 3, "actor_rollout_ref.rollout.tensor_model_parallel_size"),
        ("rollout", "gpu_memory_utilization", 1.5, "actor_rollout_ref.rollout.gpu_memory_utilization"),
        ("actor", "fsdp_config", {"fsdp_size": 3}, "actor_rollout_ref.actor.fsdp_config.fsdp_size"),
        ("actor", "fsdp_config", {"model_dtype": "int8"}, "actor_rollout_ref.actor.fsdp_config.model_dtype"),
        ("actor", "strategy", "fsdp3", "actor_rollout_ref.actor.strategy"),
    ],
)
def test_impossible_values_are_faults(section, key, value, named):
    values = {"actor_rollout_ref": {"model": {"path": "Qwen/Qwen2.5-7B"}, section: {key: value}}}

    with pytest.raises(UsageError) as error:
        read_verl_config(values)
    assert [fault.key for fault in error.value.faults] == [named]


def test_references_in_the_files_of_verl_mean_its_defaults(tmp_path):
    word = _write(
        tmp_path,
        actor_rollout_ref__rollout__name="???",
        actor_rollout_ref__ref__log_prob_use_dynamic_bsz="${oc.select:actor_rollout_ref.actor.use_dynamic_bsz,false}",
    )

    assert "verl GRPO on 8 GPUs" in answer([word])


_COMMAND = Path(__file__).parents[1] / "run" / "programs" / "verl_grpo.sh"


@pytest.mark.parametrize(
    ("gpu", "gpus", "engine", "model", "prompts", "score", "backward", "optimizer"),
    [
        ("h100-80gb", 1, 1, "Qwen/Qwen2.5-0.5B-Instruct", 8, 6_815_233_024, 9_063_538_688, 9_950_581_760),
        ("h100-80gb", 2, 1, "Qwen/Qwen2.5-0.5B-Instruct", 8, 3_986_810_368, 5_383_218_176, 5_282_198_528),
        ("h100-80gb", 4, 2, "Qwen/Qwen2.5-0.5B-Instruct", 8, 2_454_163_968, 3_406_712_320, 2_811_660_288),
        ("h100-80gb", 8, 1, "Qwen/Qwen3-8B", 16, 18_265_475_584, 27_028_286_976, 23_033_347_072),
        # Emulated after workspaces were counted; the first to 0.001 GiB.
        ("a100-80gb", 1, 1, "Qwen/Qwen2.5-0.5B-Instruct", 8, 6.301 * GIB, 8.394 * GIB, 9.221 * GIB),
        ("h100-80gb", 2, 1, "Qwen/Qwen2.5-1.5B-Instruct", 8, 10_970_770_432, 14_758_254_080, 15_978_674_176),
    ],
)
def test_the_training_is_near_that_of_verls_own_command(gpu, gpus, engine, model, prompts, score, backward, optimizer):
    """Bytes that torch had allocated in verl 0.9.1, emulated (docs/evidence.md). Prompts have 261 tokens."""
    phases = {name: sum(parts.values()) for name, parts in _phases_of(gpus, engine, model, prompts, gpu).items()}
    assert max(phases["log-prob"], phases["reference"]) == pytest.approx(score, rel=0.001)
    assert phases["actor"] == pytest.approx(backward, rel=0.001)
    assert phases["actor's step"] == pytest.approx(optimizer, rel=0.001)


def _phases_of(gpus, engine, model, prompts, gpu="h100-80gb"):
    """The estimate of verl's command, in bytes by phase and component."""
    words = [f"config={_COMMAND}", f"gpu={gpu}", "data.max_prompt_length=261", "format=json"]
    words += [f"trainer.n_gpus_per_node={gpus}", f"actor_rollout_ref.rollout.tensor_model_parallel_size={engine}"]
    words += [f"actor_rollout_ref.model.path={model}", f"data.train_batch_size={prompts}"]
    words += [f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts}"]
    return json.loads(answer(words))["phases"]


_GATHERED = ("gathered", "reference")
"""What FSDP has gathered of the actor, and of a reference whose shards are on the host."""
_TERMS = [("actor weights",), ("actor gradients",), ("actor optimizer",), _GATHERED, ("optimizer temporaries",)]


@pytest.mark.parametrize(
    ("gpus", "engine", "model", "prompts", "phase", "mib"),
    [
        (1, 1, "Qwen/Qwen2.5-0.5B-Instruct", 8, "reference", (1884.59, 0, 3769.17, 778.97, 0)),
        (1, 1, "Qwen/Qwen2.5-0.5B-Instruct", 8, "actor", (1884.59, 2663.56, 3769.17, 259.66, 0)),
        (1, 1, "Qwen/Qwen2.5-0.5B-Instruct", 8, "actor's step", (1884.59, 1884.59, 3769.17, 0, 1884.59)),
        (1, 1, "Qwen/Qwen2.5-0.5B-Instruct", 8, "weight sync", (1884.59, 0, 3769.17, 4451.90, 0)),
        (2, 1, "Qwen/Qwen2.5-0.5B-Instruct", 8, "reference", (942.30, 0, 1884.60, 908.80, 0)),
        (2, 1, "Qwen/Qwen2.5-0.5B-Instruct", 8, "actor", (942.30, 1980.93, 1884.60, 259.66, 0)),
        (2, 1, "Qwen/Qwen2.5-0.5B-Instruct", 8, "actor's step", (942.30, 942.30, 1884.60, 259.66, 942.30)),
        (2, 1, "Qwen/Qwen2.5-0.5B-Instruct", 8, "weight sync", (942.30, 0, 1884.60, 4032.01, 0)),
        (4, 2, "Qwen/Qwen2.5-0.5B-Instruct", 8, "reference", (471.15, 0, 942.30, 519.32, 0)),
        (4, 2, "Qwen/Qwen2.5-0.5B-Instruct", 8, "actor", (471.15, 1250.12, 942.30, 519.32, 0)),
        (4, 2, "Qwen/Qwen2.5-0.5B-Instruct", 8, "actor's step", (471.15, 471.15, 942.30, 259.66, 471.15)),
        (4, 2, "Qwen/Qwen2.5-0.5B-Instruct", 8, "weight sync", (471.15, 0, 942.30, 3431.03, 0)),
        (8, 1, "Qwen/Qwen3-8B", 16, "reference", (3905.66, 0, 7811.32, 5638.27, 0)),
        (8, 1, "Qwen/Qwen3-8B", 16, "actor", (3905.66, 11621.19, 7811.32, 2374.01, 0)),
        (8, 1, "Qwen/Qwen3-8B", 16, "actor's step", (3905.66, 3905.66, 7811.32, 2374.01, 3905.66)),
        (8, 1, "Qwen/Qwen3-8B", 16, "weight sync", (3905.66, 0, 7811.32, 13401.70, 0)),
    ],
)
def test_each_term_of_the_trainer_is_that_of_verls_own_command(gpus, engine, model, prompts, phase, mib):
    """MiB at the peaks of these runs by category, with `breakdown=true`, without cuBLAS's workspaces."""
    parts = _phases_of(gpus, engine, model, prompts)[phase]
    found = [sum(parts.get(name, 0) for name in names) / MIB for names in _TERMS]
    assert found == pytest.approx(mib, rel=0.001)


def test_scores_of_an_adapter_are_near_those_of_verls_command():
    """Emulated as above, with `lora_rank=32` on two GPUs. Policy and reference are one module, gathered once."""
    words = [f"config={_COMMAND}", "gpu=h100-80gb", "data.max_prompt_length=261", "trainer.n_gpus_per_node=2"]
    model = "actor_rollout_ref.model"
    words += ["data.train_batch_size=16", f"{model}.path=Qwen/Qwen2.5-0.5B-Instruct", f"{model}.lora_rank=32"]
    loaded = ["actor_rollout_ref.rollout.load_format=safetensors", "actor_rollout_ref.actor.ppo_mini_batch_size=16"]
    phases = json.loads(answer([*words, *loaded, "format=json"]))["phases"]
    assert phases["log-prob"] == phases["reference"]
    assert sum(phases["reference"].values()) == pytest.approx(1_793_854_464, rel=0.0015)
