"""Constructs of files in public repositories that were read for the first time: weights, references, other verls."""

import re

import pytest
from rebuilt import facts_of, read

from profiler.domain.errors import EXIT_USAGE
from profiler.estimate.main import main


def refusal(folder, name, text, capsys, *words):
    assert main(list(read(folder, name, text, *words))) == EXIT_USAGE
    return capsys.readouterr().err


QUANTISED = """from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
MADE
SFTTrainer(model=model, args=SFTConfig(GIVEN), peft_config=LoraConfig(r=8, target_modules="all-linear")).train()
"""

LOADED = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16", HOW)'


def quantised(made, given="max_length=512"):
    return QUANTISED.replace("MADE", made).replace("GIVEN", given)


@pytest.mark.parametrize(
    ("made", "tuning", "nested"),
    [
        ('HOW={"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}', "qlora", False),
        ('bits = {"load_in_4bit": True, "bnb_4bit_use_double_quant": True}\nHOW=bits', "qlora", True),
        ('bits = dict(load_in_4bit=True) if small else {"load_in_4bit": True}\nHOW=bits', "qlora", False),
        ('bits = {"load_in_4bit": False}\nHOW=bits', "lora", None),
        ('more = {}\nmore["quantization_config"] = {"load_in_4bit": True}\n**more', "qlora", False),
        ('more = {"quantization_config": {"load_in_4bit": True}}\n**more', "qlora", False),
        ("bits = None\nHOW=bits", "lora", None),
        ("HOW=None", "lora", None),
    ],
)
def test_a_mapping_quantises_as_its_class_does(tmp_path, made, tuning, nested):
    """Of JianyuanZhong/flexive: a dictionary under conditions was left out, and 7B had weights in float32."""
    *before, how = made.split("\n")
    stated = how.replace("HOW", "quantization_config")
    text = quantised("\n".join([*before, LOADED.replace("HOW", stated)]))
    trial = facts_of(read(tmp_path, "train.py", text, "trl=1.16"))["trial"]
    assert trial["tuning"] == tuning
    assert nested is None or trial["bnb_4bit_use_double_quant"] is nested


def test_a_mapping_quantises_what_the_trainer_loads(tmp_path):
    text = quantised(
        'model = "Qwen/Qwen2.5-0.5B"',
        'model_init_kwargs={"quantization_config": {"load_in_4bit": True}}, max_length=64',
    )
    assert facts_of(read(tmp_path, "train.py", text, "trl=1.16"))["trial"]["tuning"] == "qlora"


@pytest.mark.parametrize("how", ['QuantoConfig(weights="int8")', '{"quant_method": "awq", "bits": 4}', "ours()"])
def test_other_quantised_weights_are_refused(tmp_path, capsys, how):
    """They were answered as weights in bfloat16."""
    text = quantised(f"bits = {how}\n{LOADED.replace('HOW', 'quantization_config=bits')}")
    said_so = refusal(tmp_path, "train.py", text, capsys)
    assert "loads weights by a quantization_config (line 5 of train.py) that is no BitsAndBytesConfig" in said_so
    assert facts_of(read(tmp_path, "train.py", quantised(LOADED.replace(", HOW", ""))))["trial"]["tuning"] == "lora"


REFERENCE = """from peft import PeftModel
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer
base = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16")
model = PeftModel.from_pretrained(base, "adapter", is_trainable=True)
DPOTrainer(model=model, args=DPOConfig(max_length=512, per_device_train_batch_size=2)GIVEN).train()
"""


def test_a_reference_next_to_a_loaded_adapter_is_refused(tmp_path, capsys):
    """Of harshitbudhiraja/qwen-align-pipeline: the second model of 4 bits was left out."""
    adapter = ("tuning=lora", "lora_rank=8", "lora_target_modules=all-linear")
    said_so = refusal(tmp_path, "train.py", REFERENCE.replace("GIVEN", ", ref_model=other"), capsys, *adapter)
    assert "ref_model=line 6 of train.py: is a second model" in said_so
    words = read(tmp_path, "train.py", REFERENCE.replace("GIVEN", ""), *adapter)
    assert facts_of(words)["trial"]["recipe"] == "dpo"


