"""verl as its users run it: overrides on the command line, run scripts, YAML with overrides."""

import json
import textwrap

import pytest

from profiler.config.verl.config import read_verl, read_verl_config
from profiler.config.verl.keys import FSDP_DEFAULTS, MEGATRON_DEFAULTS, MEMORY_KEYS, VERL_VERSION
from profiler.domain.errors import EXIT_OK, EXIT_USAGE, UsageError
from profiler.domain.verl import EntropySettings, Strategy
from profiler.estimate.main import answer, main

MODEL = {"actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B"}
ACTOR = "actor_rollout_ref.actor"

HEAD = """
    set -x
    MODEL_PATH=${MODEL_PATH:-"Qwen/Qwen2.5-7B-Instruct"}
    NGPUS=8
"""
SCRIPTS = {
    "grpo.sh": HEAD
    + """
    python3 -m verl.trainer.main_ppo \\
        algorithm.adv_estimator=grpo \\
        data.train_files=$HOME/data/train.parquet \\
        data.max_prompt_length=512 data.max_response_length=1024 \\
        actor_rollout_ref.model.path=$MODEL_PATH \\
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \\
        actor_rollout_ref.actor.use_kl_loss=True \\
        actor_rollout_ref.rollout.name=vllm \\
        trainer.logger='["console","wandb"]' trainer.n_gpus_per_node=$NGPUS $@
    """,
    "ppo_dynamic.sh": HEAD
    + """
    files="['$HOME/a.parquet', '$HOME/b.parquet']"
    python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae data.train_files="$files" \\
        actor_rollout_ref.model.path=$MODEL_PATH critic.model.path=$MODEL_PATH \\
        actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24000 \\
        critic.ppo_max_token_len_per_gpu=98304
    """,
    "megatron.sh": HEAD
    + """
    python3 -m verl.trainer.main_ppo --config-path=config --config-name='ppo_megatron_trainer.yaml' \\
        algorithm.adv_estimator=grpo actor_rollout_ref.model.path=$MODEL_PATH \\
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
        actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\
        actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \\
        actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2
    """,
    "lora.sh": HEAD
    + """
    PYTHONPATH=/opt/verl python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
        actor_rollout_ref.model.path=$MODEL_PATH actor_rollout_ref.model.lora_rank=32 \\
        actor_rollout_ref.model.lora_alpha=32 actor_rollout_ref.rollout.load_format=safetensors \\
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=10 trainer.n_gpus_per_node=1 \\
        actor_rollout_ref.rollout.tensor_model_parallel_size=1
    """,
    "dapo.sh": HEAD
    + """
    prompt=$((1024 * 2)); response=$((1024 * 8)); sp=4
    budget=$(((prompt + response) * 2))
    python3 -m recipe.dapo.main_dapo algorithm.adv_estimator=grpo \\
        data.max_prompt_length=${prompt} data.max_response_length=${response} \\
        actor_rollout_ref.model.path=${ROOT}/models/Qwen2.5-Math-7B \\
        +actor_rollout_ref.model.override_config.max_position_embeddings=32768 \\
        actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${budget} \\
        actor_rollout_ref.actor.ulysses_sequence_parallel_size=${sp} \\
        actor_rollout_ref.actor.fsdp_config.fsdp_size=32 trainer.nnodes=${NNODES:-8}
    """,
    "arrays.sh": HEAD
    + """
    ACTOR=(
        actor_rollout_ref.model.path=$MODEL_PATH   # the policy
        actor_rollout_ref.actor.ppo_micro_batch_size=256
    )
    python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo "${ACTOR[@]}" reward_model.enable=True \\
        reward_model.model.path=org/reward-8b
    """,
}


@pytest.fixture
def script(tmp_path):
    """Write a run script and return the word that names it."""

    def write(name):
        (tmp_path / name).write_text(textwrap.dedent(SCRIPTS[name]))
        return f"config={tmp_path / name}"

    return write


def _job(script, name, *words):
    return json.loads(answer([script(name), *words, "format=json"]))


@pytest.mark.parametrize("name", SCRIPTS)
def test_run_scripts_of_different_kinds_are_answered(script, name):
    found = _job(script, name)
    assert found["model"] == "qwen2.5-7b" and found["peak_bytes"] > 0


