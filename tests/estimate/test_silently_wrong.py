"""Inputs that were answered, but wrongly and without a word: each is counted, named or refused.

Vision tower, six unknown families, a reward model, the length of prompts, a file of SFT, an evaluation batch; and
checkpoints that are quantised.
"""

import json

import pytest
import yaml

from profiler.config.architecture import read_architecture
from profiler.domain import extras
from profiler.domain.errors import EXIT_OK, EXIT_USAGE, UsageError
from profiler.estimate.counting import CountingError, checked, counted_by_transformers
from profiler.estimate.main import answer, main
from profiler.sweep.main import main as sweep
from profiler.training.parameter_count import count_parameters

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
LLAMA = {**SIZES, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
RECIPE = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "dtype": "bfloat16", "max_prompt_length": 64, "num_generations": 8}


def _config(tmp_path, **values):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return f"model={path}"


def _notes(tmp_path, **values):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, **values}))
    return json.loads(answer([f"config={path}", "format=json"]))["notes"]


def _read(values, count=count_parameters):
    return checked(read_architecture(values, model="m"), values, model="m", count=count)


VISION = {**LLAMA, "model_type": "qwen2_5_vl", "vision_config": {"depth": 32, "hidden_size": 1280}}


def test_a_vision_language_model_is_refused_in_one_sentence(tmp_path, capsys):
    assert main([_config(tmp_path, **VISION)]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "has vision_config (model_type qwen2_5_vl), and towers for images or sound have no formula" in line


def test_a_vision_language_model_in_a_sweep_is_one_sentence(tmp_path, capsys):
    words = ["+grid=lora_vs_full", "backend=simulated", _config(tmp_path, **VISION), "dry_run=true"]
    assert sweep(words) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "towers for images or sound have no formula" in line


@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("starcoder2", {}),
        ("gpt_neox", {}),
        ("phi", {}),
        ("stablelm", {"use_parallel_residual": True}),
        ("nemotron", {}),
        ("cohere2", {}),
    ],
)
def test_a_family_that_the_closed_form_does_not_know_is_counted_and_refused(family, own):
    values = {**SIZES, **own, "model_type": family, "architectures": ["XForCausalLM"]}
    with pytest.raises(UsageError, match=f"unknown model_type {family}, and it has .* billion parameters, of which"):
        _read(values)


def test_a_family_of_which_every_parameter_is_counted_is_answered():
    values = {**SIZES, "model_type": "seed_oss", "head_dim": 16, "architectures": ["SeedOssForCausalLM"]}
    assert not read_architecture(values, model="m").has_known_layers
    counted = _read({**values, "attention_bias": False, "attention_out_bias": False})
    assert counted.has_known_layers


def test_a_known_family_is_not_counted():
    def never(_):
        raise AssertionError

    assert _read(LLAMA, never).has_known_layers
    with pytest.raises(UsageError, match="of which the closed form counts"):
        _read({**LLAMA, "mlp_bias": True})


def test_code_of_others_is_refused_and_not_run():
    with pytest.raises(UsageError, match="code of its repository, which is not run"):
        _read({**LLAMA, "model_type": "mine", "auto_map": {"AutoModel": "m.Model"}})


def test_without_torch_an_unknown_family_is_refused(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"needs torch and transformers.*pip install 'grpo-vram-profiler\[simul"):
        _read({**LLAMA, "model_type": "starcoder2"}, counted_by_transformers)


@pytest.mark.slow
def test_the_count_is_made_in_a_process_of_its_own():
    assert counted_by_transformers(LLAMA) == count_parameters(LLAMA)


def test_a_type_that_transformers_does_not_have_is_refused():
    def none(_):
        raise CountingError("transformers makes no language model of its config.json")

    with pytest.raises(UsageError, match="transformers makes no language model"):
        _read({**LLAMA, "model_type": "mine"}, none)


def test_a_reward_model_is_named(tmp_path):
    assert "Not counted: the reward model org/reward-7b." in _notes(
        tmp_path, reward_funcs=["accuracy", "org/reward-7b"]
    )
    assert "Not counted: the reward model local." in _notes(tmp_path, reward_model_name_or_path="local")


def test_the_length_of_prompts_is_an_assumption_in_the_first_line(tmp_path):
    assert _notes(tmp_path, max_prompt_length=None)[0].startswith("Assumed: max_prompt_length=256 (give that of your")
    assert not any("max_prompt_length" in line for line in _notes(tmp_path))


def test_a_file_of_sft_is_not_answered_as_grpo(tmp_path):
    path = tmp_path / "sft.yaml"
    path.write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\npacking: true\nmax_length: 2048\n")
    assert json.loads(answer([f"config={path}", "format=json"]))["trial"]["recipe"] == "sft"


def test_an_evaluation_batch_is_named(tmp_path):
    notes = _notes(tmp_path, eval_strategy="steps", per_device_eval_batch_size=64)
    assert "Not counted: evaluation (batches of 64)." in notes
    assert "Not counted: evaluation (batches of 8)." in _notes(tmp_path, evaluation_strategy="epoch")
    assert not any("evaluation" in line for line in _notes(tmp_path, eval_strategy="no", per_device_eval_batch_size=64))


FOUR_BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True}


@pytest.mark.parametrize(
    ("quantization", "tuning", "hint"),
    [
        (FOUR_BITS, "lora", "Use tuning=qlora."),
        ({"quant_method": "gptq", "bits": 4}, "qlora", "Name the model that is not quantised."),
        ({"quant_method": "fp8"}, "full", "Name the model that is not quantised."),
    ],
)
def test_a_quantised_checkpoint_is_refused_where_it_is_not_counted(tmp_path, capsys, quantization, tuning, hint):
    word = _config(tmp_path, **LLAMA, quantization_config=quantization)
    assert main([word, f"tuning={tuning}", "max_completion_length=64"]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "its checkpoint is quantised (" in line and line.endswith(hint)


def test_four_bits_of_a_checkpoint_are_those_of_qlora(tmp_path):
    word = _config(tmp_path, **LLAMA, quantization_config=FOUR_BITS)
    assert main([word, "tuning=qlora", "max_completion_length=64"]) == EXIT_OK