SWIFT = """MODEL=$(latest_checkpoint)
swift sft --model "${MODEL}" --tuner_type full --torch_dtype bfloat16 --max_length 512 --dataset "$(rows train)" HOW
"""


@pytest.mark.parametrize("rows", ['--val_dataset "$(rows mixed val)"', '--val_dataset "${DATA}/val.jsonl"', ""])
def test_rows_for_an_evaluation_are_there_wherever_they_are(tmp_path, rows):
    """Of LIyvqi/ms-swift-learn: no key of the command line could state the rows that the script computes."""
    found = facts_of(read(tmp_path, "run.sh", SWIFT.replace("HOW", rows), "model=qwen3-0.6b"))
    notes = " ".join(found["notes"])
    assert ("rows for an evaluation (val_dataset=$" in notes) is bool(rows)
    assert found["trial"]["per_device_eval_batch_size"] == (1 if rows else None)
    assert found["trial"]["max_length"] == 512


GRPO = """swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-0.5B --tuner_type lora --max_length 512 \\
    --max_completion_length 256 --num_generations 4 --per_device_train_batch_size 4 --use_vllm true \\
    --vllm_mode colocate --vllm_max_model_len 1024 --vllm_limit_mm_per_prompt '{"image": 0, "video": 0}'
"""


def test_notes_of_another_program_contradict_nothing(tmp_path, capsys):
    """Of LIyvqi/ms-swift-learn: a second length of prompts, a release that nobody stated, keys said not to be there."""
    found = facts_of(read(tmp_path, "run.sh", GRPO))
    notes = " ".join(found["notes"])
    assert (found["trial"]["max_prompt_length"], found["trial"]["vllm_max_model_length"]) == (512, 1024)
    assert notes.count("max_prompt_length=") == 1 and "max_prompt_length=512 (ms-swift's max_length)" in notes
    assert "as stated" not in notes
    main(list(read(tmp_path, "run.sh", GRPO)))
    assert "vllm_limit_mm_per_prompt" not in capsys.readouterr().err


ROWS = "cutoff_len: 512\nper_device_train_batch_size: 2\nbf16: true\ndo_train: true\n"
FACTORY = f"model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: lora\n{ROWS}"
OPTIONS = "--stage sft --finetuning_type lora --do_train --model_name_or_path Qwen/Qwen2.5-0.5B --cutoff_len 512 --bf16"
AXOLOTL = (
    "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\nmicro_batch_size: 2\nadapter: lora\nlora_r: 8\nlora_alpha: 8\n"
)


@pytest.mark.parametrize(
    ("line", "processes"),
    [
        ("torchrun --nproc_per_node 4 /opt/LLaMA-Factory/src/train.py factory.yaml", 4),
        ("accelerate launch --num_processes 3 train/llama_factory/src/train.py factory.yaml", 3),
        (f"deepspeed --num_gpus 2 src/train.py {OPTIONS}", 2),
        (f"deepspeed --include localhost:0,1,2 src/train.py {OPTIONS}", 3),
        (f"CUDA_VISIBLE_DEVICES=3 python src/train.py {OPTIONS}", 1),
        ("accelerate launch --num_processes 4 -m swift.cli.sft --model Qwen/Qwen2.5-0.5B --max_length 512", 4),
    ],
)
def test_a_launcher_says_how_many_run_the_file_of_a_program(tmp_path, line, processes):
    """Of Joe-Hall-Lee/STaR-Judge: LLaMA-Factory's own file, which was refused; accelerate's number was lost."""
    (tmp_path / "factory.yaml").write_text(FACTORY, encoding="utf-8")
    trial = facts_of(read(tmp_path, "run.sh", f"{line}\n"))["trial"]
    assert (trial["num_processes"], trial["max_length"], trial["tuning"]) == (processes, 512, "lora")


def test_a_users_own_file_of_that_name_is_none_of_a_program(tmp_path, capsys):
    said_so = refusal(tmp_path, "run.sh", "torchrun --nproc_per_node 4 src/train.py --stage sft\n", capsys)
    assert "LLaMA-Factory" not in said_so


