"""Constructs of files in public repositories that were read for the first time: weights, references, other verls."""

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
