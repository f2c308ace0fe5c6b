"""Scripts of Unsloth: the settings that its code makes effective, and bounds that are called so wherever shown."""

import json

import pytest

from profiler.advise.main import main as advise
from profiler.analytical.formulas.models.parameters import lora_parameter_count
from profiler.api.answers import estimate
from profiler.api.job import read_recipe
from profiler.config.models.lookup import builtin_architecture, builtin_of_folder
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_USAGE, UsageError
from profiler.domain.models.builtin_models import find_builtin
from profiler.estimate.main import main
from profiler.forecast.main import main as forecast
from profiler.solve.main import main as solve

START = """from unsloth import FastLanguageModel, is_bfloat16_supported
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from transformers import TrainingArguments
"""


@pytest.fixture
def script(tmp_path):
    def write(load="", adapt="", train="SFTConfig()", trainer="SFTTrainer", more="", before=""):
        lines = [
            before,
            f"model, tokenizer = FastLanguageModel.from_pretrained('unsloth/Qwen2.5-0.5B-bnb-4bit', {load})",
            f"model = FastLanguageModel.get_peft_model(model, {adapt})",
            f"arguments = {train}",
            f"{trainer}(model=model, args=arguments, {more}).train()",
        ]
        path = tmp_path / "train.py"
        path.write_text(START + "\n".join(lines) + "\n")
        return f"config={path}"

    return write


def _json(capsys, *words):
    assert main([*words, "gpu=h100", "format=json"]) == EXIT_OK
    return json.loads(capsys.readouterr().out)


def _trial(capsys, *words):
    return _json(capsys, *words)["trial"]


def _grpo(text=""):
    return {"train": f"GRPOConfig({text})", "trainer": "GRPOTrainer"}


