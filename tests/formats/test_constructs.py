"""Constructs of files in public repositories that decide what runs: branches, own trainers, other models."""

import json

import pytest
from rebuilt import HERE, OPTIONS, facts_of, read

from profiler.domain.errors import EXIT_USAGE
from profiler.estimate.main import answer, main

KEPT = json.loads((HERE / "constructs.json").read_text(encoding="utf-8"))

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"

IMPORTS = {
    None: "from trl import GRPOTrainer",
    "transformers": "from transformers import Trainer\n\nclass GRPOTrainer(Trainer):\n    pass\n",
    "module": "from pruned_trainer import GRPOTrainer",
}
"""Where a script has its trainer from."""


def script_of(case):
    """Return a script with the constructs of a case."""
    lines = ["import torch", "from trl import GRPOConfig", IMPORTS[case.get("own_trainer")]]
    lines += ["from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training"]
    lines += ["from transformers import AutoModelForCausalLM"]
    model = repr(MODEL)
    if "branched" in case:
        lines += ["if torch.cuda.is_available() and torch.cuda.is_bf16_supported():"]
        lines += [f"    kind = {case['branched']['bfloat16']}", "else:", f"    kind = {case['branched']['else']}"]
        lines += [f"model = AutoModelForCausalLM.from_pretrained({model}, torch_dtype=kind)"]
        model = "model"
    if case.get("prepared"):
        lines += ["model = prepare_model_for_kbit_training(model)"]
        lines += ["model = get_peft_model(model, LoraConfig(r=16))"]
    arguments = ", ".join(f"{key}={value}" for key, value in case["config"].items())
    lines += [f"arguments = GRPOConfig({arguments})", f"GRPOTrainer(model={model}, args=arguments).train()"]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("case", KEPT["scripts"], ids=lambda case: case["repository"])
def test_a_script_is_read_as_it_runs(case, tmp_path, capsys):
    words = read(tmp_path, "train.py", script_of(case))
    if "refused" in case:
        assert main(list(words)) == EXIT_USAGE
        assert case["refused"] in capsys.readouterr().err
        return
    found = facts_of((*words, "trl=1.16"))
    assert {key: found["trial"].get(key) for key in case["trial"]} == case["trial"]
    notes = " ".join(found["notes"])
    assert [each for each in case["notes"] if each not in notes] == []


@pytest.mark.parametrize("case", KEPT["verl"], ids=lambda case: case["repository"])
def test_a_fork_of_verl_has_what_it_adds_named(case, tmp_path):
    overrides = " \\\n    ".join(f"{key}={value}" for key, value in case["keys"].items())
    words = read(tmp_path, "run.sh", f"python3 -m verl.trainer.main_ppo \\\n    {overrides}\n")
    text = " ".join(answer(list(words)).split())
    assert ("Not decided" in text) is bool(case["undecided"])
    assert [each for each in (*case["undecided"], *case.get("notes", ())) if each not in text] == []


YAML = f"""
model_name_or_path: {MODEL}
torch_dtype: bfloat16
use_vllm: true
num_generations: 8
per_device_train_batch_size: 8
max_completion_length: 64
"""


@pytest.mark.parametrize(
    ("stated", "release", "mode", "part"),
    [
        ("vllm_device: cuda:0", "0.15", "colocate", 0.9),
        ("vllm_device: cuda:0\nvllm_gpu_memory_utilization: 0.3", "0.15", "colocate", 0.3),
        ("vllm_device: cuda:0", "0.16", "server", None),
        ("vllm_device: cuda:1", "0.15", "server", None),
        ("vllm_device: auto", "0.15", "server", None),
    ],
)
def test_the_first_card_is_shared_with_the_engine(stated, release, mode, part, tmp_path):
    found = facts_of(read(tmp_path, "grpo.yaml", f"{YAML}{stated}\n", f"trl={release}"))["trial"]
    assert (found["vllm_mode"], found.get("vllm_gpu_memory_utilization")) == (mode, part)


def test_a_stated_part_of_the_engines_own_card_is_named(tmp_path):
    text = f"{YAML}vllm_device: auto\nvllm_gpu_memory_utilization: 0.7\n"
    notes = " ".join(facts_of(read(tmp_path, "grpo.yaml", text))["notes"])
    assert "the engine takes 0.7 of its card, by vllm_gpu_memory_utilization (trl 0.14 to 0.15)" in notes
    assert "of its card, by" not in " ".join(facts_of(read(tmp_path, "grpo.yaml", text, "trl=0.17"))["notes"])


