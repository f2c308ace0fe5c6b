"""Constructs of public scripts that were read for the first time: which of several models is trained, and how."""

import pytest
from rebuilt import facts_of, read

from profiler.domain.errors import EXIT_USAGE
from profiler.estimate.main import main

HEAD = """import argparse
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TrainingArguments
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
"""
MODEL = '"Qwen/Qwen2.5-0.5B"'
SFT = (
    "SFTTrainer(model=NAME, args=SFTConfig(max_length=512, per_device_train_batch_size=2), peft_config=LoraConfig(r=8))"
)
BITS = "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')"
LOADS = "AutoModelForCausalLM.from_pretrained"


def trial(folder, text, *words, name="train.py"):
    return facts_of(read(folder, name, text, "trl=1.16", *words))["trial"]


def refusal(folder, text, capsys, *words):
    assert main(list(read(folder, "train.py", text, *words))) == EXIT_USAGE
    return capsys.readouterr().err


def made(*lines, name="model"):
    return "\n".join((HEAD, *lines, SFT.replace("NAME", name) + ".train()", ""))


LOADED = f"model = {LOADS}({MODEL}, torch_dtype=torch.bfloat16)"
JUDGE = (
    "class Judge:",
    "    @classmethod",
    "    def load(cls, name):",
    f"        return cls({LOADS}(name, quantization_config={BITS}))",
)


@pytest.mark.parametrize(
    ("lines", "name", "tuning"),
    [
        ((f"bits = {BITS}", LOADED.replace(", torch", ", quantization_config=bits, torch")), "model", "qlora"),
        ((f"bits = {BITS}", LOADED), "model", "lora"),
        ((f"bits = {BITS}", f"judge = {LOADS}('a/b', quantization_config=bits)", LOADED), "model", "lora"),
        (JUDGE, MODEL, "lora"),
        ((*JUDGE, f"name = {MODEL}"), "name", "lora"),
        (("def load(name):", f"    return {LOADS}(name, quantization_config={BITS})", f"model = load({MODEL})"),) * 1
        + ("model", "qlora"),
    ],
)
def test_a_quantisation_counts_where_the_trained_model_gets_it(tmp_path, lines, name, tuning):
    """Of BenasdTW/LLMTrain and CRIMSONHydra/stocker: one that nothing gets, and one of a model that only answers."""
    assert trial(tmp_path, made(*lines, name=name))["tuning"] == tuning


HELPERS = f"""
def bits_of(use_4bit=False):
    if not use_4bit:
        return None
    return {BITS}

def load(use_4bit=False):
    more = {{"torch_dtype": torch.bfloat16}}
    bits = bits_of(use_4bit)
    if bits is not None:
        more["quantization_config"] = bits
    return {LOADS}({MODEL}, **more)
"""


@pytest.mark.parametrize(("given", "tuning"), [("False", "lora"), ("True", "qlora"), ("", "lora")])
def test_what_follows_a_return_of_a_helper_does_not_count(tmp_path, given, tuning):
    """Of ThuanNaN/RLHF-Native-Hugging-Face: ``use_4bit: false`` was answered as QLoRA."""
    given = f"use_4bit={given}" if given else ""
    assert trial(tmp_path, made(HELPERS, f"model = load({given})"))["tuning"] == tuning


def test_helpers_of_a_module_that_are_not_used_call_nothing(tmp_path):
    other = HELPERS.replace("def load(", "def load_other(").partition("def load_other")[2]
    other = other.replace("bits_of(use_4bit)", "bits_of(use_4bit=True)")
    (tmp_path / "helpers.py").write_text(HEAD + HELPERS + "\ndef load_other" + other)
    lines = ("from helpers import load, load_other", "model = load(use_4bit=False)")
    assert trial(tmp_path, made(*lines))["tuning"] == "lora"


TARGETS = "q_proj, k_proj,v_proj"
ADAPTER = """parser = argparse.ArgumentParser()
parser.add_argument("--targets", default="TARGETS")
options = parser.parse_args()
named = WRITTEN
"""


@pytest.mark.parametrize(
    "written",
    [
        '[each.strip() for each in options.targets.split(",") if each.strip()]',
        '[each.strip() for each in options.targets.split(",")]',
        '[each for each in options.targets.split(",")]',
        'list(options.targets.split(","))',
        'options.targets.split(",")',
    ],
)
def test_a_text_that_is_split_names_the_layers(tmp_path, written):
    """Of Farhamdur/llama3-alignment-drift: seven layers with adapters were peft's two."""
    lines = (ADAPTER.replace("TARGETS", TARGETS).replace("WRITTEN", written), LOADED)
    text = made(*lines).replace("LoraConfig(r=8)", "LoraConfig(r=8, target_modules=named)")
    assert trial(tmp_path, text)["lora_target_modules"] == ["q_proj", "k_proj", "v_proj"]


