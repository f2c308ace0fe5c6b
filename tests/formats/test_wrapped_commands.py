"""Shell scripts that run others, kernels by their names on the hub, types of 4-bit weights, and releases of trl."""

import pytest
from rebuilt import facts_of, read

from profiler.domain.errors import EXIT_USAGE
from profiler.estimate.main import main

QWEN = "Qwen/Qwen2.5-0.5B"
SFT = f"trl sft --model_name_or_path {QWEN} --max_length ${{LENGTH:-512}} --per_device_train_batch_size ${{1:-1}}\n"
RECIPE = f"model_name_or_path: {QWEN}\nmax_length: 512\n"


def refusal(folder, name, text, capsys, *words):
    assert main(list(read(folder, name, text, *words))) == EXIT_USAGE
    return " ".join(capsys.readouterr().err.split())


def said_of(folder, name, text, *words):
    found = facts_of(read(folder, name, text, *words))
    return " ".join(found["notes"])


def trial_of(folder, name, text, *words):
    return facts_of(read(folder, name, text, *words))["trial"]


# Shell scripts that run or read others


@pytest.mark.parametrize(
    ("line", "length", "rows"),
    [
        ("bash train.sh", 512, 1),
        ("LENGTH=256 bash train.sh 4", 256, 4),
        ("export LENGTH=128\nnohup sh ./train.sh 2 > log 2>&1 &", 128, 2),
        ('cd "$(dirname "$0")"\nbash scripts/train.sh "$ROWS"', 512, None),
        ("./train.sh 8", 512, 8),
        ("bash download_data.sh\nsbatch --gres=gpu:1 train.sh 2", 512, 2),
    ],
)
def test_a_script_that_another_one_runs_is_read(tmp_path, line, length, rows):
    """The arguments and the exported variables of the caller are those of the script that trains."""
    (tmp_path / "train.sh").write_text(SFT)
    trial = trial_of(tmp_path, "run.sh", f"{line}\n", "trl=1.16", *(["per_device_train_batch_size=3"] * (rows is None)))
    assert (trial["max_length"], trial["per_device_train_batch_size"]) == (length, rows or 3)


def test_a_script_that_is_run_and_not_here_is_named(tmp_path, capsys):
    said = refusal(tmp_path, "run.sh", "bash scripts/train.sh\n", capsys)
    assert "starts no training itself and runs scripts/train.sh, which is not here; give that script in its" in said


def test_of_several_scripts_that_are_run_one_is_asked_for(tmp_path, capsys):
    said = refusal(tmp_path, "run.sh", "bash first.sh\nbash second.sh\n", capsys)
    assert "runs several scripts (first.sh, second.sh); give one of these" in said


def test_a_script_that_runs_itself_ends(tmp_path, capsys):
    assert "starts no training that is known" in refusal(tmp_path, "run.sh", "bash run.sh\n", capsys)


def test_variables_of_a_file_that_is_read_count(tmp_path):
    (tmp_path / "settings.sh").write_text("LENGTH=64\n")
    assert trial_of(tmp_path, "run.sh", f"source ./settings.sh\n{SFT}", "trl=1.16")["max_length"] == 64


def test_a_file_that_is_read_and_not_here_is_named(tmp_path):
    said = said_of(tmp_path, "run.sh", f". ./settings.sh\n{SFT}", "trl=1.16")
    assert "what ./settings.sh sets, which is not here" in said
    assert "which is not here" not in said_of(tmp_path, "run.sh", f"source env/bin/activate\n{SFT}", "trl=1.16")


def test_arguments_of_the_caller_reach_verl(tmp_path):
    (tmp_path / "train.sh").write_text(f'python3 -m verl.trainer.main_ppo data.max_prompt_length=$1 "${{@:2}}" {VERL}')
    words = ("verl=0.8", "actor_rollout_ref.rollout.n=4")
    answer = facts_of(read(tmp_path, "run.sh", "bash train.sh 384\n", *words))
    assert answer["longest_row"] == 384 + 128


VERL = (
    "algorithm.adv_estimator=grpo data.train_batch_size=8 data.max_response_length=128 trainer.n_gpus_per_node=2 "
    f"actor_rollout_ref.model.path={QWEN} actor_rollout_ref.actor.ppo_mini_batch_size=8 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.name=vllm "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 "
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2\n"
)