OWN = """
model: {name: Qwen/Qwen2.5-0.5B-Instruct}
training: {per_device_train_batch_size: 8, max_seq_length: 512, bf16: true, max_completion_length: 64}
"""


def test_another_name_of_a_stated_key_is_settled_by_it(tmp_path, capsys):
    same = OWN.replace("bf16", "num_generations: 8, group_size: 8, bf16")
    assert facts_of(read(tmp_path, "own.yaml", same))["trial"]["num_generations"] == 8
    assert main(list(read(tmp_path, "own.yaml", same.replace("group_size: 8", "group_size: 4")))) == EXIT_USAGE
    assert "num_generations=4: is training.group_size" in capsys.readouterr().err


def test_deepspeed_by_a_name_of_the_users_own_is_asked_for(tmp_path, capsys):
    text = f"{OWN}distributed: {{strategy: deepspeed_stage_3, offload_optimizer: true, offload_param: false}}\n"
    assert main(list(read(tmp_path, "grpo_config.yaml", text))) == EXIT_USAGE
    said_so = capsys.readouterr().err
    assert "zero_stage=deepspeed_stage_3: is distributed.strategy" in said_so
    assert "offload_optimizer_device=true: is distributed.offload_optimizer" in said_so
    assert "offload_param" not in said_so.partition("zero_stage=")[2]


def test_the_name_of_an_own_file_says_what_it_trains(tmp_path):
    found = facts_of(read(tmp_path, "grpo_config.yaml", OWN.replace(", max_completion_length: 64", "")))
    assert found["trial"]["recipe"] == "grpo"
    assert "recipe=grpo (by the names in grpo_config.yaml)" in " ".join(found["notes"])


def test_a_gguf_type_is_no_quantisation_of_the_training(tmp_path):
    text = f"{OWN}model_saving: {{quantization_method_gguf: [f16, q8_0]}}\n"
    assert facts_of(read(tmp_path, "grpo_own.yaml", text))["trial"]["tuning"] == "full"


def refusal(folder, name, text, capsys, *words):
    assert main(list(read(folder, name, text, *words))) == EXIT_USAGE
    return capsys.readouterr().err


def test_a_key_of_an_earlier_trainer_is_asked_for(tmp_path, capsys):
    """`kl_coef`, of v-papageorgiou/mini-reasoning: a key of RLOO once, and the user's name of `beta` here."""
    said_so = refusal(tmp_path, "grpo.yaml", f"{YAML}kl_coef: 0.05\n", capsys)
    assert "beta=0.05: is kl_coef in grpo.yaml, and trl's key is beta" in said_so
    assert (
        facts_of(read(tmp_path, "grpo.yaml", f"{YAML}kl_coef: 0.05\n", "beta=0.05", "trl=1.16"))["trial"]["beta"]
        == 0.05
    )


def test_a_script_is_read_as_called_without_options(tmp_path):
    """Of lintangsutawika/sp3f: an option that is not given leaves the default of the script, not that of verl."""
    text = " ".join(answer(list(read(tmp_path, "run.sh", OPTIONS))).split())
    assert "Not possible" not in text
    assert "rollout.n (run.sh" not in text


def test_a_fork_may_have_another_rule_than_verl(tmp_path):
    """Of cx9941/CriticSearch: fewer rows than a mini-batch, and `n_agent`, which verl does not have."""
    few = OPTIONS.replace("train_batch_size=32", "train_batch_size=8")
    assert "Not possible: verl refuses" in answer(list(read(tmp_path, "run.sh", few)))
    fork = few.replace("algorithm.adv", "actor_rollout_ref.rollout.n_agent=5 algorithm.adv")
    text = " ".join(answer(list(read(tmp_path, "run.sh", fork))).split())
    assert "what this fork of verl makes of a job that verl refuses (data.train_batch_size=8 is less" in text


IN_A_DICTIONARY = f"""
from peft import PeftModel
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

def load(path):
    model = AutoModelForCausalLM.from_pretrained("{MODEL}", torch_dtype="auto")
    return PeftModel.from_pretrained(model, path, is_trainable=True)

args = DPOConfig(per_device_train_batch_size=1, max_length=1024)
common = {{"model": load("./sft"), "args": args}}
try:
    trainer = DPOTrainer(processing_class=tokenizer, **common)
except TypeError:
    trainer = DPOTrainer(tokenizer=tokenizer, **common)
"""