def test_another_comprehension_is_named(tmp_path):
    lines = (ADAPTER.replace("TARGETS", TARGETS).replace("WRITTEN", '[f"{x}_y" for x in options.targets.split(",")]'),)
    text = made(*lines, LOADED).replace("LoraConfig(r=8)", "LoraConfig(r=8, target_modules=named)")
    found = facts_of(read(tmp_path, "train.py", text, "trl=1.16"))
    assert any("lora_target_modules=[q_proj,v_proj] (line" in each for each in found["notes"])


KIND = f"""
def arguments(rows):
    try:
        from trl import SFTConfig
        Kind = SFTConfig
    except ImportError:
        Kind = TrainingArguments
    return Kind(max_length=512, per_device_train_batch_size=rows)

more = dict(model={MODEL}, args=arguments(rows=ROWS))
SFTTrainer(**more).train()
"""


def test_arguments_whose_class_is_chosen_are_read(tmp_path):
    """Of chenzh659/llm-post-training-lab: 1 x 16 rows were answered as trl's 8, with "fits"."""
    found = trial(tmp_path, HEAD + KIND.replace("ROWS", "4"), "model=qwen2.5-0.5b")
    assert (found["per_device_train_batch_size"], found["max_length"]) == (4, 512)


def test_a_trainer_that_gets_all_by_two_stars_is_asked_for(tmp_path, capsys):
    text = HEAD + f"from elsewhere import arguments\nmore = dict(model={MODEL}, **arguments())\nSFTTrainer(**more)\n"
    assert "takes every size from elsewhere" in refusal(tmp_path, text, capsys, "model=qwen2.5-0.5b")


STARTS = f"""
def start(use_vllm=False, rows=8):
    args = GRPOConfig(
        use_vllm=use_vllm, per_device_train_batch_size=rows, num_generations=8, max_completion_length=64
    )
    GRPOTrainer(model={MODEL}, args=args, reward_funcs=[good]).train()

def plain():
    start()

def served():
    start(MORE)
"""


def test_what_calls_of_a_function_state_otherwise_is_asked_for(tmp_path, capsys):
    """Of SANNNNN-123/wordle-GRPO-modal: three functions start a training, two of them with vLLM."""
    said = refusal(tmp_path, HEAD + STARTS.replace("MORE", "use_vllm=True"), capsys)
    assert "use_vllm=true: is false and true in train.py" in said
    said = refusal(tmp_path, HEAD + STARTS.replace("MORE", "rows=16"), capsys)
    assert "per_device_train_batch_size=16: is 8 and 16 in train.py" in said
    found = trial(tmp_path, HEAD + STARTS.replace("MORE", "use_vllm=False, rows=8"))
    assert (found["use_vllm"], found["per_device_train_batch_size"]) == (False, 8)


def test_a_model_that_is_loaded_after_the_training_is_another(tmp_path):
    """Of Hong-Lab-UMN-ECE/RoSTE: what was trained is loaded again, to be copied."""
    after = f'    model = {LOADS}("out/trained", torch_dtype=torch.float32)\n    model.save_pretrained("out")\n'
    text = f"{HEAD}\ndef main():\n    {LOADED}\n    {SFT.replace('NAME', 'model')}.train()\n{after}\nmain()\n"
    found = trial(tmp_path, text)
    assert (found["model"], found["dtype"]) == ("qwen2.5-0.5b", "bfloat16")


LOOP = """for weight in 0.1 SECOND; do
  trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 8 --num_generations 8 --beta $weight
done
"""


@pytest.mark.parametrize(("second", "beta"), [("0.05", 0.1), ("0", 0.0)])
def test_weights_of_a_loop_need_the_reference_alike(tmp_path, second, beta):
    """Weights of 0.1 and 0.05 were answered as 0, without the reference; with 0 among them it is named."""
    found = facts_of(read(tmp_path, "run.sh", LOOP.replace("SECOND", second), "trl=1.16"))
    assert found["trial"]["beta"] == beta
    assert any("beta=0.0 (run.sh has 0.1 or 0)" in each for each in found["notes"]) is (beta == 0)


