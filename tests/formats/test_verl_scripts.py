"""verl's own run scripts of 0.9.0, by engine: each is answered as its keys say, or refused or left open with a reason.

Each case has the variables of a script with their defaults, and the words that it passes, as bash passes them without
any argument and on a machine with GPUs of NVIDIA. What depends on the user's machine is spelled by its variable.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rebuilt import HERE, OPTIONS, SMALL, cases, read

from profiler.analytical.explanation.explained import Fit
from profiler.config.models.lookup import builtin_architecture, canonical_model
from profiler.config.shell.run_script import read_run_script
from profiler.config.verl.config import read_verl
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.verl import Release, Strategy, VerlJob
from profiler.estimate.command import read_command
from profiler.estimate.job.counting import CountingError, read_and_counted
from profiler.estimate.job.inputs import job_files
from profiler.estimate.main import answer
from profiler.estimate.verl import AnsweredVerl, answered_verl

CASES = cases("verl_scripts")
COUNTS = json.loads((HERE / "counts.json").read_text())
IDS = [Path(case["path"]).stem for case in CASES]
ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
PATH = f"{MODEL}.path"

_EXPERTS = {"model_type": "qwen3_moe", "vocab_size": 151_936, "head_dim": 128, "num_key_value_heads": 4}
_EXPERTS |= {"num_experts": 128, "num_experts_per_tok": 8, "max_position_embeddings": 40_960}
_TOWERS = {"vision_config": {}}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "mistral-nemo": {
        "model_type": "mistral",
        "hidden_size": 5120,
        "intermediate_size": 14_336,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 131_072,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
        "sliding_window": None,
    },
    "qwen3-30b-a3b": {
        **_EXPERTS,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "moe_intermediate_size": 768,
        "tie_word_embeddings": False,
    },
    "qwen3-235b-a22b": {
        **_EXPERTS,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "moe_intermediate_size": 1536,
        "tie_word_embeddings": False,
    },
    # DeepSeek's own weights have 8 bits.
    "deepseek-v3": {**BUILTIN_MODELS["deepseek-v3"].config, "quantization_config": {"quant_method": "fp8"}},
    # Of these, only the family says why they are refused.
    **{
        name: {**SMALL, "model_type": model_type, **more}
        for name, model_type, more in (
            ("deepseek-v4", "deepseek_v4", {}),
            ("glm-4.1v", "glm4v", _TOWERS),
            ("gpt-oss", "gpt_oss", {"num_local_experts": 32}),
            ("hy3", "hy_v3", {}),
            ("minicpm-o", "minicpmo", _TOWERS),
            ("moonlight", "deepseek_v3", {"n_routed_experts": 64}),
            ("nemotron-3", "nemotron_h", {}),
            ("qwen3-next", "qwen3_next", {"num_experts": 512}),
            ("qwen3.5", "qwen3_5", _TOWERS),
            ("qwen3.5-moe", "qwen3_5_moe", _TOWERS),
            ("qwen3-vl-moe", "qwen3_vl_moe", _TOWERS),
            ("seed-oss", "seed_oss", {}),
        )
    },
}
"""What the published `config.json` of the models says."""


def architecture_of(case: Mapping[str, Any], model: str) -> Architecture:
    known = builtin_architecture(canonical_model(model))
    if known is not None:
        return known

    def count(_: Mapping[str, object]) -> Any:
        raise CountingError("it is not counted here")

    return read_and_counted(CONFIGS[case["model"]], model=model, count=count)


def script_of(case: Mapping[str, Any]) -> str:
    """A script that passes the same words, with its variables and arrays."""
    lines = ["#!/usr/bin/env bash", "set -x"]
    for name, (variable, default) in case["variables"].items():
        lines.append(f"{name}=${{{variable}:-{default}}}" if variable else f"{name}={default}")
    sections: dict[str, list[str]] = {}
    for word in case["words"]:
        section = word.lstrip("+").partition("=")[0].partition("@")[0].split(".")
        sections.setdefault("_".join(section[:2][:-1] or section).upper().strip("-").replace("-", "_"), []).append(
            f'"{word}"' if "$" in word else shlex.quote(word)
        )
    for name, words in sections.items():
        lines += [f"{name}=(", *(f"    {word}" for word in words), ")"]
    passed = " ".join(f'"${{{name}[@]}}"' for name in sections)
    call = f"python3 -m verl.trainer.main_ppo {passed}" if sections else "echo moved"
    return "\n".join([*lines, f'{call} "$@"', ""])


def outcome(case: Mapping[str, Any], folder: Path, *words: str) -> AnsweredVerl | tuple[str, ...]:
    """The answer, or the sentences that refuse the script."""
    path = folder / Path(case["path"]).name
    path.write_text(script_of(case))
    command = read_command([f"config={path}", "gpu=h100", "verl=0.9.1", *words])
    try:
        files = job_files(command)
        assert files.verl is not None
        return answered_verl(command, files.verl, lambda model: architecture_of(case, model))
    except UsageError as error:
        return tuple(fault.sentence() for fault in error.faults)


def after_its_model(case: Mapping[str, Any], folder: Path) -> tuple[AnsweredVerl | tuple[str, ...], bool]:
    """The outcome, and whether the model had to be given, because its path is of the user's machine."""
    found = outcome(case, folder)
    if not isinstance(found, AnsweredVerl) and any(said.startswith(f"{PATH}=") for said in found):
        return outcome(case, folder, f"{PATH}={case.get('model', 'qwen3-8b')}"), True
    return found, False