def test_a_call_for_an_older_release_is_one_of_two(tmp_path, capsys):
    """Of SailVR/Qwen-Credit-LoRA-DPO, which also passes its adapter on in a dictionary."""
    said_so = refusal(tmp_path, "train.py", IN_A_DICTIONARY, capsys, "trl=1.16")
    assert "tokenizer" not in said_so
    assert "tuning=null: is that of the adapter which line 8 of train.py loads" in said_so
    alone = IN_A_DICTIONARY.replace("processing_class=", "tokenizer=")
    assert "tokenizer=line" in refusal(tmp_path, "train.py", alone, capsys)
    adapter = ("tuning=lora", "lora_rank=16", "lora_target_modules=[q_proj]")
    stated = facts_of(read(tmp_path, "train.py", alone, *adapter, "trl=1.16"))
    assert "trl 1.16 as stated, although line 15 gives tokenizer to the trainer" in " ".join(stated["notes"])


FACTORY = "stage: sft\nfinetuning_type: lora\nlora_target: all\ntemplate: qwen\ncutoff_len: 512\nquantization_bit: 4\n"


def test_what_a_file_says_wrongly_is_said_once(tmp_path, capsys):
    """Of MountainChenCad/SEAS: float16 over 4 bits, and a key that LLaMA-Factory does not have."""
    text = f"model_name_or_path: {MODEL}\nmodel_type: qwen2\nfp16: true\nbf16: false\ndo_train: true\n{FACTORY}"
    said_so = refusal(tmp_path, "sft.yaml", text, capsys)
    assert said_so.count("fp16=true") == 1
    assert "model_type in" not in said_so


def test_the_launch_of_an_own_file_settles_its_type(tmp_path, capsys):
    """Of OpenEuroLLM/post-training: `mixed_precision` is accelerate's, next to the `dtype` of the weights."""
    text = f"{OWN}accelerate: {{mixed_precision: bf16}}\n"
    assert facts_of(read(tmp_path, "grpo_own.yaml", text))["trial"]["bf16"] is True
    assert "mixed_precision=fp16: of" in refusal(tmp_path, "grpo_own.yaml", text.replace("n: bf16", "n: fp16"), capsys)


def test_one_gpu_is_an_assumption_of_every_trainer(tmp_path):
    """Of RH-MikkelWerling/tabtoreason: a recipe of SFT that its repository starts on eight GPUs."""
    text = f"model_name_or_path: {MODEL}\ndtype: bfloat16\nmax_length: 1024\npacking: true\n"
    notes = " ".join(facts_of(read(tmp_path, "sft.yaml", text, "recipe=sft"))["notes"])
    assert "num_processes=1 (not stated in a file of trl)" in notes
    assert "num_processes" not in " ".join(facts_of(read(tmp_path, "sft.yaml", text, "num_processes=2"))["notes"])


def test_preferences_with_images_are_refused_as_such(tmp_path, capsys):
    text = "model_name_or_path: Qwen/Qwen2.5-VL-3B-Instruct\nmax_length: 1024\nper_device_train_batch_size: 2\n"
    for recipe in ("dpo", "kto"):
        said_so = refusal(tmp_path, "files.yaml", text, capsys, f"recipe={recipe}", "trl=1.16")
        assert f"recipe={recipe}: has no closed-form estimate with a model that sees images" in said_so
        assert "max_prompt_length" not in said_so


def test_what_is_set_under_a_condition_is_named_with_its_line(tmp_path):
    text = """import os
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(per_device_train_batch_size=8, num_generations=8, max_completion_length=64)
if os.environ.get("WIDE"):
    args.per_device_train_batch_size = 16
    args.gradient_checkpointing = False
GRPOTrainer("Qwen/Qwen2.5-0.5B", args=args).train()
"""
    found = facts_of(read(tmp_path, "train.py", text, "trl=1.16"))
    notes = " ".join(found["notes"])
    assert found["trial"]["per_device_train_batch_size"] == 8
    assert "per_device_train_batch_size=8 (line 5 of train.py may change it)" in notes
    assert "gradient_checkpointing=false (line 6 of train.py sets it under a condition that is not known)" in notes


# ---- lines, and the scripts that they start ------------------------------------------------------------------------

OWN_ARGUMENTS = """from trl import TrlParser, get_peft_config
from arguments import OwnArguments
from own_trainer import GRPOTrainer

def main():
    training_args, = TrlParser((OwnArguments,)).parse_args_and_config()
    GRPOTrainer(model="Qwen/Qwen2.5-0.5B", args=training_args).train()
"""

