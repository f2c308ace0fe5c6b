"""Constructs of Python programs that decide what they say: mappings, modules, scopes, and classes."""

import json

import pytest
from rebuilt import facts_of, read

from profiler.domain.errors import EXIT_USAGE
from profiler.estimate.main import answer, main

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"


def both(folder, text, *words):
    """Return the trial of a script, and its notes as one text."""
    (folder / "train.py").write_text(text, encoding="utf-8")
    found = json.loads(answer([f"config={folder / 'train.py'}", "gpu=h100", *words, "format=json"]))
    return found["trial"], " ".join(found["notes"])


def refusal(folder, text, capsys, *words):
    (folder / "train.py").write_text(text, encoding="utf-8")
    assert main([f"config={folder / 'train.py'}", "gpu=h100", *words]) == EXIT_USAGE
    return capsys.readouterr().err


MAPPINGS = f"""
import argparse, torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=3)
parser.add_argument("--four", action="store_true")
given = parser.parse_args()
loading: dict = {{}}
if given.four:
    loading["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True)
else:
    loading["torch_dtype"] = torch.bfloat16
model = AutoModelForCausalLM.from_pretrained("{MODEL}", **loading)
training = {{"per_device_train_batch_size": given.rows, "output_dir": str(where()), "max_length": 512}}
training.update(packing=False, gradient_accumulation_steps=4)
MORE
SFTTrainer(model=model, args=SFTConfig(**training)).train()
"""


@pytest.mark.parametrize(
    ("more", "key", "value", "note"),
    [
        ("", "max_length", 512, "the defaults of --rows in what ** adds to SFTConfig"),
        ("training['max_length'] = 2 * training['max_length']", "max_length", 1024, ""),
        ("if given.four:\n    training['max_length'] = 64", "max_length", 512, ""),
        ("if large:\n    training['max_length'] = 64", "max_length", 1024, "max_length=1024 (line"),
        ("for key in keys:\n    training[key] = 1", "max_length", 512, "trl's defaults for what ** adds to SFTConfig"),
        ("training.pop('max_length')", "max_length", 1024, "max_length=1024 (line"),
    ],
)
def test_what_is_set_in_a_mapping_is_followed(tmp_path, more, key, value, note):
    """Of PocketFM-Research/MAGNET: types under a condition, and one entry that is no literal."""
    trial, notes = both(tmp_path, MAPPINGS.replace("MORE", more), "trl=1.16")
    assert (trial["dtype"], trial["per_device_train_batch_size"], trial["tuning"]) == ("bfloat16", 3, "full")
    assert (trial["gradient_accumulation_steps"], trial[key]) == (4, value)
    assert note in notes


def test_an_entry_of_the_users_file_may_be_set(tmp_path):
    (tmp_path / "own.yaml").write_text("sampling: {group: 8, rows: 8}\n")
    text = f"""import yaml
from trl import GRPOConfig, GRPOTrainer
job = yaml.safe_load(open("own.yaml"))
job["sampling"]["group"] = 4
if fast:
    job["sampling"]["rows"] = 2
args = GRPOConfig(num_generations=job["sampling"]["group"], per_device_train_batch_size=job["sampling"]["rows"])
GRPOTrainer("{MODEL}", args=args).train()
"""
    trial, notes = both(tmp_path, text, "trl=1.16")
    assert (trial["num_generations"], trial["per_device_train_batch_size"]) == (4, 8)
    assert "which line 6 may set" in notes


SETTINGS = """import os
def on(name, default="0"):
    return os.environ.get(name, default).strip().lower() in ("1", "yes")
if on("QUICK"):
    BASE = "Qwen/Qwen2.5-0.5B"
else:
    BASE = os.environ.get("BASE", "Qwen/Qwen2.5-1.5B")
GROUP = int(os.environ.get("GROUP", "4"))
ROWS = GROUP * 2
"""


@pytest.mark.parametrize(("how", "name"), [("import settings", "settings"), ("from parts import settings as s", "s")])
def test_a_module_is_read_by_its_name(tmp_path, how, name):
    """Of dasanindya/wordle-grpo: `config.NAME`, with values of the environment under a condition."""
    folder = tmp_path / "parts" if "from" in how else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "settings.py").write_text(SETTINGS)
    text = f"""{how}
from trl import GRPOConfig, GRPOTrainer
ROWS = 1
args = GRPOConfig(num_generations={name}.GROUP, per_device_train_batch_size={name}.ROWS)
GRPOTrainer({name}.BASE, args=args).train()
"""
    trial, _ = both(tmp_path, text, "trl=1.16")
    assert (trial["model"], trial["num_generations"], trial["per_device_train_batch_size"]) == ("qwen2.5-1.5b", 4, 8)


