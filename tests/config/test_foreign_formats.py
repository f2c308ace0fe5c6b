"""Files of other programs are refused by name, with `model=` or without it.

Each case has the shape of files that users publish; none is a copy of one.
"""

import json
import textwrap

import pytest

from profiler.config.files.foreign_formats import FORMATS
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.estimate.main import main

MODEL = "model=qwen2.5-0.5b"

FILES = [
    ("ms-swift on Megatron", "f.yaml", "model: a/b\ntuner_type: lora\nmicro_batch_size: 2\nmax_length: 99"),
    ("OpenRLHF", "f.yaml", "pretrain: a/b\nmicro_train_batch_size: 1\nzero_stage: 3\nbf16: true\nmax_epochs: 1"),
    ("NeMo-RL", "f.yaml", "grpo: {num_prompts_per_step: 32}\npolicy: {model_name: a/b, precision: bfloat16}"),
    ("NeMo-RL", "f.yaml", "defaults: ../base.yaml\npolicy: {model_name: a/b}\nlogger: {wandb_enabled: true}"),
    ("NeMo-RL", "f.yaml", "sft: {max_num_epochs: 1}\npolicy: {model_name: a/b}\ncluster: {gpus_per_node: 8}"),
    ("prime-rl", "f.toml", 'max_steps = 9\n[model]\nname = "a/b"\n[orchestrator]\nbatch_size = 64\n[trainer]\n'),
    ("prime-rl", "f.toml", 'max_steps = 9\n[model]\nname = "a/b"\n[optim]\nlr = 1e-5\n[data]\nseq_len = 512\n'),
    ("prime-rl", "f.toml", 'batch_size = 8\nrollouts_per_example = 4\n[[env]]\nid = "x"\n[sampling]\nmax_tokens = 9\n'),
    ("torchtune", "f.yaml", "model: {_component_: torchtune.models.qwen2_5.lora_qwen2_5_0_5b}\nbatch_size: 2\nseed: 1"),
    ("Unsloth", "f.yaml", "model_name: a/b\nmax_seq_length: 2048\nload_in_4bit: true\nlora_r: 16\nmax_steps: 60"),
    ("Unsloth", "f.yaml", "model_name_or_path: a/b\nfast_inference: true\nnum_generations: 8\nbf16: true"),
    ("Unsloth", "f.yaml", "model_name_or_path: a/b\nembedding_learning_rate: 5e-6\nnum_generations: 8\nbf16: true"),
    ("trl's AsyncGRPOTrainer", "f.yaml", "model_name_or_path: a/b\nnum_generations: 8\nmax_staleness: 4"),
    ("EasyR1", "f.yaml", "worker: {actor: {model: {model_path: a/b}}, rollout: {n: 5}}\ntrainer: {n_gpus_per_node: 8}"),
    ("SkyRL", "f.yaml", "trainer: {policy: {model: {path: a/b}}}\ngenerator: {backend: vllm}"),
    ("SkyRL", "f.yaml", "generator: {n_samples_per_prompt: 5, backend: vllm}\nenvironment: {env_class: x}"),
    ("AReaL", "f.yaml", "allocation_mode: sglang.d4+fsdp.d4\ngconfig: {n_samples: 4}\nactor: {path: a/b}"),
    ("ROLL", "f.yaml", "rollout_batch_size: 8\nactor_train: {model_args: {}}\nactor_infer: {strategy_args: {}}"),
    ("verl's SFT trainer", "f.yaml", "model: {partial_pretrain: a/b}\ndata: {train_batch_size: 64}\noptim: {lr: 1e-5}"),
]

COMMANDS = [
    ("LLaMA-Factory (llamafactory-cli)", "llamafactory-cli webui"),
    ("LLaMA-Factory (--finetuning_type)", "python train.py \\\n  --finetuning_type lora \\\n  --stage sft"),
    ("axolotl (axolotl inference)", "axolotl inference config.yml"),
    ("axolotl (-m axolotl.cli.evaluate)", "accelerate launch -m axolotl.cli.evaluate config.yml"),
    ("ms-swift (--rlhf_type)", "torchrun --nproc_per_node 2 rlhf.py \\\n  --rlhf_type grpo --model a/b"),
    ("ms-swift on Megatron (megatron sft)", "megatron sft --load a/b"),
    ("open_instruct (-m open_instruct.finetune)", "accelerate launch -m open_instruct.finetune --bf16"),
    ("open_instruct (open_instruct/dpo_tune.py)", "python open_instruct/dpo_tune.py --max_seq_length 512"),
    ("align_anything (--module=align_anything.trainers.sft)", "deepspeed --module=align_anything.trainers.sft --bf16"),
    ("safe_rlhf (--module safe_rlhf.finetune)", "deepspeed --module safe_rlhf.finetune --max_length 512"),
    ("fastchat (fastchat/train/train_mem.py)", "torchrun /opt/FastChat/fastchat/train/train_mem.py --bf16 True"),
    ("llava (llava/train/train_mem.py)", "deepspeed llava/train/train_mem.py --bf16 True"),
    ("OpenRLHF (openrlhf.cli.serve_rm)", "python -m openrlhf.cli.serve_rm --reward_pretrain a/b --port 5000"),
    (
        "openrlhf.cli=train_ppo_ray: is a trainer of",
        "ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b",
    ),
    ("NeMo-RL (run_grpo_math.py)", "uv run examples/run_grpo_math.py policy.model_name=a/b"),
    ("prime-rl (uv run rl @)", "uv run rl @ configs/rl.toml"),
    ("torchtune (tune run)", "tune run lora_finetune_single_device --config a.yaml"),
    ("Unsloth (unsloth-cli.py)", "python unsloth-cli.py --model_name a/b"),
    ("EasyR1 (verl.trainer.main)", "python3 -m verl.trainer.main config=a.yaml worker.actor.model.model_path=a/b"),
    ("slime (--hf-checkpoint)", "python3 train.py --hf-checkpoint a/b --rollout-batch-size 8"),
    ("slime (slime/train_async.py)", "python3 slime/train_async.py --rollout-batch-size 8"),
    ("SkyRL (skyrl_train.entrypoints.main_base)", "uv run -m skyrl_train.entrypoints.main_base generator.backend=vllm"),
    ("SkyRL (trainer.policy.model.path=)", "uv run main.py trainer.policy.model.path=a/b"),
    ("AReaL (areal.launcher.local)", "python3 -m areal.launcher.local train.py --config a.yaml"),
    ("ROLL (start_rlvr_pipeline.py)", "python examples/start_rlvr_pipeline.py --config_name rlvr"),
    ("trl bco: has no recipe here", "trl bco --model_name_or_path a/b --dataset_name c"),
    ("trl has no such command", "trl train --model_name_or_path a/b"),
    ("config=r.yaml: is the recipe of trl sft", "trl sft --config r.yaml --num_processes 2"),
    (
        "neither its name nor its arguments",
        "accelerate launch --num_processes 2 src/train.py --model_name_or_path a/b",
    ),
    ("config=r.yaml: is the recipe of torchrun src/grpo.py", "torchrun src/grpo.py --config r.yaml"),
    ("RL2.trainer.ppo: is a trainer without a recipe here", "torchrun -m RL2.trainer.ppo actor.model_name=a/b"),
    ("starts no training that is known", "# python train.py\nnvidia-smi\necho done"),
]