LINE = (
    "accelerate launch --num_processes 1 src/run.py --num_generations 7 --per_device_train_batch_size 7 --bf16 True\n"
)


def started(folder, line, **files):
    (folder / "src").mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / "src" / f"{name}.py").write_text(text, encoding="utf-8")
    return read(folder, "run.sh", f"#!/bin/bash\n{line}")


def test_a_parsed_class_that_is_not_here_takes_the_line(tmp_path):
    """Of yflyzhang/simpleR1: arguments of trl's names in a class of the user's own module."""
    found = facts_of((*started(tmp_path, LINE, run=OWN_ARGUMENTS), "trl=1.16"))
    assert (found["trial"]["num_generations"], found["trial"]["per_device_train_batch_size"]) == (7, 7)
    notes = " ".join(found["notes"])
    assert "OwnArguments of arguments as trl's (that module may change it)" in notes
    assert "GRPOTrainer of own_trainer as trl's (that module may change it)" in notes


def test_modules_are_looked_for_next_to_a_started_script(tmp_path, capsys):
    own = "from transformers import Trainer\n\nclass GRPOTrainer(Trainer):\n    pass\n"
    assert main(list(started(tmp_path, LINE, run=OWN_ARGUMENTS, own_trainer=own))) == EXIT_USAGE
    assert "trains by a class GRPOTrainer of its own (line 3 of own_trainer.py)" in capsys.readouterr().err


PLAIN = "model_name_or_path: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 8\nbf16: true\n"


@pytest.mark.parametrize(
    ("name", "more", "words", "is_assumed"),
    [
        ("train.yaml", "", (), True),
        ("train.yaml", "num_generations: 8\n", (), False),
        ("train.yaml", "max_length: 512\n", (), False),
        ("train.yaml", "", ("recipe=sft",), False),
        ("sft.yaml", "", (), False),
    ],
)
def test_a_trainer_that_no_key_states_is_assumed(tmp_path, name, more, words, is_assumed):
    notes = facts_of((*read(tmp_path, name, PLAIN + more, "trl=1.16"), *words))["notes"]
    assert ("recipe=grpo (no key of the file is of one trainer alone)" in " ".join(notes)) is is_assumed


BY_FIRE = """import fire
from trl import GRPOConfig, GRPOTrainer

def configured(**kwargs):
    print(kwargs)
    return GRPOConfig(**kwargs)

def train(model: str = "Qwen/Qwen2.5-0.5B", /, rows: int = 32, beams: int = 16, optim: str = "sgd", *, beta=0.0):
    args = configured(per_device_train_batch_size=rows, num_generations=beams, optim=optim, beta=beta, bf16=True)
    model = load(model)
    GRPOTrainer(model=model, args=args).train()

fire.Fire(train)
"""


def test_what_fire_passes_is_read(tmp_path):
    """Of cocoshe/MIMIGenRec: options of a function, which it passes on as keywords to a function of its own."""
    line = "python src/run.py --rows 64 --beams=8 --optim adamw_torch --beta 1e-3\n"
    keys = ("per_device_train_batch_size", "num_generations", "optim", "beta")
    words = (*started(tmp_path, line, run=BY_FIRE), "model=qwen2.5-0.5b", "trl=1.16")
    assert [facts_of(words)["trial"][key] for key in keys] == [64, 8, "adamw_torch", 0.001]
    alone = read(tmp_path, "run.py", BY_FIRE.replace("sgd", "adamw_8bit"), "model=qwen2.5-0.5b", "trl=1.16")
    assert [facts_of(alone)["trial"][key] for key in keys] == [32, 16, "adamw_8bit", 0.0]


def test_a_line_that_is_shown_is_not_started(tmp_path):
    """Of spapicchio/Think2SQL: an array that a function of a log gets first. A note in backquotes is no argument."""
    array = "CMD=(trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B --num_generations 4 `# few` --bf16)\n"
    text = f'{array}log "Script: ${{CMD[*]}}" "$ID"\nshow "Running now: trl grpo --num_generations 8"\n"${{CMD[@]}}"\n'
    found = facts_of(read(tmp_path, "run.sh", text, "trl=1.16"))
    assert found["trial"]["num_generations"] == 4
    assert "passes on as" not in " ".join(found["notes"])


SWIFT = "--rlhf_type grpo --model Qwen/Qwen2.5-0.5B --tuner_type lora --lora_rank 64 --per_device_train_batch_size 8 "