def test_a_name_that_two_modules_import_is_known_in_both(tmp_path):
    """Of slavadubrov/unsloth-finetune-demo: the length of rows, for the model and for its trainer."""
    (tmp_path / "sizes.py").write_text(f"ROWS = 3\nMOST = 2 * 256\nBASE = '{MODEL}'\n")
    (tmp_path / "parts.py").write_text("from sizes import MOST, ROWS\n\ndef rows():\n    return ROWS if MOST else 1\n")
    text = """from parts import rows
from sizes import BASE, MOST
from trl import SFTConfig, SFTTrainer
SFTTrainer(BASE, args=SFTConfig(max_length=MOST, per_device_train_batch_size=rows())).train()
"""
    trial, _ = both(tmp_path, text, "trl=1.16")
    assert (trial["model"], trial["max_length"], trial["per_device_train_batch_size"]) == ("qwen2.5-0.5b", 512, 3)


def test_classes_of_trl_by_other_names(tmp_path):
    """Of ASSERT-KTH/CodeRepairRL, whose own class has the name of trl's."""
    text = f"""from dataclasses import dataclass
from trl import GRPOConfig as Theirs, GRPOTrainer as Trainer
@dataclass
class GRPOConfig:
    num_generations: int = 2
Trainer("{MODEL}", args=Theirs(num_generations=4, per_device_train_batch_size=4)).train()
"""
    assert both(tmp_path, text, "trl=1.16")[0]["num_generations"] == 4


@pytest.mark.parametrize("where", ["here", "module"])
def test_a_class_with_the_name_of_trls_is_none(tmp_path, capsys, where):
    """Of EchoseChen/SPA-VL-RLHF: a reward model with a head of its own, and nothing of trl."""
    own = "class RewardConfig:\n    def __init__(self, backbone):\n        self.backbone = backbone\n"
    (tmp_path / "heads.py").write_text(own)
    text = f"""from transformers import HfArgumentParser, TrainingArguments
{own if where == "here" else "from heads import RewardConfig"}
(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
config = RewardConfig(backbone="{MODEL}")
RewardModelTrainer(model=make(config), args=args).train()
"""
    assert "calls none of GRPOConfig" in refusal(tmp_path, text, capsys, "model=qwen2.5-0.5b")


def test_trls_arguments_in_a_trainer_of_transformers_are_refused(tmp_path, capsys):
    """Of miraliahmadli/hate_speech_detection_using_llm: a classifier, whose logits are two per row."""
    text = (
        f"from transformers import Trainer\nfrom trl import SFTConfig\nTrainer('{MODEL}', args=SFTConfig()).train()\n"
    )
    assert "gives SFTConfig to Trainer (line 3 of train.py)" in refusal(tmp_path, text, capsys)


def test_variables_of_two_functions_are_two(tmp_path):
    """Of Chaser-byy/game24-grpo, whose judge loads a model, and kshahmir49/LLM-Post-Training, with a loader."""
    loads = "    model = AutoModelForCausalLM.from_pretrained(path, torch_dtype='auto')\n"
    (tmp_path / "judge.py").write_text(f"def judge(path):\n{loads}    return model\n")
    text = f"""from judge import judge
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
def load(name, rows=1):
    return AutoModelForCausalLM.from_pretrained(name, torch_dtype="float32")
def main():
    name, rows = "{MODEL}", 6
    model = load(name, rows=8)
    SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=rows)).train()
    judge("out")
main()
"""
    trial, _ = both(tmp_path, text, "trl=1.16")
    assert (trial["model"], trial["dtype"], trial["per_device_train_batch_size"]) == ("qwen2.5-0.5b", "float32", 6)


QUANTISED = f"""
from peft import prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser, get_quantization_config
args, model_args = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()
loading = dict(torch_dtype="bfloat16", quantization_config=MAKES)
if model_args.load_in_4bit:
    loading["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained("{MODEL}", **loading)
if ASKS:
    model = prepare_model_for_kbit_training(model)
args.per_device_train_batch_size = 4
SFTTrainer(model=model, args=args).train()
"""


@pytest.mark.parametrize(
    ("makes", "asks", "dtype"),
    [
        ("None", "unknown()", "bfloat16"),
        ("get_quantization_config(model_args) if model_args.use_peft else None", "loading['quantization_config']", ""),
        ("None", "True", "float32"),
    ],
)
def test_what_quantises_nothing_prepares_nothing(tmp_path, makes, asks, dtype):
    """Of kilian-group/phantom-reasoning and abenechehab/rlft4rl."""
    trial, notes = both(tmp_path, QUANTISED.replace("MAKES", makes).replace("ASKS", asks), "trl=1.16")
    assert (trial["tuning"], trial["dtype"]) == ("full", dtype or "bfloat16")
    assert ("casts all weights" in notes) is (dtype == "float32")