SERVED = (
    f"python train_grpo.py --model_name_or_path {QWEN} --use_vllm true --vllm_mode server --num_generations 2 "
    "--per_device_train_batch_size 2 --max_completion_length 64\n"
)


@pytest.mark.parametrize(("options", "is_named"), [("--max_model_len 2048", True), ("--port 8000", False), ("", False)])
def test_options_of_a_server_of_trl_are_named(tmp_path, options, is_named):
    """Of jonathanlu31/final_project: the engine's part of its card is said to be that of its defaults."""
    line = f"CUDA_VISIBLE_DEVICES=3 trl vllm-serve --model {QWEN} {options} > log.txt 2>&1 &\n"
    said = said_of(tmp_path, "run.sh", f"{line}{SERVED}", "trl=1.16")
    assert ("--max_model_len of trl vllm-serve (its engine is that of its defaults)" in said) == is_named


# Kernels of the hub


@pytest.mark.parametrize(
    "name",
    [
        "kernels-community/flash-attn2",
        "kernels-community/vllm-flash-attn3",
        "flash_attention_3",
        "kernels-community/flash-attn",
    ],
)
def test_a_flash_attention_of_the_hub_is_counted_as_the_second(tmp_path, name):
    text = f"{RECIPE}attn_implementation: {name}\n"
    words = ("trl=1.16", "dtype=bfloat16", "recipe=sft")
    assert trial_of(tmp_path, "a.yaml", text, *words)["attn_implementation"] == "flash_attention_2"
    assert f"attn_implementation=flash_attention_2 ({name} is counted as it)" in said_of(
        tmp_path, "a.yaml", text, *words
    )


@pytest.mark.parametrize(
    "name", ["flex_attention", "kernels-community/paged-attention", "kernels-community/metal-flash-sdpa"]
)
def test_another_attention_of_the_hub_is_refused(tmp_path, capsys, name):
    said = refusal(tmp_path, "a.yaml", f"{RECIPE}attn_implementation: {name}\n", capsys, "recipe=sft")
    assert f"attn_implementation={name}: must be one of" in said


# Types of 4-bit weights

BITS = """import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

bits = BitsAndBytesConfig(load_in_4bit=True{more})
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", quantization_config=bits)
args = SFTConfig(max_length=512, per_device_train_batch_size=1)
SFTTrainer(model=model, args=args, peft_config=LoraConfig(r=8)).train()
"""


@pytest.mark.parametrize(
    ("more", "is_named"),
    [
        ("", True),
        (", bnb_4bit_compute_dtype=torch.float32", True),
        (', bnb_4bit_compute_dtype="float32"', True),
        (", bnb_4bit_compute_dtype=torch.bfloat16", False),
        (', bnb_4bit_compute_dtype="float16"', False),
        (", **options", False),
    ],
)
def test_4_bit_weights_computed_with_in_float32_are_named(tmp_path, more, is_named):
    said = said_of(tmp_path, "a.py", BITS.format(more=more), "trl=1.16")
    assert ("bnb_4bit_compute_dtype=float32" in said) == is_named


@pytest.mark.parametrize("program", ["LLaMA-Factory", "ms-swift"])
def test_fp16_over_4_bits_says_which_keys_answer(tmp_path, capsys, program):
    texts = {
        "LLaMA-Factory": f"model_name_or_path: {QWEN}\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
        "template: qwen\ncutoff_len: 512\nquantization_bit: 4\nfp16: true\n",
        "ms-swift": f"model: {QWEN}\ntuner_type: lora\nmax_length: 512\nquant_method: bnb\nquant_bits: 4\n"
        "torch_dtype: float16\n",
    }
    assert "fp16=false bf16=true dtype=bfloat16 answers the same" in refusal(tmp_path, "a.yaml", texts[program], capsys)
    trial = trial_of(tmp_path, "a.yaml", texts[program], "fp16=false", "bf16=true", "dtype=bfloat16")
    assert (trial["tuning"], trial["bf16"], trial["dtype"]) == ("qlora", True, "bfloat16")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("cpo", "trains on pairs without a reference"),
        ("orpo", "trains on pairs without a reference"),
        ("gkd", "keeps a value model or a teacher as well"),
        ("ppo", "keeps a value model or a teacher as well"),
    ],
)
def test_a_trainer_of_swift_without_a_recipe_says_why(tmp_path, capsys, kind, why):
    line = f"swift rlhf --rlhf_type {kind} --model {QWEN} --max_length 512 --cpo_alpha 1\n"
    assert f"that is not read, because it {why}, which has no formula" in refusal(tmp_path, "a.sh", line, capsys)