FSDP = "distributed_type: FSDP\nnum_processes: 4\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n"
PROGRAMS = (
    "/opt/LLaMA-Factory/src/train.py factory.yaml",
    "-m axolotl.cli.train axolotl.yaml",
    "-m swift.cli.sft --model Qwen/Qwen2.5-0.5B --max_length 512",
)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("--config_file fsdp.yaml", "fsdp"),
        ("--use_fsdp --num_processes 4", "fsdp"),
        ("--use_deepspeed --zero_stage 3 --num_processes 4", "deepspeed"),
    ],
)
def test_what_accelerate_shards_of_another_program_is_refused(tmp_path, capsys, program, how, kind):
    """A whole copy was answered on each GPU, or one GPU."""
    for name, text in (("factory", FACTORY), ("axolotl", AXOLOTL), ("fsdp", FSDP)):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    said_so = refusal(tmp_path, "run.sh", f"accelerate launch {how} {program}\n", capsys)
    assert f"distributed_type={kind}: is how accelerate shards the model, and is not read where" in said_so


LOADS = """from trl import GRPOConfig, GRPOTrainer
kept = KEPT
HOW
GRPOTrainer(model="Qwen/Qwen2.5-0.5B", args=args).train()
"""

PARSED = "args, of_model = TrlParser((GRPOConfig, ModelConfig)).parse_args_and_config()\nargs.model_init_kwargs = kept"

MADE = ["args = GRPOConfig()\nargs.model_init_kwargs = kept", "args = GRPOConfig(model_init_kwargs=kept)"]


@pytest.mark.parametrize("how", MADE)
def test_an_entry_of_how_a_model_loads_is_named(tmp_path, how):
    """Of siyan-zhao/OPSD: the attention was taken as sdpa in silence."""
    text = LOADS.replace("HOW", how).replace("KEPT", 'dict(attn_implementation=chosen(), torch_dtype="float16")')
    facts = facts_of(read(tmp_path, "train.py", text, "trl=1.16"))
    assert facts["trial"]["dtype"] == "float16"
    assert "attn_implementation=sdpa (line 2 of train.py has no literal)" in " ".join(facts["notes"])


@pytest.mark.parametrize("how", [*MADE, "args = GRPOConfig(model_init_kwargs=KEPT)"])
@pytest.mark.parametrize("kept", ["other()", '{"trust_remote_code": True, **other()}'])
def test_what_a_mapping_without_literals_may_state_is_named(tmp_path, how, kept):
    """The type was said to be trl's default."""
    facts = facts_of(read(tmp_path, "train.py", LOADS.replace("HOW", how).replace("KEPT", kept), "trl=1.16"))
    notes = " ".join(facts["notes"])
    assert "dtype=float32 (line " in notes
    assert "attn_implementation=sdpa (line " in notes
    assert notes.count("of train.py has no literal") == 2


def test_an_entry_next_to_what_is_unknown_is_read(tmp_path):
    text = LOADS.replace("HOW", 'args = GRPOConfig(model_init_kwargs={"dtype": "float16", **other()})')
    facts = facts_of(read(tmp_path, "train.py", text.replace("KEPT", "{}"), "trl=1.16"))
    assert facts["trial"]["dtype"] == "float16"
    assert " ".join(facts["notes"]).count("has no literal") == 1


def test_a_type_that_the_recipe_states_is_not_said_to_be_open(tmp_path):
    """Of hexuandeng/REA-RL: the script's mapping takes it from its arguments."""
    text = LOADS.replace("KEPT", "dict(torch_dtype=chosen(args))").replace("HOW", PARSED)
    (tmp_path / "train.py").write_text(text.replace("GRPOConfig\n", "GRPOConfig, ModelConfig, TrlParser\n", 1))
    (tmp_path / "recipe.yaml").write_text("torch_dtype: bfloat16\nmax_completion_length: 64\n")
    line = "accelerate launch --num_processes 1 train.py --config recipe.yaml\n"
    facts = facts_of(read(tmp_path, "run.sh", line, "trl=0.19"))
    assert facts["trial"]["dtype"] == "bfloat16"
    assert not re.search(r"\bdtype=", " ".join(facts["notes"]))


OF_MODAL = """from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
def launch(rank=32, rows=4):
    args = SFTConfig(per_device_train_batch_size=rows, max_length=64)
    SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args, peft_config=LoraConfig(r=rank)).train()
CALL
"""