def test_defaults_are_those_of_unsloth(script, capsys):
    trial = _trial(capsys, script())
    expected = {
        "model": "qwen2.5-0.5b",
        "recipe": "sft",
        "tuning": "qlora",
        "lora_rank": 16,
        "lora_dropout": 0.0,
        "lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        "max_length": 2048,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "optim": "adamw_8bit",
        "gradient_checkpointing": True,
        "bf16": True,
        "dtype": "bfloat16",
        "num_processes": 1,
    }
    assert {key: trial[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"train": "TrainingArguments()"}, {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}),
        ({"load": "max_seq_length=512"}, {"max_length": 512}),
        ({"load": "max_seq_length=512", "train": "SFTConfig(max_length=256)"}, {"max_length": 256}),
        ({"load": "max_seq_length=512", "train": "SFTConfig(max_length=600)"}, {"max_length": 512}),
        ({"train": "SFTConfig(max_length=1024)"}, {"max_length": 2048}),  # trl's default, so not stated
        ({"train": "SFTConfig(max_seq_length=300)"}, {"max_length": 300}),
        ({"more": "max_seq_length=4096"}, {"max_length": 2048}),
        ({"more": "packing=True"}, {"lengths": "forced"}),
        ({"train": "SFTConfig(padding_free=True)"}, {"lengths": "ragged"}),
        ({"adapt": "use_gradient_checkpointing=False"}, {"gradient_checkpointing": False}),
        ({"train": "SFTConfig(gradient_checkpointing=False)"}, {"gradient_checkpointing": True}),
        ({"train": "SFTConfig(fp16=not is_bfloat16_supported(), bf16=is_bfloat16_supported())"}, {"bf16": True}),
        ({"train": "SFTConfig(fp16=True, max_length=99)"}, {"bf16": True, "fp16": False, "dtype": "bfloat16"}),
        ({"load": "dtype=torch.float16"}, {"bf16": True, "dtype": "bfloat16"}),
        ({"train": "SFTConfig(bf16=False)"}, {"bf16": True}),
        (_grpo("num_generations=6"), {"per_device_train_batch_size": 6}),
        (_grpo("per_device_train_batch_size=2, gradient_accumulation_steps=4"), {"per_device_train_batch_size": 2}),
        (_grpo("per_device_train_batch_size=1, gradient_accumulation_steps=1"), {"per_device_train_batch_size": 8}),
        (_grpo("per_device_train_batch_size=1, steps_per_generation=8"), {"per_device_train_batch_size": 1}),
        (
            {"load": "fast_inference=True, max_seq_length=900", **_grpo("vllm_gpu_memory_utilization=0.2")},
            {"use_vllm": True, "vllm_gpu_memory_utilization": 0.5, "vllm_max_model_length": 900},
        ),
        (
            {
                "load": "fast_inference=True",
                "before": "import os\nos.environ['UNSLOTH_VLLM_STANDBY'] = '1'",
                **_grpo(),
            },
            {"vllm_enable_sleep_mode": True, "vllm_gpu_memory_utilization": 0.925},
        ),
    ],
)
def test_unsloth_decides_settings(script, capsys, parts, expected):
    trial = _trial(capsys, script(**parts))
    assert {key: trial[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"load": "load_in_4bit=False"},
            "load_in_4bit=false: of a checkpoint in 4 bits lets Unsloth choose another one",
        ),
        ({"load": "load_in_8bit=True"}, "load_in_8bit=true: changes the memory of Unsloth in a way that has no bound"),
        ({"load": "full_finetuning=True"}, "full_finetuning=true: changes the memory"),
        ({"load": "load_in_fp8='block'"}, "load_in_fp8=block: changes the memory"),
        ({"load": "brand_new=1"}, "brand_new=line 5: is an argument of Unsloth whose effect on memory is unknown here"),
        ({"load": "**settings()"}, "passes arguments to Unsloth by ** in line 5"),
        ({"load": "dtype='float32'"}, "dtype=float32: is a type whose memory with Unsloth has no bound here"),
        ({"adapt": "modules_to_save=['lm_head']"}, "lora_modules_to_save=[lm_head]: changes memory"),
        ({"adapt": "target_modules=['q_proj', 'embed_tokens']"}, "lora_modules_to_save=[embed_tokens]: changes memory"),
        ({"adapt": "layers_to_transform=[0, 1]"}, "layers_to_transform=[0,1]: changes the memory of Unsloth"),
        ({"adapt": "rank_pattern={'q_proj': 4}"}, "rank_pattern="),
        ({"train": "SFTConfig(loss_type='dft')"}, "loss_type=dft: is a loss of SFT whose memory with Unsloth has no"),
        (
            {"before": "def grow(model, tokens):\n    model.resize_token_embeddings(len(tokens))"},
            "resize_token_embeddings=line 5: grows the vocabulary",
        ),
        (
            {"before": "import os; os.environ['UNSLOTH_RETURN_LOGITS'] = '1'"},
            "UNSLOTH_RETURN_LOGITS=set: is a variable",
        ),
        (_grpo("use_vllm=True"), "use_vllm=true: without fast_inference=True is refused by Unsloth"),
        ({"load": "fast_inference=True"}, "fast_inference=true: makes an engine that keeps its part of the card"),
        (
            {"load": "fast_inference=True", **_grpo("vllm_importance_sampling_correction=True")},
            "makes Unsloth keep the logits of all tokens",
        ),
        (_grpo("eval_strategy='steps'"), "per_device_eval_batch_size=4: times num_processes=1 must be a multiple"),
    ],
)
def test_what_has_no_bound_is_refused_by_name(script, capsys, parts, said):
    assert main([script(**parts), "gpu=h100"]) == EXIT_USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["SKIP_STATISTICS", "DISABLE_AUTO_UPDATES", "DISABLE_FAST_GENERATION"])
def test_variables_for_downloads_and_logs_change_nothing(script, capsys, name):
    plain = _json(capsys, script())
    found = _json(capsys, script(before=f"import os; os.environ['UNSLOTH_{name}'] = '1'", load="enforce_eager=True"))
    assert found["bounds"] == plain["bounds"]