def test_pre_training_of_swift_is_that_of_rows(tmp_path):
    line = f"--model {QWEN} --max_length 512 --tuner_type full\n"
    found = [facts_of(read(tmp_path, "a.sh", f"swift {each} {line}"))["trial"] for each in ("pt", "sft")]
    assert found[0] == found[1]


# Releases of trl


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml", "environment.yml"])
def test_a_release_next_to_a_file_is_named(tmp_path, name):
    (tmp_path / name).write_text("trl[peft]==0.21.0\n")
    assert f"{name} installs trl 0.21 (trl=0.21 answers for that alone)" in said_of(tmp_path, "sft.yaml", RECIPE)


def test_a_release_whose_trainer_is_another_one_is_refused(tmp_path, capsys):
    (tmp_path / "requirements.txt").write_text("trl==0.11.4\n")
    said = refusal(tmp_path, "dpo.yaml", f"{RECIPE}beta: 0.1\n", capsys)
    assert "trl=0.11: is the release that requirements.txt installs, whose DPOTrainer is another one" in said
    assert trial_of(tmp_path, "dpo.yaml", f"{RECIPE}beta: 0.1\n", "trl=1.16")["recipe"] == "dpo"


def test_a_release_that_the_script_installs_wins(tmp_path):
    (tmp_path / "requirements.txt").write_text("trl==0.21.0\n")
    said = said_of(tmp_path, "a.py", f"# pip install trl==1.2.0\n{BITS.format(more='')}")
    assert "a.py installs trl 1.2" in said
    assert "trl 0.21" not in said.replace("trl 0.21 to", "")


# Arguments that are changed after they are made

CHANGED = """from trl import SFTConfig, SFTTrainer
{before}
def make():
    made = SFTConfig(max_length=512, per_device_train_batch_size=8, gradient_checkpointing=True)
    return made
def main():
    args = make()
    {change}
    SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args).train()
"""


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ("", "args.per_device_train_batch_size = 2"),
        ("", "setattr(args, 'per_device_train_batch_size', 2)"),
        ("from dataclasses import replace", "args = replace(args, per_device_train_batch_size=2)"),
        ("import dataclasses", "args = dataclasses.replace(args, per_device_train_batch_size=2)"),
        ("import copy", "args = copy.deepcopy(args); args.per_device_train_batch_size = 2"),
    ],
)
def test_what_is_set_on_arguments_of_a_function_counts(tmp_path, before, change):
    trial = trial_of(tmp_path, "a.py", CHANGED.format(before=before, change=change), "trl=1.16")
    assert (trial["per_device_train_batch_size"], trial["gradient_checkpointing"]) == (2, True)


def test_arguments_have_several_names(tmp_path):
    """Of the function that makes them, of its caller that passes them on by their place, and the other way round."""
    text = CHANGED.format(before="", change="args.per_device_train_batch_size = 2")
    text = text.replace('SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args)', 'SFTTrainer("Qwen/Qwen2.5-0.5B", args)')
    assert trial_of(tmp_path, "a.py", text, "trl=1.16")["per_device_train_batch_size"] == 2
    text = CHANGED.format(before="from own import known", change="pass").replace("    return made", "    return made")
    text = text.replace("made = SFTConfig(", "made = known(SFTConfig(").replace(
        "=True)", "=True))\n    made.max_length = 64"
    )
    assert trial_of(tmp_path, "a.py", text, "trl=1.16")["max_length"] == 64


def test_what_is_set_and_not_in_the_file_is_asked_for(tmp_path, capsys):
    text = CHANGED.format(before="", change="args.per_device_train_batch_size = count()")
    assert "is set to what is not in the file (line 8 of a.py)" in refusal(tmp_path, "a.py", text, capsys, "trl=1.16")
    text = CHANGED.format(before="", change="[setattr(args, key, value) for key, value in more()]")
    assert "what line 8 of a.py sets on the arguments" in said_of(tmp_path, "a.py", text, "trl=1.16")


def test_words_of_a_command_line_are_not_the_trainers(tmp_path):
    text = CHANGED.format(before="", change="words = parser.parse_args(); words.per_device_train_batch_size = 2")
    assert trial_of(tmp_path, "a.py", text, "trl=1.16")["per_device_train_batch_size"] == 8