def _refused(folder, capsys, name, text, *words):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    assert main([f"config={path}", *words]) == EXIT_USAGE
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


@pytest.mark.parametrize("words", [(), (MODEL,)], ids=["plain", "with model="])
@pytest.mark.parametrize(("program", "name", "text"), FILES)
def test_a_file_of_another_program_is_refused_by_its_signature(tmp_path, capsys, program, name, text, words):
    line = _refused(tmp_path, capsys, name, text, *words)
    assert f"is a file of {program}, by its key" in line


@pytest.mark.parametrize("suffix", [".sh", ".slurm"])
@pytest.mark.parametrize(("said", "commands"), COMMANDS)
def test_a_shell_script_is_refused_by_what_it_runs(tmp_path, capsys, said, commands, suffix):
    line = _refused(tmp_path, capsys, f"run{suffix}", f"#!/bin/bash\nset -e\n{commands}\n", MODEL)
    assert said in line
    assert "main_ppo" not in line or "starts no training" in line


@pytest.mark.parametrize("comment", ["# llamafactory-cli train a.yaml", "echo start # swift sft"])
def test_a_comment_is_no_command(tmp_path, capsys, comment):
    text = f"{comment}\npython3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B\n"
    path = tmp_path / "run.sh"
    path.write_text(text)
    assert main([f"config={path}", "algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=2"]) == EXIT_OK, capsys


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "from trl import GRPOTrainer",
            "calls none of GRPOConfig, RLOOConfig, SFTConfig, DPOConfig, KTOConfig, RewardConfig",
        ),
        ("import torch\nfrom unsloth import FastLanguageModel", "trains with Unsloth, which it imports"),
        ("from torchtune import training", "trains with torchtune, which it imports"),
    ],
)
def test_a_notebook_is_named_with_what_it_imports(tmp_path, capsys, code, said):
    cells = [
        {"cell_type": "markdown", "source": "import axolotl"},
        {"cell_type": "code", "source": code.splitlines(True)},
    ]
    assert said in _refused(tmp_path, capsys, "n.ipynb", json.dumps({"cells": cells, "nbformat": 4}), MODEL)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import unsloth\nfrom trl import GRPOConfig\nGRPOConfig()", "trains with Unsloth"),
        ("from swift.llm import rlhf_main\nrlhf_main()", "trains with ms-swift"),
        ("from swift.trainers import GRPOConfig\nGRPOConfig()", "trains with ms-swift"),
        ("from openrlhf.trainer import PPOTrainer\nPPOTrainer()", "trains with OpenRLHF"),
        ("from trl.experimental.async_grpo import AsyncGRPOConfig\nAsyncGRPOConfig()", "calls AsyncGRPOConfig"),
        (
            "from verl.trainer.ppo.ray_trainer import RayPPOTrainer\nRayPPOTrainer()",
            "trains with verl, which it imports",
        ),
    ],
)
def test_a_script_of_another_program_is_named_by_what_it_imports(tmp_path, capsys, code, said):
    assert said in _refused(tmp_path, capsys, "t.py", code, MODEL).replace("\n", " ")


def test_a_script_of_trl_may_import_parts_of_others(tmp_path, capsys):
    path = tmp_path / "t.py"
    path.write_text(
        "from swift.utils import x\nfrom trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(args=GRPOConfig())\n"
    )
    assert main([f"config={path}", MODEL]) == EXIT_OK, capsys.readouterr().err


def test_toml_without_a_signature_is_refused(tmp_path, capsys):
    assert "is TOML, and no program" in _refused(tmp_path, capsys, "f.toml", "per_device_train_batch_size = 1", MODEL)
    assert "is not valid TOML" in _refused(tmp_path, capsys, "f.toml", "a = [", MODEL)


def test_every_format_has_a_case():
    named = {program for program, *_ in FILES} | {said.partition(" (")[0] for said, _ in COMMANDS}
    by_imports = [each.name for each in FORMATS if not each.keys and each.commands is None]
    assert by_imports == ["verl"], "its files and commands are read; a script that makes its trainer is not"
    assert {each.name for each in FORMATS} - set(by_imports) <= named