def reasons(found: AnsweredVerl | tuple[str, ...]) -> tuple[str, ...]:
    return found.fit.reasons if isinstance(found, AnsweredVerl) else found


def verdict(found: AnsweredVerl | tuple[str, ...], *, had_path: bool) -> str:
    if not isinstance(found, AnsweredVerl):
        return "refused"
    if found.fit.fit is Fit.UNDECIDED:
        return "not decided"
    return "answered with model=" if had_path else "answered"


def keys_of(case: Mapping[str, Any]) -> dict[str, str]:
    """The keys with the values that bash passes."""
    literal = {word.lstrip("+").partition("=")[0]: word.partition("=")[2] for word in case["words"] if "=" in word}
    return {**literal, **case["values"]}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_each_script_is_answered_or_refused_with_its_reason(case, tmp_path):
    found, had_path = after_its_model(case, tmp_path)
    assert verdict(found, had_path=had_path) == case["verdict"]
    said = reasons(found)
    assert len(said) == len(case["said"])
    assert all(expected in sentence for expected, sentence in zip(case["said"], said, strict=True)), said


def test_engines_and_scripts_are_those_of_the_tag():
    """41 scripts of `examples/grpo_trainer` and 5 of `examples/tuning/lora`."""
    folders = Counter(case["path"].rpartition("/")[0] for case in CASES)
    assert folders == {"examples/grpo_trainer": 41, "examples/tuning/lora": 5}
    assert Counter(case["engine"] for case in CASES) == {"fsdp": 21, "megatron": 20, "veomni": 5}


def test_counts_by_engine_are_kept():
    counts: dict[str, Counter[str]] = {}
    for case in CASES:
        counts.setdefault(case["engine"], Counter())[case["verdict"]] += 1
    found = {engine: dict(sorted(counts[engine].items())) for engine in sorted(counts)}
    if os.environ.get("FILES_KEPT") == "new":
        (HERE / "counts.json").write_text(json.dumps({**COUNTS, "verl_scripts": found}, indent=1) + "\n")
    else:
        assert found == COUNTS["verl_scripts"]


@pytest.mark.parametrize("case", [case for case in CASES if case["words"]], ids=lambda case: Path(case["path"]).stem)
def test_each_word_is_read_as_bash_passes_it(case):
    script = read_run_script(script_of(case))
    read = {**script.overrides, **script.groups}
    expected = keys_of(case)
    named = {key: each.text for key, each in read.items() if each.is_known}
    unknown = {key for key, value in expected.items() if "$" in value}
    assert named == {key: value for key, value in expected.items() if key not in unknown and not key.startswith("--")}
    assert read.keys() - named.keys() == unknown


