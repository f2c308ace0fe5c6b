"""Scripts of public repositories that were answered wrongly, or refused without need, in the seventh round."""

import pytest
from rebuilt import facts_of, read

from profiler.domain.errors import EXIT_USAGE
from profiler.estimate.main import main

QWEN = "Qwen/Qwen2.5-0.5B"
TRAINS = "from trl import SFTConfig, SFTTrainer\n"


def refusal(folder, name, text, capsys, *words):
    assert main(list(read(folder, name, text, *words))) == EXIT_USAGE
    return " ".join(capsys.readouterr().err.split())


def trial_of(folder, name, text, *words):
    return facts_of(read(folder, name, text, *words))["trial"]


@pytest.mark.parametrize("bases", ["SFTTrainer", "Middle"])
def test_heirs_of_an_own_trainer_are_none_of_trl(tmp_path, capsys, bases):
    """Of 1362464778/COMP7607B-A2: SFT of a model of its own was full training by trl, once `model=` was given."""
    text = "class Base: pass\nclass SFTTrainer(Base): pass\nclass Middle(SFTTrainer): pass\n"
    text += f"class LoraTrainer({bases}): pass\nLoraTrainer(args).train()\n"
    said = refusal(tmp_path, "train.py", text, capsys)
    assert "trains by a class LoraTrainer of its own" in said
    text = f"{TRAINS}class Own(SFTTrainer): pass\nOwn('{QWEN}', args=SFTConfig(max_length=99)).train()\n"
    assert trial_of(tmp_path, "own.py", text)["max_length"] == 99


def test_an_import_starts_nothing_of_a_module(tmp_path, capsys):
    """Of ChampLong29/code-agent-rl: its own loop was answered by the trainer of a module whose rows it takes."""
    (tmp_path / "other.py").write_text(
        f"{TRAINS}def train(): SFTTrainer('{QWEN}', args=SFTConfig(max_length=99)).train()\n"
        "def rows(): return parsed\nif __name__ == '__main__':\n    parsed = 1\n    train()\n"
    )
    said = refusal(tmp_path, "loop.py", "from other import rows\nrows()\n", capsys)
    assert "calls none of GRPOConfig" in said
    assert trial_of(tmp_path, "other.py", (tmp_path / "other.py").read_text())["max_length"] == 99


@pytest.mark.parametrize(("module", "name"), [("verl.trainer.ppo.ray_trainer", "verl"), ("swift.trainers", "ms-swift")])
def test_a_second_trainer_of_another_program_is_named(tmp_path, capsys, module, name):
    """Of ChampLong29/code-agent-rl: verl's trainer of one mode was passed over for trl's of another."""
    text = f"from {module} import RayPPOTrainer\n{TRAINS}RayPPOTrainer(config=c).fit()\n"
    text += f"SFTTrainer('{QWEN}', args=SFTConfig(max_length=99)).train()\n"
    assert f"trains with {name}, which it imports" in refusal(tmp_path, "both.py", text, capsys)
    helps = text.replace("import RayPPOTrainer", "import helper").replace("RayPPOTrainer(config=c).fit()\n", "")
    assert trial_of(tmp_path, "one.py", helps)["max_length"] == 99


@pytest.mark.parametrize("program", ["$SWIFT", "${SWIFT}", '"${SWIFT}"', "/opt/bin/swift"])
def test_a_program_in_a_variable_is_read(tmp_path, program):
    """Of leozhilin/self_paraphrase: ms-swift by its path was a way to start it that is not read."""
    line = f"--rlhf_type grpo --model {QWEN} --tuner_type lora --num_generations 4 --max_completion_length 64"
    trial = trial_of(tmp_path, "run.sh", f"SWIFT=/opt/bin/swift\n{program} rlhf {line}\n", "max_prompt_length=64")
    assert (trial["recipe"], trial["tuning"], trial["max_completion_length"]) == ("grpo", "lora", 64)


@pytest.mark.parametrize("line", ['srun bash -c "$CMD"', '(set -x\n srun --nodes=2 bash -c "$CMD"\n)', 'eval "$CMD"'])
def test_a_text_for_a_shell_may_have_unknown_words(tmp_path, line):
    """Of mvsjober/trl_test: a command whose address is that of the machine was no training."""
    (tmp_path / "train_sft.py").write_text(f"{TRAINS}SFTTrainer('{QWEN}', args=SFTConfig(max_length=99)).train()\n")
    text = 'IP=$(hostname -i)\nCMD="accelerate launch --num_processes=4 --main_process_ip=$IP train_sft.py"\n'
    trial = trial_of(tmp_path, "run.sh", f"{text}{line}\n", "trl=1.16")
    assert (trial["max_length"], trial["num_processes"]) == (99, 4)


MERGES = """import argparse
from omegaconf import OmegaConf
from trl import SFTConfig, SFTTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="sft.yaml")
parser.add_argument("--fast", action="store_true")
args, words = parser.parse_known_args()
cfg = OmegaConf.load(args.config)
if words:
    line = OmegaConf.from_dotlist(words)
    cfg = OmegaConf.merge(cfg, MERGED)
given = {k: v for k, v in OmegaConf.to_container(cfg.sft, resolve=True).items() if TEST}
if args.fast:
    given["max_length"] = 8
SFTTrainer(model=cfg.model.name, args=SFTConfig(**given)).train()
"""
FILE = f"model:\n  name: {QWEN}\nsft:\n  max_length: 99\n  per_device_train_batch_size: 3\n  seed: null\n"