@pytest.mark.parametrize(("stated", "bf16"), [("bf16=False, ", True), ("", True), ("fp16=True, ", False)])
def test_accelerates_precision_counts_where_the_script_has_none(tmp_path, stated, bf16):
    """`TrainingArguments` leaves accelerate's variable as it is where bf16 and fp16 are false."""
    text = made(LOADED.replace(", torch_dtype=torch.bfloat16", "")).replace("SFTConfig(", f"SFTConfig({stated}")
    (tmp_path / "train.py").write_text(text)
    found = trial(tmp_path, "accelerate launch --mixed_precision bf16 train.py\n", "num_processes=1", name="run.sh")
    assert found["bf16"] is bf16


def test_a_chosen_recipe_counts_in_a_script_that_is_started(tmp_path, capsys):
    """Of Thenolypus/respace: recipe= was asked for although given, and a trainer without a recipe refused all."""
    other = f"OnlineDPOTrainer(model={MODEL}, args=OnlineDPOConfig()).train()"
    both = f"GRPOTrainer(model={MODEL}, args=GRPOConfig(num_generations=8), reward_funcs=[good]).train()\n{other}"
    text = f"{made(both, LOADED)}".replace("import GRPOConfig", "import OnlineDPOConfig, OnlineDPOTrainer, GRPOConfig")
    (tmp_path / "train.py").write_text(text)
    found = trial(tmp_path, "accelerate launch train.py\n", "recipe=sft", name="run.sh")
    assert (found["recipe"], found["max_length"]) == ("sft", 512)
    assert "calls OnlineDPOConfig" in refusal(tmp_path, text, capsys)


def test_keys_that_decide_memory_are_named_first(tmp_path, capsys):
    text = HEAD + (
        "from elsewhere import weight\n"
        f"args = GRPOConfig(per_device_train_batch_size=8, num_generations=8, max_completion_length=64, beta=weight)\n"
        f"GRPOTrainer(model={MODEL}, args=args, reward_funcs=[good]).train()\n"
    )
    main(list(read(tmp_path, "train.py", text, "trl=1.16", "gpu=h100-80gb")))
    assert "Assumed, because the files take them from elsewhere: beta." in capsys.readouterr().err


PAIRS = f"""# dependencies = [
#   "trl==PIN",
# ]
from trl import DPOConfig, DPOTrainer
DPOTrainer(model={MODEL}, args=DPOConfig(max_length=512, per_device_train_batch_size=2)).train()
"""


def test_the_release_that_a_script_installs_counts(tmp_path, capsys):
    """Of shipbehaves/crossfamily-dpo: DPO of trl 1.6, which makes all logits, was answered as that of today."""
    said = refusal(tmp_path, PAIRS.replace("PIN", "1.6.0"), capsys)
    assert "trl=1.6: is the release that train.py installs, whose DPOTrainer is another one" in said
    assert trial(tmp_path, PAIRS.replace("PIN", "1.6.0"))["recipe"] == "dpo"
    found = facts_of(read(tmp_path, "train.py", made(LOADED) + "# pip install trl==0.18.2\n"))
    assert any("train.py installs trl 0.18 (trl=0.18 answers" in each for each in found["notes"])


def test_words_after_a_recipe_are_arguments(tmp_path, capsys):
    """Of shenao-zhang/SELM: ``model_name_or_path=...`` without dashes was passed over for the recipe's."""
    parsed = "from trl import TrlParser\n(args,) = TrlParser((SFTConfig,)).parse_args_into_dataclasses()\n"
    (tmp_path / "train.py").write_text(HEAD + parsed + f"SFTTrainer(model={MODEL}, args=args).train()\n")
    (tmp_path / "job.yaml").write_text("max_length: 64\nper_device_train_batch_size: 2\n")
    line = "accelerate launch train.py job.yaml max_length=128\n"
    found = trial(tmp_path, line, name="run.sh")
    assert (found["max_length"], found["per_device_train_batch_size"]) == (128, 2)


def test_unsloth_in_a_branch_that_does_not_run_is_no_hindrance(tmp_path):
    """Of frankyaoxiao/unsloth-qwen4b: ``--full-finetune`` loads by transformers, and was refused for Unsloth."""
    branch = (
        "parser = argparse.ArgumentParser()\nparser.add_argument('--full', action='store_true')\n"
        f"options = parser.parse_args()\nif options.full:\n    {LOADED}\nelse:\n"
        "    from unsloth import FastLanguageModel\n"
        f"    model, _ = FastLanguageModel.from_pretrained({MODEL})"
    )
    (tmp_path / "train.py").write_text(made(branch))
    found = trial(tmp_path, "python train.py --full\n", name="run.sh")
    assert (found["model"], found["tuning"]) == ("qwen2.5-0.5b", "lora")