BASH = shutil.which("bash")


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_rebuilt_scripts_pass_their_words_in_bash():
    for case in CASES:
        text = "python3() { printf '%s\\0' \"$@\"; }\n" + script_of(case).replace("set -x\n", "", 1)
        done = subprocess.run([str(BASH), "--norc", "-c", text], env={}, capture_output=True, timeout=60, check=False)
        words = done.stdout.decode().split("\0")
        passed = {word.lstrip("+").partition("=")[0]: word.partition("=")[2] for word in words if "=" in word}
        expected = keys_of(case)
        assert {key for key, value in expected.items() if "$" not in value and passed.get(key) != value} == set() or (
            "LORA_ADAPTER_PATH" in text
        )


# Each key of an answered script, compared with the job that was read

_FREE = re.compile(
    r"""
    algorithm\.(adv_estimator|kl_ctrl\.\w+)
    |data\.(filter_overlong_prompts|truncation|shuffle|prompt_key|return_raw_chat|val_batch_size|trust_remote_code)
    |actor_rollout_ref\.model\.(lora_alpha|trust_remote_code)
    |actor_rollout_ref\.actor\.(optim\.lr|kl_loss_coef|kl_loss_type|loss_agg_mode|clip_ratio\w*)
    # within the pool of the engine
    |actor_rollout_ref\.rollout\.(name|enable_chunked_prefill|enforce_eager|mode)
    # of a reference that waits on the host
    |actor_rollout_ref\.ref\.(fsdp_config\.(param_offload|model_dtype)|strategy)
    # of passes with dynamic batches
    |actor_rollout_ref\.actor\.ppo_micro_batch_size_per_gpu
    |actor_rollout_ref\.(rollout|ref)\.log_prob_micro_batch_size_per_gpu
    |reward\.(num_workers|reward_model\.(model_path|rollout\.(name|tensor_model_parallel_size|\w+_length)))
    |trainer\.(balance_batch|critic_warmup|save_freq|test_freq|total_epochs|val_before_train|log_val_generations)
    """,
    re.VERBOSE,
)
"""Keys that change no memory of a GPU, by what they are for."""