@pytest.mark.parametrize(
    "call", ["launch.remote(rows=2)", "launch.local(rows=2)", "launch.spawn(rows=2)", "launch(rows=2)"]
)
def test_a_function_that_modal_runs_is_called(tmp_path, call):
    """Of suyashss/rft_demo: the default rank of a function of Modal was lost."""
    trial = facts_of(read(tmp_path, "train.py", OF_MODAL.replace("CALL", call), "trl=1.16"))["trial"]
    assert (trial["lora_rank"], trial["per_device_train_batch_size"]) == (32, 2)


OWN_OPTIONS = """while (( GUARD )); do
  case "$1" in
    --rows) rows="$2"; shift 2;;
    *) exit 1;;
  esac
done
rows=${rows:-3}
llamafactory-cli train OPTIONS --per_device_train_batch_size $rows
"""


@pytest.mark.parametrize("guard", ['"$#"', "$#", "$# > 0", "${#}", '"${#}" >= 1'])
def test_options_that_a_script_does_not_get_are_passed_over(tmp_path, guard):
    """Of DtYXs/Pre-DPO: every value with such an option was asked for."""
    text = OWN_OPTIONS.replace("GUARD", guard).replace("OPTIONS", OPTIONS)
    assert facts_of(read(tmp_path, "run.sh", text))["trial"]["per_device_train_batch_size"] == 3


BOUND = """import argparse, copy, os, yaml
from trl import GRPOConfig, GRPOTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--quick", action="store_true")
args = parser.parse_args()
FILE = yaml.safe_load(open("own.yaml"))
SURE = True
def main():
    given = FILE["training"]["grpo"]
    MADE
    config = GRPOConfig(per_device_train_batch_size=8, num_generations=FILE["rows"], max_completion_length=LENGTH)
    GRPOTrainer("Qwen/Qwen2.5-0.5B", args=config, reward_funcs=len).train()
main()
"""

GIVEN_LENGTH = 'given["max_completion_length"]'
OWN_FILE = """
rows: 8
training:
  grpo: {max_completion_length: 300}
quick: {max_completion_length: 64}
"""


def of_conditions(folder, made, length, own=OWN_FILE):
    (folder / "own.yaml").write_text(own)
    text = BOUND.replace("MADE", made.replace("\n", "\n    ")).replace("LENGTH", length)
    return facts_of(read(folder, "train.py", text, "trl=1.16"))


@pytest.mark.parametrize(
    ("made", "length", "tokens"),
    [
        ("tokens = 300\nif args.quick: tokens = 64", "tokens", 300),
        ("tokens = 300\nif not args.quick: tokens = 256", "tokens", 256),
        ("tokens = 300\nif SURE: tokens = 256\nif args.quick: tokens = 64", "tokens", 256),
        ("if SURE: tokens = 256\nelse: tokens = 64", "tokens", 256),
        ("if args.quick:\n    given = dict(given)\n    given['max_completion_length'] = 64", GIVEN_LENGTH, 300),
        ("if SURE:\n    given = copy.deepcopy(given)\n    given['max_completion_length'] = 64", GIVEN_LENGTH, 64),
        ("given = given.copy()", GIVEN_LENGTH, 300),
        ("if args.quick: args.tokens = 64\nelse: args.tokens = 128", "args.tokens", 128),
    ],
)
def test_what_conditions_bind_is_what_holds(tmp_path, made, length, tokens):
    """Of ibraramin/thesis-grpo: a run for tests, off by default, sets shorter completions in a copy of the settings."""
    assert of_conditions(tmp_path, made, length)["trial"]["max_completion_length"] == tokens


@pytest.mark.parametrize(
    "made",
    [
        "tokens = 300\nif os.path.exists('quick'): tokens = 64",
        "tokens = 300\nprint(tokens)\nif SURE: tokens = 64",
        "tokens = 300\nfor _ in FILE: tokens = 64",
        "tokens = 300\ntry: pass\nexcept ValueError: tokens = 64",
    ],
)
def test_what_unknown_conditions_bind_is_unknown(tmp_path, made):
    """What reads a name before has another value than what reads it afterwards."""
    found = of_conditions(tmp_path, made, "tokens", "rows: 8\ntraining: {grpo: {}}\n")
    assert re.search(r"max_completion_length=512 \(line \d+ of train.py has no literal\)", " ".join(found["notes"]))