@pytest.mark.parametrize(("release", "dtype"), [("0.20", "float32"), ("0.27", "bfloat16"), ("1.16", "bfloat16")])
def test_a_type_that_is_not_stated_is_that_of_the_time(tmp_path, release, dtype):
    """Of HCY123902/HAPO: transformers 4 makes float32 of weights that are loaded without a type."""
    text = f"""from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
model = AutoModelForCausalLM.from_pretrained("{MODEL}"LOADED)
GRPOTrainer(model, args=GRPOConfig(num_generations=8, per_device_train_batch_size=8)).train()
"""
    assert both(tmp_path, text.replace("LOADED", ""), f"trl={release}")[0]["dtype"] == dtype
    quantised = text.replace("LOADED", ", load_in_8bit=False, torch_dtype='auto'")
    assert both(tmp_path, quantised, f"trl={release}")[0]["dtype"] == "bfloat16"
    notes = both(tmp_path, text.replace("LOADED", ""))[1]
    assert "dtype=float32 (trl 0.14 to 0.26) or bfloat16 (trl 0.27 to 1.16): transformers 4 loads" in notes


def test_completions_get_what_prompts_leave(tmp_path):
    """Of MarwanMashra/contexto-champion, as notebooks of Unsloth have it: the longest prompt is measured first."""
    text = f"""from trl import GRPOConfig, GRPOTrainer
longest = measured() + 1
args = GRPOConfig(max_completion_length=2048 - longest, max_prompt_length=longest)
GRPOTrainer("{MODEL}", args=args).train()
"""
    trial, notes = both(tmp_path, text, "trl=1.16")
    assert trial["max_completion_length"] == 2048 - 256
    assert "(line 3 of train.py has 2048 less max_prompt_length)" in notes


def test_modules_that_a_model_does_not_have_are_passed(tmp_path, capsys):
    """Of sorourf/LLM-Alignment: names of several families in one list, of which peft asks for one."""
    text = f"""from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
GRPOTrainer("{MODEL}", args=GRPOConfig(), peft_config=LoraConfig(target_modules=["q_proj", "dense"])).train()
"""
    trial, notes = both(tmp_path, text, "trl=1.16")
    assert trial["lora_target_modules"] == ["q_proj"]
    assert "has no dense, which peft passes" in notes
    none = text.replace('"q_proj", ', "")
    assert "lora_target_modules=dense" in refusal(tmp_path, none, capsys)
    assert "dense" in refusal(tmp_path, text, capsys, "lora_target_modules=[q_proj,dense]")


def test_a_method_of_its_own_may_need_other_memory(tmp_path):
    text = f"""from trl import GRPOConfig, GRPOTrainer
class Ours(GRPOTrainer):
    def compute_loss(self, model, inputs):
        BODY
Ours("{MODEL}", args=GRPOConfig(num_generations=8)).train()
"""
    own = both(tmp_path, text.replace("BODY", "return model(inputs).logits.mean()"))[1]
    assert "compute_loss of Ours, which replaces that of GRPOTrainer (line 3 of train.py)" in own
    assert "replaces" not in both(tmp_path, text.replace("BODY", "return super().compute_loss(model, inputs)"))[1]


def test_a_folder_of_a_model_may_be_made_of_parts(tmp_path):
    """Of HaoranLuo/text2sql-grpo: a path below the folder of the script."""
    text = """import os
from pathlib import Path
from trl import GRPOConfig, GRPOTrainer
ROOT = Path(__file__).resolve().parent
GRPOTrainer(str(MODEL), args=GRPOConfig()).train()
"""
    for model in ('ROOT / "models" / "Qwen2.5-1.5B"', 'os.path.join(ROOT, "models", "Qwen2.5-1.5B")'):
        assert both(tmp_path, text.replace("MODEL", model))[0]["model"] == "qwen2.5-1.5b"


@pytest.mark.parametrize(
    ("starts", "rows"), [("", 6), ("fire.Fire(train)", 6), ("train(rows=4)", 4), ("each(train)", 8)]
)
def test_parameters_of_a_function_that_the_file_does_not_call(tmp_path, starts, rows):
    """Of stefanocarrera7/autophagy_code: another file calls it."""
    text = f"""import fire
from trl import SFTConfig, SFTTrainer
class Unused:
    def __init__(self, rows=2):
        self.rows = rows
def train(rows: int = 6):
    SFTTrainer("{MODEL}", args=SFTConfig(per_device_train_batch_size=rows, max_length=64)).train()
{starts}
"""
    trial, notes = both(tmp_path, text, "trl=1.16")
    assert trial["per_device_train_batch_size"] == rows
    said = "the default of --rows" if "Fire" in starts else "the default of rows of train"
    assert (said in notes) is (rows == 6)