def test_a_run_script_is_the_same_as_its_overrides(script):
    words = [
        "algorithm.adv_estimator=grpo",
        "data.max_prompt_length=512",
        "data.max_response_length=1024",
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=8",
        f"{ACTOR}.use_kl_loss=true",
    ]
    padding = "actor_rollout_ref.model.use_remove_padding=true"
    found = _job(script, "grpo.sh", padding)
    assert found == json.loads(answer([*words, padding, "format=json"]))
    assert found == json.loads(answer(["config=verl", *words, padding, "format=json"]))
    assert f"{padding} (verl's default from 0.7 on, false before)" in " ".join(_job(script, "grpo.sh")["notes"])


def test_overrides_win_over_the_script(script):
    found = _job(script, "grpo.sh", "trainer.n_gpus_per_node=4")
    assert (found["n_gpus"], _job(script, "grpo.sh")["n_gpus"]) == (4, 8)


def test_the_name_of_a_folder_names_the_model(script):
    assert "model=qwen2.5-7b (by its name in dapo.sh)" in _job(script, "dapo.sh")["notes"][0]
    found = _job(script, "dapo.sh", "actor_rollout_ref.model.path=qwen2.5-3b")
    assert found["model"] == "qwen2.5-3b" and "by its name" not in " ".join(found["notes"])