class Keys:
    """The keys of a script, and which of them were asked for."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values, self.asked = values, set()

    def text(self, key: str, default: str = "") -> str:
        self.asked.add(key)
        return self.values.get(key, default)

    def number(self, key: str, default: int = 0) -> int:
        return int(self.text(key, str(default)))

    def flag(self, key: str, *, default: bool) -> bool:
        return self.text(key, str(default)) in ("True", "true")


def expected_job(keys: Keys) -> dict[str, object]:
    """What a job has to be by the keys of its script and verl's defaults, without any of the program's reading."""
    row = keys.number("data.max_prompt_length", 512) + keys.number("data.max_response_length", 512)
    gpus = keys.number("trainer.nnodes", 1) * keys.number("trainer.n_gpus_per_node", 8)
    has_reference = keys.flag(f"{ACTOR}.use_kl_loss", default=False)
    has_reference |= keys.flag("algorithm.use_kl_in_reward", default=False)
    rank = keys.number(f"{MODEL}.lora_rank")
    is_dynamic = keys.flag(f"{ACTOR}.use_dynamic_bsz", default=False)
    budget = keys.number(f"{ACTOR}.ppo_max_token_len_per_gpu", 16_384)

    def tokens(worker: str, name: str) -> int:
        dynamic = keys.flag(f"{worker}.{name}_use_dynamic_bsz", default=is_dynamic)
        key = "log_prob_max_token_len_per_gpu"
        own = keys.number(f"{worker}.{key}", budget)
        return own if dynamic else row * keys.number(f"{worker}.{name}_micro_batch_size_per_gpu")

    scored = [tokens(ROLLOUT, "log_prob"), tokens(REF, "log_prob")][: 1 + (has_reference and not rank)]
    reward, removes = "reward.reward_model", keys.flag(f"{MODEL}.use_remove_padding", default=True)
    dtype = keys.text(f"{ACTOR}.fsdp_config.model_dtype", "fp32")
    is_rewarded = keys.flag(f"{reward}.enable", default=False)
    utilization = float(keys.text(f"{reward}.rollout.gpu_memory_utilization", "0.5"))
    is_merged = keys.flag(f"{MODEL}.lora.merge", default=False)
    bucket = keys.number(f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", 2048)
    keys.text(f"{ROLLOUT}.load_format")
    keys.text(f"{ROLLOUT}.layered_summon")
    return {
        "model": canonical_model(keys.text(PATH)),
        "n_gpus": gpus,
        "strategy": Strategy(keys.text(f"{ACTOR}.strategy", "fsdp")),
        "has_reference": has_reference,
        "log_prob_max_tokens": max(scored),
        "fsdp_size": gpus,
        "lora_rank": rank,
        "use_fused_kernels": keys.flag(f"{MODEL}.use_fused_kernels", default=False),
        "max_prompt_length": keys.number("data.max_prompt_length", 512),
        "max_response_length": keys.number("data.max_response_length", 512),
        "train_batch_size": keys.number("data.train_batch_size", 1024),
        "rollout_n": keys.number(f"{ROLLOUT}.n", 1),
        "rollout_tensor_parallel_size": keys.number(f"{ROLLOUT}.tensor_model_parallel_size", 2),
        "gpu_memory_utilization": float(keys.text(f"{ROLLOUT}.gpu_memory_utilization", "0.5")),
        "free_cache_engine": keys.flag(f"{ROLLOUT}.free_cache_engine", default=True),
        "critic": None,
        "actor.max_tokens": budget if is_dynamic else row * keys.number(f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
        "actor.param_offload": keys.flag(f"{ACTOR}.fsdp_config.param_offload", default=False),
        "actor.optimizer_offload": keys.flag(f"{ACTOR}.fsdp_config.optimizer_offload", default=False),
        "actor.gradient_checkpointing": keys.flag(f"{MODEL}.enable_gradient_checkpointing", default=True),
        "actor.weight_bytes": {"fp32": 4, "bf16": 2, "bfloat16": 2}[dtype],
        "actor.accumulates": keys.number(f"{ACTOR}.ppo_mini_batch_size", 256) * keys.number(f"{ROLLOUT}.n", 1) > gpus,
        "entropy.in_update": float(keys.text(f"{ACTOR}.entropy_coeff", "0")) != 0,
        "entropy.is_compiled": removes,
        "workers.repacks_logits": not removes,
        "workers.sends_adapters": rank > 0 and not is_merged,
        "workers.update_bucket_bytes": bucket * 2**20,
        "workers.reward": utilization if is_rewarded else None,
    }


def field(job: VerlJob, name: str) -> object:
    found: Any = job
    for part in name.split("."):
        found = getattr(found, part)
    return found.gpu_memory_utilization if name == "workers.reward" and found is not None else found


ANSWERED = [case for case in CASES if case["verdict"].startswith("answered")]


@pytest.mark.parametrize("case", ANSWERED, ids=lambda case: Path(case["path"]).stem)
def test_each_key_of_an_answered_script_is_in_the_job(case, tmp_path):
    found = outcome(case, tmp_path)
    assert isinstance(found, AnsweredVerl)
    assert found.ignored == ""
    keys = Keys(keys_of(case))
    expected = expected_job(keys)
    assert {name: field(found.found.job, name) for name in expected} == expected
    assert {key for key in keys.values if key not in keys.asked and not _FREE.fullmatch(key)} == set()


@pytest.mark.parametrize("case", ANSWERED, ids=lambda case: Path(case["path"]).stem)
def test_a_free_key_of_an_answered_script_changes_nothing(case):
    keys = {key: value for key, value in keys_of(case).items() if value != "null"}
    free = {key for key in keys if _FREE.fullmatch(key)}
    passes = {key for key in free if "micro_batch_size" in key and keys.get(f"{ACTOR}.use_dynamic_bsz") != "True"}
    typed = {key: {"True": True, "False": False}.get(value, value) for key, value in keys.items()}
    typed = {key: int(value) if str(value).isdecimal() else value for key, value in typed.items()}
    typed = {key: float(value) if re.fullmatch(r"0\.\d+", str(value)) else value for key, value in typed.items()}
    kept = {key: value for key, value in typed.items() if key not in free - passes or key == "algorithm.adv_estimator"}
    whole, without = (read_verl(values, release=Release.V0_9_1).job for values in (typed, kept))
    assert whole == without


def test_a_key_of_the_first_releases_has_their_defaults(tmp_path):
    """Of BoyangGu1/Clinical-R1-3B and CrazyMint/LEAD: an entropy by default, and KL in rewards without a loss of it."""
    old = OPTIONS.replace("algorithm.adv", "actor_rollout_ref.actor.fsdp_config.grad_offload=False algorithm.adv")
    text = " ".join(answer(list(read(tmp_path, "run.sh", old))).split())
    assert "actor_rollout_ref.actor.entropy_coeff=0.001 (verl's default before 0.3" in text
    assert "algorithm.use_kl_in_reward=true (verl's default before 0.3" in text
    assert "reference model" in text
    for other in (old.replace("actor_rollout_ref.actor.fsdp", "+actor_rollout_ref.actor.fsdp"), OPTIONS):
        assert "before 0.3" not in answer(list(read(tmp_path, "run.sh", other)))
    stated = old.replace("algorithm.adv", "actor_rollout_ref.actor.use_kl_loss=True algorithm.adv")
    assert "use_kl_in_reward" not in answer(list(read(tmp_path, "run.sh", stated)))


def test_a_critic_in_the_folder_of_its_actor_is_its_size(tmp_path):
    """Of amazon-science's Self-Aligned-Reward: a folder of a project, which looks like a hub id."""
    ppo = OPTIONS.replace("=grpo", "=gae critic.ppo_micro_batch_size_per_gpu=8 critic.model.path=llms/Qwen2.5-0.5B")
    own = ppo.replace("Qwen/Qwen2.5-0.5B-Instruct", "llms/Qwen2.5-0.5B")
    text = " ".join(answer(list(read(tmp_path, "run.sh", own))).split())
    assert "by its name, because there is no llms/Qwen2.5-0.5B here" in text
    assert "size of the critic" not in text
    other = " ".join(
        answer(list(read(tmp_path, "run.sh", ppo.replace("llms/Qwen2.5-0.5B", "Qwen/Qwen2.5-7B")))).split()
    )
    assert "the size of the critic" in other