def test_a_chosen_checkpoint_may_have_layers_in_16_bits(script, capsys, tmp_path):
    plain = _json(capsys, script())
    path = tmp_path / "train.py"
    path.write_text(path.read_text().replace("-bnb-4bit", ""))
    chosen = _json(capsys, f"config={path}")
    assert chosen["trial"] == plain["trial"] and chosen["bounds"]["least_bytes"] == plain["bounds"]["least_bytes"]
    assert chosen["bounds"]["most_bytes"] - plain["bounds"]["most_bytes"] > 357_826_560
    assert "linear layers in 16 bits as an upper bound" in chosen["notes"][0]


def test_no_number_is_shown_that_is_not_called_a_bound(script, capsys):
    found = _json(capsys, script())
    assert found["peak_allocated_bytes"] is found["peak_reserved_bytes"] is found["peak_rule_bytes"] is None
    assert "phases" not in found and "host" not in found and found["phases_at_most"]
    assert {card["peak_allocated_bytes"] for card in found["gpus"]} == {None}
    assert found["bounds"].keys() == {"least_bytes", "most_bytes", "text"}
    assert main([script(), "gpu=h100", "details=true"]) == EXIT_OK
    text = " ".join(capsys.readouterr().out.split())
    assert "Fits: at most " in text and "Upper bounds, GiB" in text and "has bounds only: at least 0.5 GiB" in text
    assert "Estimated" not in text and "rule of thumb" not in text


def test_between_the_bounds_nothing_is_decided(script, capsys):
    words = [script(train="SFTConfig(per_device_train_batch_size=32)"), "gpu=t4"]
    assert main(words) == EXIT_OK
    text = " ".join(capsys.readouterr().out.split())
    assert (
        text.startswith("Not decided: it needs at least 0.6 GiB and at most ")
        and "t4-16gb" in text.partition("not decided on ")[2]
    )
    assert main([*words, "fail_if=tight"]) == EXIT_ANSWER_IS_NO


def test_the_api_has_both_bounds(script):
    job = read_recipe(script().removeprefix("config="))
    found = estimate(job, gpu="h100")
    assert found.bounds is not None and found.host is None
    assert found.bounds.most_bytes == found.peak_allocated_bytes > found.bounds.least_bytes
    assert found.card is not None and found.card.needed.least_bytes == found.bounds.least_bytes
    assert "has bounds only" in str(found)
    with pytest.raises(UsageError, match="asks for more than the bounds of one job on one card"):
        estimate(job, confirm=True)


@pytest.mark.parametrize(
    "words", ["confirm=true", "gpu=any", "host=64GiB", "max_length=512,1024", "trace=lengths.jsonl"]
)
def test_only_one_job_on_one_card_has_bounds(script, capsys, words, tmp_path):
    word = words.replace("trace=", "lengths=").replace("lengths.jsonl", str(tmp_path / "lengths.jsonl"))
    (tmp_path / "lengths.jsonl").write_text("10\n20\n")
    assert main([script(), word]) == EXIT_USAGE
    assert "asks for more than the bounds of one job on one card" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "words"), [(solve, ["max_length"]), (advise, []), (forecast, [])])