def test_what_a_script_does_not_state_is_assumed_or_refused(tmp_path, capsys):
    path = tmp_path / "run.sh"
    path.write_text("python -m verl.trainer.main_ppo actor_rollout_ref.model.path=$LLM trainer.nnodes=$NODES\n")
    assert main([f"config={path}"]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not stated in run.sh; give actor_rollout_ref.model.path= as well" in line
    assert main([f"config={path}", "actor_rollout_ref.model.path=qwen2.5-7b"]) == EXIT_OK
    assert "verl's default of trainer.nnodes (run.sh does not state it)" in " ".join(capsys.readouterr().out.split())


def test_a_file_of_yaml_takes_overrides(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("actor_rollout_ref: {model: {path: Qwen/Qwen2.5-7B}, actor: {strategy: fsdp}}\n")
    found = json.loads(answer([f"config={path}", f"++{ACTOR}.strategy=fsdp2", "gpu=a100-80gb", "format=json"]))
    assert (found["model"], found["gpu"]) == ("qwen2.5-7b", "a100-80gb")


def test_a_reward_model_on_the_same_gpus_is_named(script):
    assert "Not counted: the reward model org/reward-8b." in _job(script, "arrays.sh")["notes"]
    found = _job(script, "arrays.sh", "reward_model.enable_resource_pool=true")
    assert not any("reward model" in line for line in found["notes"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{ACTOR}.megatron.context_parallel_size", 2),
        (f"{ACTOR}.megatron.expert_model_parallel_size", 4),
        (f"{ACTOR}.optim.optimizer_impl", "bitsandbytes.optim"),
        ("actor_rollout_ref.model.use_liger", True),
        ("actor_rollout_ref.model.lora_adapter_path", "adapter"),
        ("actor_rollout_ref.rollout.data_parallel_size", 2),
        ("actor_rollout_ref.model.override_config.num_hidden_layers", 4),
        ("critic.model.lora_rank", 8),
        ("actor_rollout_ref.ref.megatron.tensor_model_parallel_size", 8),
    ],
)
def test_what_changes_memory_without_a_formula_is_named(key, value):
    texts = [note.text for note in read_verl({**MODEL, key: value}).notes if not note.is_counted]
    assert len(texts) == 1 and texts[0].startswith(f"what {key}=")
    if key in FSDP_DEFAULTS:
        assert not [note for note in read_verl({**MODEL, key: FSDP_DEFAULTS[key]}).notes if not note.is_counted]


def _settings(**keys):
    return read_verl_config({**MODEL, **{f"{ACTOR}.{key}": value for key, value in keys.items()}}).entropy


def test_the_entropy_is_compiled_where_padding_is_removed():
    assert _settings() == EntropySettings()
    assert _settings(entropy_coeff=0.001) == EntropySettings(in_update=True, in_loss=True)
    assert _settings(calculate_entropy=True, entropy_checkpointing=True) == EntropySettings(
        in_update=True, checkpointing=True
    )
    assert not _settings(use_torch_compile=False).is_compiled
    padded = read_verl_config({**MODEL, "actor_rollout_ref.model.use_remove_padding": False}).entropy
    assert padded == EntropySettings(is_compiled=False, only_responses=True)


def _not_counted(**keys):
    notes = read_verl({**MODEL, **{f"{ACTOR}.{key}": value for key, value in keys.items()}}).notes
    return [note.text for note in notes if not note.is_counted]


def test_an_entropy_without_a_formula_is_named():
    assert not _not_counted(entropy_coeff=0.001, entropy_from_logits_with_chunking=True)
    eager = {"use_torch_compile": False, "entropy_from_logits_with_chunking": True}
    assert not _not_counted(**eager)
    assert len(_not_counted(**eager, entropy_coeff=0.001)) == 1
    assert len(_not_counted(strategy="megatron", entropy_coeff=0.001)) == 1 + len(_not_counted(strategy="megatron"))


def test_ulysses_shares_a_static_batch_and_not_a_budget():
    rows = {**MODEL, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2, f"{ACTOR}.ulysses_sequence_parallel_size": 4}
    # 2 rows of 512 + 512 tokens on 4 GPUs
    assert read_verl_config(rows).actor.max_tokens == 512
    budget = {**rows, f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 5000}
    assert read_verl_config(budget).actor.max_tokens == 5000
    with pytest.raises(UsageError, match="must divide the 8 GPUs"):
        read_verl_config({**rows, f"{ACTOR}.ulysses_sequence_parallel_size": 3})


def test_the_older_micro_batch_is_that_of_all_gpus():
    values = {**MODEL, f"{ACTOR}.ppo_micro_batch_size": 32, "actor_rollout_ref.rollout.log_prob_micro_batch_size": 64}
    job = read_verl_config(values)
    # of 8 GPUs: 4 and 8 rows of 1,024 tokens
    assert (job.actor.max_tokens, job.log_prob_max_tokens) == (4096, 8192)


def test_keys_that_verl_does_not_have_are_listed_or_refused(capsys):
    words = ["actor_rollout_ref.model.path=qwen2.5-7b", "data.my_own=1", "reward_model.reward_kwargs.anything=2"]
    assert main(words) == EXIT_OK
    assert capsys.readouterr().err == f"Ignored, because verl {VERL_VERSION} has no such keys: data.my_own.\n"
    assert main([*words, "strict=true"]) == EXIT_USAGE
    assert main([*words[:1], "data.max_promt_length=1"]) == EXIT_USAGE
    assert "Did you mean 'data.max_prompt_length'?" in capsys.readouterr().err


def test_every_default_of_verl_is_known_and_changes_nothing():
    for defaults, strategy in ((FSDP_DEFAULTS, Strategy.FSDP), (MEGATRON_DEFAULTS, Strategy.MEGATRON)):
        reading = read_verl({**defaults, **MODEL})
        assert reading.unknown == ()
        plain = read_verl(MODEL, megatron=strategy is Strategy.MEGATRON)
        named, expected = ([note.text for note in each.notes if not note.is_counted] for each in (reading, plain))
        assert named == expected and bool(named) is (strategy is Strategy.MEGATRON)
        assert reading.job.strategy is strategy
        assert reading.job == plain.job


def test_the_keys_that_decide_memory_are_verl_s():
    assert {key for key in MEMORY_KEYS if key not in FSDP_DEFAULTS and key not in MEGATRON_DEFAULTS} <= {
        f"{ACTOR}.use_fused_kernels"
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["config=verl"], "actor_rollout_ref.model.path=null: must be a built-in name"),
        (["config=verl", "actor_rollout_ref.model.path=qwen2.5-7b", "tuning=lora"], "is a key of a trial"),
        (["config=verl", "actor_rollout_ref.model.path=qwen2.5-7b", "gpu=any"], "one card at a time"),
        (["config=verl", "actor_rollout_ref.model.path=qwen2.5-7b", "trainer.device=npu"], "is no GPU of NVIDIA"),
        (["actor_rollout_ref.model.path=["], "cannot be read as a value"),
    ],
)
def test_wrong_words_are_one_sentence(capsys, words, said):
    assert main(words) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