def test_a_reference_of_the_actors_path_is_the_actor(tmp_path):
    """Of QiyaoWei/reasoning-under-pressure."""
    same = OPTIONS.replace(
        "=grpo", f"=grpo actor_rollout_ref.actor.use_kl_loss=True {REF}.model.path=./llms/Qwen2.5-0.5B"
    )
    assert "Not decided" not in answer(list(read(tmp_path, "run.sh", same)))
    other = same.replace("llms/Qwen2.5-0.5B", "llms/Qwen2.5-7B")
    assert "what actor_rollout_ref.ref.model.path=qwen2.5-7b changes" in answer(list(read(tmp_path, "run.sh", other)))


COUNTED = [
    "$(echo $CUDA_VISIBLE_DEVICES | awk -F',' '{print NF}')",
    "$(printf '%s\\n' \"${CUDA_VISIBLE_DEVICES}\" | tr ',' '\\n' | wc -l)",
    "$(( ((1 + MANY) > 9) ? 8 : (MANY + 1) ))",
]


@pytest.mark.parametrize("count", COUNTED)
def test_how_many_gpus_a_list_has_is_counted(count, tmp_path):
    """Of amazon-science's Self-Aligned-Reward and ShenzhiYang2000/OPRD: verl's default was taken for the number."""
    text = f"MANY=3\nexport CUDA_VISIBLE_DEVICES=0,1,2,3\nN={count}\n{OPTIONS.replace('node=2', 'node=$N')}"
    assert "verl GRPO on 4 GPUs" in answer(list(read(tmp_path, "run.sh", text)))