def test_other_commands_say_that_there_are_bounds_only(script, capsys, command, words):
    assert command([*words, script(), "gpu=h100"]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "trains by Unsloth 2026.10.9, of whose memory there are only the bounds of `estimate`" in said


@pytest.mark.parametrize("name", ["unsloth/phi-4", "unsloth/phi-4-unsloth-bnb-4bit", "microsoft/phi-4"])
def test_a_converted_checkpoint_has_the_adapters_of_unsloth(script, capsys, tmp_path, name):
    """`nb/Phi_4-Conversational.ipynb` prints 65,536,000 trained values of rank 16; the layout of Phi has fewer."""
    path = tmp_path / "train.py"
    script()
    path.write_text(path.read_text().replace("unsloth/Qwen2.5-0.5B-bnb-4bit", name))
    found = _json(capsys, f"config={path}")
    assert found["trial"]["model"] == "unsloth-phi-4"
    model = builtin_architecture("unsloth/phi-4")
    assert lora_parameter_count(model, 16, found["trial"]["lora_target_modules"]) == 65_536_000
    mini = builtin_architecture("unsloth/Phi-3.5-mini-instruct")
    assert lora_parameter_count(mini, 16, found["trial"]["lora_target_modules"]) == 29_884_416


def test_the_layout_of_others_stays():
    assert find_builtin("microsoft/phi-4").name == find_builtin("nousresearch/phi-4").name == "phi-4"
    assert builtin_of_folder("/models/phi-4") == "phi-4" and builtin_of_folder("unsloth-phi-4") == "unsloth-phi-4"


def test_a_trainer_without_bounds_is_refused_once(script, capsys):
    """Arguments that were those of trl's trainer once are Unsloth's to take."""
    words = [script(train="DPOConfig()", trainer="DPOTrainer", more="ref_model=None, beta=0.1, max_length=512")]
    assert main([*words, "gpu=h100"]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "trains by trl's DPOTrainer, which is a trainer whose changes by Unsloth 2026.10.9 have no bound" in said
    assert "beta" not in said


@pytest.mark.parametrize("loader", ["FastModel", "FastVisionModel"])
def test_another_loader_is_named(script, capsys, tmp_path, loader):
    words = [script()]
    path = tmp_path / "train.py"
    path.write_text(path.read_text().replace("FastLanguageModel", loader))
    assert main([*words, "gpu=h100"]) == EXIT_USAGE
    assert f"loads its model by Unsloth's {loader}, whose kernels have no formula" in capsys.readouterr().err


STAGES = """from unsloth import FastLanguageModel
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
name = "unsloth/Qwen2.5-0.5B-bnb-4bit"
model, tokenizer = FastLanguageModel.from_pretrained(name, max_seq_length=1024, fast_inference={first})
model = FastLanguageModel.get_peft_model(model, r=16, lora_alpha=16)
SFTTrainer(model=model, args=SFTConfig(bf16=True)).train()
model, tokenizer = FastLanguageModel.from_pretrained(name, max_seq_length=1024, fast_inference={second})
model = FastLanguageModel.get_peft_model(model, r={rank}, lora_alpha=64)
GRPOTrainer(model=model, args=GRPOConfig(num_generations=4, gradient_checkpointing=True)).train()
"""


def test_loads_of_two_trainings_are_never_mixed(capsys, tmp_path):
    """What a trainer gets is of one load; Unsloth decides types and checkpointing whatever is stated."""
    path = tmp_path / "train.py"
    path.write_text(STAGES.format(first=False, second=True, rank=32))
    words = [f"config={path}", "recipe=grpo", "gpu=h100"]
    assert main(words) == EXIT_USAGE
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "use_vllm=true: is false and true in train.py, and one value is allowed. "
        "Give use_vllm= as well, or keep one training in the file.",
        "lora_rank=32: is 16 and 32 in train.py, and one value is allowed. "
        "Give lora_rank= as well, or keep one training in the file.",
    ]
    path.write_text(STAGES.format(first=True, second=True, rank=16))
    assert _trial(capsys, *words)["use_vllm"] is True
    path.write_text(STAGES.format(first=True, second=True, rank=32))
    assert _trial(capsys, *words, "lora_rank=8")["lora_rank"] == 8


def test_types_of_two_trainings_are_those_of_unsloth(script, capsys):
    again = "SFTTrainer(model=model, args=SFTConfig(gradient_checkpointing=False)).train()"
    trial = _trial(capsys, script(train="SFTConfig(fp16=True)", more=f"); {again}; print("))
    assert (trial["bf16"], trial["fp16"], trial["gradient_checkpointing"]) == (True, False, True)