@pytest.mark.parametrize(
    ("own", "tokens"),
    [
        ("training: {grpo: {max_completion_length: 300}}", 300),
        ("training: {grpo: {max_completion_length: 300}}\neval: {max_completion_length: 64}", 300),
        ("eval: {max_completion_length: 64}", 512),  # trl's default
        ("training: {grpo: {max_completion_length: 300}}\nquick: {max_completion_length: 64}", None),
    ],
)
def test_a_key_of_any_section_is_that_of_the_only_one(tmp_path, capsys, own, tokens):
    """At any depth, but for sections about other runs: of several sections the script may mean another one."""
    (tmp_path / "own.yaml").write_text(f"rows: 8\n{own}\n")
    text = BOUND.replace('given = FILE["training"]["grpo"]', "given = chosen(FILE)").replace("MADE", "")
    text = text.replace("LENGTH", GIVEN_LENGTH)
    if tokens is None:
        found = refusal(tmp_path, "train.py", text, capsys, "trl=1.16")
        assert "300 by training.grpo.max_completion_length and 64 by quick.max_completion_length" in found
    else:
        trial = facts_of(read(tmp_path, "train.py", text, "trl=1.16"))["trial"]
        assert trial["max_completion_length"] == tokens


def test_sections_of_other_trainers_and_runs_are_passed_over(tmp_path):
    """Of ibraramin/thesis-grpo: one file for the scripts of SFT and GRPO, whose keys asked for answers in SFT."""
    (tmp_path / "own.yaml").write_text(
        "sft: {rows: 2, max_length: 512}\ngrpo: {group_size: 8, kl_estimator: k3, max_completion: 64}\n"
        "more: {filter_offline: {max_completion: 9}, kl_estimator: k3}\n"
    )
    text = """import yaml
from trl import SFTConfig, SFTTrainer
own = yaml.safe_load(open("own.yaml"))["sft"]
config = SFTConfig(per_device_train_batch_size=own["rows"], max_length=own["max_length"])
SFTTrainer("Qwen/Qwen2.5-0.5B", args=config).train()
"""
    trial = facts_of(read(tmp_path, "train.py", text, "trl=1.16"))["trial"]
    assert (trial["per_device_train_batch_size"], trial["max_length"]) == (2, 512)


def test_a_length_that_a_script_takes_away_cuts_no_row(tmp_path):
    """`own["max_length"] = None` is a value: rows are as long as the data says, and not as the file does."""
    (tmp_path / "own.yaml").write_text("sft: {rows: 2, max_length: 300}\n")
    text = """import yaml
from trl import SFTConfig, SFTTrainer
own = yaml.safe_load(open("own.yaml"))["sft"]
own["max_length"] = None
config = SFTConfig(per_device_train_batch_size=own["rows"], max_length=own["max_length"])
SFTTrainer("Qwen/Qwen2.5-0.5B", args=config).train()
"""
    assert facts_of(read(tmp_path, "train.py", text, "trl=1.16"))["trial"]["max_length"] != 300


@pytest.mark.parametrize(
    ("arguments", "opened"),
    [
        ("**kw", ["lora_rank", "lora_target_modules"]),
        ("r=4, **kw", ["lora_target_modules"]),
        ("**kw, r=4, target_modules=['q_proj']", []),
    ],
)
def test_what_a_mapping_may_say_of_an_adapter_is_asked_for(tmp_path, capsys, arguments, opened):
    text = f"""
import json
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
kw = json.load(open("lora.json"))
args = SFTConfig(output_dir="o", max_length=1024, per_device_train_batch_size=2)
SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args, train_dataset=rows, peft_config=LoraConfig({arguments})).train()
"""
    main(list(read(tmp_path, "train.py", text, "trl=1.16")))
    said = re.search(r"elsewhere: ([\w, ]+)\.", " ".join(" ".join(capsys.readouterr()).split()))
    assert (said.group(1).split(", ") if said else []) == opened