@pytest.mark.parametrize(
    ("parameter", "before", "is_refused"),
    [
        ("model", "", True),
        ("policy, *, rows=2", "", True),
        ("model: str", "", False),
        ("model_name", "", False),
        (f"model='{MODEL}'", "", False),
        ("model", "from peft import LoraConfig\nadapter = LoraConfig(r=8)", False),
    ],
)
def test_a_model_that_a_function_gets_may_have_an_adapter(tmp_path, capsys, parameter, before, is_refused):
    """Of slavadubrov/unsloth-finetune-demo: its trainer is in a module, and its model in another one."""
    name = parameter.partition(":")[0].partition(",")[0].partition("=")[0]
    text = f"""from trl import SFTConfig, SFTTrainer
{before}
def train({parameter}):
    SFTTrainer(model={name}, args=SFTConfig(max_length=64)).train()
"""
    (tmp_path / "train.py").write_text(text)
    words = [f"config={tmp_path / 'train.py'}", "model=qwen2.5-0.5b", "gpu=h100"]
    assert main(words) == (EXIT_USAGE if is_refused else 0)
    assert ("is that of the adapter of the model that line 4 of train.py gets" in capsys.readouterr().err) is is_refused
    assert main([*words, "tuning=full"]) == 0


def test_the_trainers_arguments_count_next_to_others(tmp_path):
    """Of Bensonluo/4bit-QLoRA-post-training: a configuration for `beta`, and the arguments of transformers."""
    text = f"""from transformers import TrainingArguments
from trl import DPOConfig, DPOTrainer
settings = DPOConfig(beta=0.3, max_length=640)
args = TrainingArguments(per_device_train_batch_size=3)
DPOTrainer("{MODEL}", args=args, beta=settings.beta).train()
"""
    trial, _ = both(tmp_path, text, "trl=1.16")
    assert (trial["per_device_train_batch_size"], trial["max_length"]) == (3, 640)


OWN_TRAINER = """from trl import GRPOConfig
from ours.intuition import IntuitionTrainer
args = GRPOConfig(per_device_train_batch_size=8, num_generations=8, max_completion_length=64)
IntuitionTrainer(model="Qwen/Qwen2.5-0.5B", args=args).train()
"""


def test_a_trainer_with_a_name_of_its_own_is_named_or_refused(tmp_path, capsys):
    """Of newshawn/VIGOR: it derives from transformers' Trainer, and makes logits that trl's does not."""
    words = read(tmp_path, "train.py", OWN_TRAINER, "trl=1.16")
    assert "IntuitionTrainer of ours.intuition as trl's (that module may change it)" in " ".join(
        facts_of(words)["notes"]
    )
    (tmp_path / "ours").mkdir()
    module = tmp_path / "ours" / "intuition.py"
    module.write_text("class IntuitionTrainer(Trainer):\n    pass\n", encoding="utf-8")
    assert main(list(words)) == EXIT_USAGE
    assert "gives GRPOConfig to IntuitionTrainer (line 4 of train.py), which is no trainer" in capsys.readouterr().err
    module.write_text("class IntuitionTrainer(Own):\n    pass\n", encoding="utf-8")
    assert main(list(words)) == EXIT_USAGE
    assert "trains by a class IntuitionTrainer of its own" in capsys.readouterr().err
    module.write_text("class IntuitionTrainer(GRPOTrainer):\n    pass\n", encoding="utf-8")
    assert facts_of(words)["trial"]["num_generations"] == 8


@pytest.mark.parametrize(
    ("more", "tokens"), [("beta: 0.1\nmax_length: 256\n", 128), ("max_length: 256\n", None), ("beta: 0.1\n", 256)]
)
def test_short_rows_of_two_parts_are_half_a_prompt(tmp_path, more, tokens):
    """Rows of 256 tokens had no room for what follows a prompt of 256, and were refused; SFT has no prompts."""
    name = "dpo.yaml" if tokens else "sft.yaml"
    found = facts_of(read(tmp_path, name, f"model_name_or_path: {MODEL}\n{more}", "trl=1.16"))
    assert tokens is None or found["trial"]["max_prompt_length"] == tokens
    assert (f"max_prompt_length={tokens} (give that of your data)" in " ".join(found["notes"])) is (tokens is not None)