def merging(merged="line", test="v is not None"):
    return MERGES.replace("MERGED", merged).replace("TEST", test)


@pytest.mark.parametrize("merged", ["line", "OmegaConf.from_cli()", "OmegaConf.from_dotlist(words)"])
def test_a_file_that_no_words_change_is_read(tmp_path, merged):
    """Of aimedvedevq/toolaceqwen, two scripts: what their YAML states was asked for, although it was given."""
    (tmp_path / "sft.yaml").write_text(FILE)
    facts = facts_of(read(tmp_path, "sft.py", merging(merged), "trl=1.16"))
    assert (facts["trial"]["max_length"], facts["trial"]["per_device_train_batch_size"]) == (99, 3)
    assert not any("adds to SFTConfig" in each or "elsewhere" in each for each in facts["notes"])


@pytest.mark.parametrize("words", ["--config=sft.yaml sft.max_length=512", "sft.max_length=512 --config sft.yaml"])
def test_words_that_change_a_file_are_not_passed_over(tmp_path, capsys, words):
    (tmp_path / "sft.yaml").write_text(FILE)
    given = "**OmegaConf.to_container(cfg.sft, resolve=True)"
    (tmp_path / "sft.py").write_text(merging().replace("**given", given))
    said = refusal(tmp_path, "run.sh", f"python sft.py {words}\n", capsys, "trl=1.16")
    assert "takes every size from elsewhere" in said


@pytest.mark.parametrize("merged", ["other", "OmegaConf.load('b.yaml')"])
def test_another_file_in_a_merge_is_not_passed_over(tmp_path, capsys, merged):
    (tmp_path / "sft.yaml").write_text(FILE)
    assert "max_length" in refusal(tmp_path, "sft.py", merging(merged), capsys, "trl=1.16", f"model={QWEN}")


@pytest.mark.parametrize(
    ("body", "rows"), [("return None, None, None", None), ("return super().prediction_step(*given)", 30)]
)
def test_an_evaluation_without_a_loss_is_not_that_of_trl(tmp_path, body, rows):
    """Of VOXXXX1874/CSCI5370Project: 1.5B "does not fit" four GPUs, by logits that its trainer does not make."""
    text = (
        f"{TRAINS}class Own(SFTTrainer):\n    def prediction_step(self, *given):\n        {body}\n"
        "args = SFTConfig(max_length=99, eval_strategy='steps', per_device_eval_batch_size=30)\n"
        f"Own('{QWEN}', args=args, eval_dataset=rows).train()\n"
    )
    facts = facts_of(read(tmp_path, "own.py", text, "trl=1.16"))
    assert facts["trial"].get("per_device_eval_batch_size") == rows
    assert any("prediction_step of Own, which replaces that of SFTTrainer" in each for each in facts["notes"]) is (
        not rows
    )


def test_all_names_of_a_module_are_read(tmp_path):
    """Of VarunGumma/LLM-Finetuning, held back: adapters over weights in 4 bits, which its parser has off by default."""
    (tmp_path / "utils.py").write_text(
        "import argparse\nlength = 1\ndef get_parser():\n    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--use_lora', action='store_true')\n"
        "    parser.add_argument('--max_length', type=int, default=99)\n    return parser\n"
    )
    text = (
        f"from utils import *\nfrom peft import LoraConfig\n{TRAINS}"
        "parser = get_parser()\nargs = parser.parse_args()\npeft = LoraConfig(r=8) if args.use_lora else None\n"
        f"SFTTrainer('{QWEN}', args=SFTConfig(max_length=args.max_length), peft_config=peft).train()\n"
    )
    facts = facts_of(read(tmp_path, "sft.py", text, "trl=1.16"))
    assert (facts["trial"]["max_length"], facts["trial"]["tuning"]) == (99, "full")
    assert not any("elsewhere" in each or "condition" in each for each in facts["notes"])


@pytest.mark.parametrize(("recipe", "is_open"), [("GRPO", True), ("SFT", False)])
def test_an_engine_that_a_mapping_may_state_is_open(tmp_path, recipe, is_open):
    """Of sw-programmer/SelfCI, held back: vLLM of a mapping that a function filters was none."""
    text = (
        f"from trl import {recipe}Config, {recipe}Trainer\nargs = {recipe}Config(**supported({recipe}Config, given))\n"
    )
    text += f"{recipe}Trainer(model='{QWEN}', args=args).train()\n"
    words = ["per_device_train_batch_size=4", *(["num_generations=4", "max_completion_length=64"] if is_open else [])]
    notes = facts_of(read(tmp_path, "train.py", text, *words, *([] if is_open else ["max_length=99"])))["notes"]
    assert any("use_vllm" in each and "may state it by **" in each for each in notes) is is_open


@pytest.mark.parametrize(("device", "is_named"), [("", True), (", vllm_device='cuda:0'", False)])
def test_the_part_of_an_engine_on_the_next_card_is_named(tmp_path, device, is_named):
    """Of noahwei682/qwen2.5-0.5b-rl: its engine has a fifth of its card, not what vllm-serve takes by default."""
    text = (
        "from trl import GRPOConfig, GRPOTrainer\nargs = GRPOConfig(use_vllm=True, max_prompt_length=64, "
        f"num_generations=2, max_completion_length=64, vllm_gpu_memory_utilization=0.2{device})\n"
        f"GRPOTrainer(model='{QWEN}', reward_funcs=f, args=args).train()\n"
    )
    notes = facts_of(read(tmp_path, "train.py", text, "trl=0.14"))["notes"]
    assert any("the engine takes 0.2 of its card" in each for each in notes) is is_named