@pytest.mark.parametrize(
    "start",
    [
        "F=$(python -c 'import swift; print(swift.__path__[0] + \"/cli/rlhf.py\")')\n"
        'python -m torch.distributed.run --nproc_per_node 2 "$F"',
        "torchrun --nproc_per_node=2 $(python -c 'import swift; print(swift.__path__[0])')/cli/rlhf.py",
        "NPROC_PER_NODE=2 python -m swift.cli.rlhf",
        "torchrun --nproc_per_node 2 ms-swift/swift/cli/rlhf.py",
    ],
)
def test_a_file_of_ms_swift_is_its_command(start, tmp_path):
    """Of cmyandlqs/grpo_qwen2.5 and UEC-InabaLab/IncrementalRLForSpokenDST."""
    trial = facts_of(read(tmp_path, "run.sh", f"{start} {SWIFT} --num_generations 4\n"))["trial"]
    assert (trial["recipe"], trial["lora_rank"], trial["num_generations"], trial["num_processes"]) == ("grpo", 64, 4, 2)


# ---- values that a program or a release has by default --------------------------------------------------------------

GPT_OSS = {
    "sft.sh": "swift sft --model openai-mirror/gpt-oss-20b --train_type lora --max_length 512\n",
    "a.yaml": "base_model: openai/gpt-oss-20b\nsequence_len: 512\nadapter: lora\nlora_r: 8\nlora_alpha: 16\n"
    "lora_target_linear: true\n",
}


@pytest.mark.parametrize("name", GPT_OSS)
def test_an_attention_not_stated_is_that_of_transformers(name, tmp_path):
    """Of TianCai19/ms-swift-notebook: transformers has no sdpa for the model, which the mirror has by another owner."""
    trial = facts_of(read(tmp_path, name, GPT_OSS[name]))["trial"]
    assert (trial["model"], trial["attn_implementation"]) == ("gpt-oss-20b", "eager")


def test_the_first_name_of_liger_counts_its_layers(tmp_path):
    """Of hanyin88/DRG-Sapphire: `use_liger` loads Liger's layers, or sets `use_liger_kernel`."""
    text = (
        f"model_name_or_path: {MODEL}\ntorch_dtype: bfloat16\nmax_seq_length: 1024\npacking: false\nuse_liger: true\n"
    )
    words = read(tmp_path, "sft.yaml", text)
    assert facts_of(words)["trial"]["use_liger_kernel"] is True
    assert facts_of(read(tmp_path, "sft.yaml", text.replace("liger: true", "liger: false")))["trial"][
        "use_liger_kernel"
    ] is (False)
    assert facts_of((*words, "use_liger_kernel=false"))["trial"]["use_liger_kernel"] is False


def test_names_of_an_own_file_that_mean_one_thing_are_read(tmp_path):
    """Of TranDuong874/qwen-mt-finetune: where it is uploaded says nothing of the adapter that is trained."""
    text = f"base_model: {MODEL}\ntraining: {{per_device_batch_size: 16, max_seq_length: 512, bf16: true}}\n"
    found = facts_of(read(tmp_path, "sft_own.yaml", f"{text}huggingface: {{push_adapter_only: true}}\n"))["trial"]
    assert (found["model"], found["per_device_train_batch_size"], found["tuning"]) == ("qwen2.5-0.5b", 16, "full")


def test_the_precision_of_accelerate_is_that_of_the_trainer(tmp_path):
    """Of youpengl/OpenVul: a line without `--bf16`, for a trl whose own default is false."""
    (tmp_path / "zero3.yaml").write_text(
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 2\ndeepspeed_config: {zero_stage: 3}\n"
    )
    sizes = "--num_generations 8"
    start = f"accelerate launch --config_file zero3.yaml grpo.py --model_name_or_path {MODEL} --torch_dtype bfloat16 "
    found = facts_of(read(tmp_path, "run.sh", f"{start}{sizes}\n", "trl=0.17"))
    assert (found["trial"]["bf16"], found["trial"]["zero_stage"]) == (True, 3)
    assert "bf16=true (mixed_precision of accelerate" in " ".join(found["notes"])
    stated = facts_of(read(tmp_path, "run.sh", f"{start}{sizes} --bf16 true\n", "trl=0.17"))
    assert "mixed_precision" not in " ".join(stated["notes"])
    plain = start.replace("zero3.yaml", "none.yaml")
    (tmp_path / "none.yaml").write_text("distributed_type: MULTI_GPU\nmixed_precision: 'no'\nnum_processes: 2\n")
    assert facts_of(read(tmp_path, "run.sh", f"{plain}{sizes}\n", "trl=0.17"))["trial"]["bf16"] is False
