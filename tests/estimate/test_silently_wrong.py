"""Inputs that were answered, but wrongly and without a word: each is counted, named or refused.

Vision tower, six unknown families, a reward model, the length of prompts, a file of SFT, an evaluation batch; and
checkpoints that are quantised.
"""

import json

import pytest
import yaml

from profiler.analytical.estimate import refuse_model
from profiler.config.models.architecture import read_architecture
from profiler.domain.architectures.architecture import ModelCount
from profiler.domain.errors import EXIT_OK, EXIT_USAGE, Fault, UsageError
from profiler.domain.machines import extras
from profiler.estimate.job.counting import (
    CountingError,
    NoModelError,
    checked,
    counted_by_transformers,
    read_and_counted,
)
from profiler.estimate.main import answer, main
from profiler.sweep.main import main as sweep
from profiler.training.models.parameter_count import count_model

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
    return json.loads(answer([f"config={path}", "trl=1.16", "format=json"]))["notes"]


def _read(values, count=count_model):
    return checked(read_architecture(values, model="m"), values, model="m", count=count)


VISION = {**LLAMA, "model_type": "idefics3", "vision_config": {"depth": 32, "hidden_size": 1280}}


COUNT = ModelCount(
    parameters=2**30, in_towers=2**28, linear_layers=12, lora_per_rank=2**20, linear_names=("qkv", "q_proj")
)


GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 32}


def test_a_model_with_names_of_its_own_is_refused_with_its_facts():
    """By hand: of each layer 12 x 64^2 weights and 13 x 64 others, 96 + 32 embeddings of 64, and a last norm."""
    assert count_model(GPT2).parameters == 2 * (12 * 64**2 + 13 * 64) + (96 + 32) * 64 + 2 * 64
    # c_attn 64 to 192, c_proj twice 64 to 64 and 256 to 64, c_fc 64 to 256
    assert count_model(GPT2).lora_per_rank == 2 * (256 + 128 + 320 + 320)
    with pytest.raises(UsageError) as caught:
        read_and_counted(GPT2, model="m", count=lambda _: COUNT)
    said = caught.value.faults[0].sentence()
    assert "sizes have other names than Llama's (model_type gpt2), whose activations have no formula" in said
    assert "It has 1.07 billion parameters. Without any activation" in said
    assert "python -m profiler.run" in said


@pytest.mark.parametrize(
    "config",
    [
        {**GPT2, "model_type": "no_such"},
        {**GPT2, "model_type": "bert", "architectures": ["BertForMaskedLM"]},
        {"model_type": "t5", "d_model": 64},
        {},
    ],
)
def test_what_is_no_language_model_is_refused_as_before(config):
    with pytest.raises(UsageError, match=r"must be a decoder-only language model, but its config\.json has no"):
        read_and_counted(config, model="m", count=_counted_or_refused)


def _counted_or_refused(config):
    try:
        return count_model(config)
    except (ValueError, KeyError) as error:
        raise NoModelError("transformers makes no language model of its config.json") from error


def test_a_vision_language_model_is_refused_with_its_facts():
    """By hand, 2^30 parameters: 2 GiB of weights, 8 with gradients and two states; 2^24 adapters of 16 B: 2.25 GiB."""
    with pytest.raises(UsageError) as caught:
        read_and_counted(VISION, model="m", count=lambda _: COUNT)
    (fault,) = caught.value.faults
    said = fault.sentence()
    assert "has towers for images or sound (model_type idefics3), whose activations have no formula" in said
    assert "1.07 billion parameters, 0.268 of them in the towers" in said
    assert "weights take 2.0 GiB, with gradients and AdamW's states 8.0 GiB" in said
    assert "on its 12 linear layers (qkv, q_proj), 16.8 million parameters, 2.2 GiB" in said
    assert "python -m profiler.run" in said


def test_a_vision_language_model_is_refused_without_torch(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    assert main([_config(tmp_path, **VISION)]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "has vision_config (model_type idefics3), and towers for images or sound have no formula" in line
    assert "counting it needs torch and transformers" in line


@pytest.mark.slow
def test_a_vision_tower_is_counted_exactly():
    """Qwen2.5-VL-3B, whose checkpoint has 3,754,622,976 parameters; 668,684,800 of them are in the tower."""
    tower = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048}
    values = {
        "model_type": "qwen2_5_vl",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {**tower, "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]},
    }
    found = count_model(values)
    assert (found.parameters, found.parameters - found.in_towers) == (3_754_622_976, 3_085_938_688)
    # Seven per layer of the decoder, five per block of the tower, and two that merge its patches.
    assert found.linear_layers == 36 * 7 + 32 * 5 + 2
    assert {"qkv", "q_proj", "down_proj"} <= set(found.linear_names)


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
def test_a_family_without_a_closed_form_is_counted_and_refused(family, own):
    values = {**SIZES, **own, "model_type": family, "architectures": ["XForCausalLM"]}
    with pytest.raises(UsageError, match=f"unknown model_type {family}, and it has .* billion parameters, of which"):
        _read(values)


def test_a_family_whose_parameters_are_all_counted_is_answered():
    values = {**SIZES, "model_type": "seed_oss", "head_dim": 16, "architectures": ["SeedOssForCausalLM"]}
    assert not read_architecture(values, model="m").has_known_layers
    counted = _read({**values, "attention_bias": False, "attention_out_bias": False})
    assert counted.has_known_layers
    assert "model_type=seed_oss (an unknown type, with as many parameters as Llama's layers" in counted.uncounted[0]


def _asked_as_llama(model_type, **own):
    return _read({**SIZES, "model_type": model_type, "head_dim": 16, "architectures": ["XForCausalLM"], **own})


@pytest.mark.parametrize(
    ("model_type", "own", "reason"),
    [
        ("vaultgemma", {"tie_word_embeddings": True, "layer_types": ["full_attention"] * 2}, "has no sdpa for it"),
        ("ministral", {"sliding_window": 128}, "its sliding_window=128 is less than its context"),
        ("cwm", {"layer_types": ["full_attention", "sliding_attention"]}, "its layer_types name sliding_attention"),
    ],
)
def test_attention_that_is_not_llamas_is_refused(model_type, own, reason):
    with pytest.raises(UsageError, match=reason):
        _asked_as_llama(model_type, max_position_embeddings=4096, **own)


def test_a_window_that_reaches_the_whole_context_is_answered():
    whole = {"max_position_embeddings": 4096, "sliding_window": 4096}
    assert _asked_as_llama("ministral", **whole).has_known_layers
    assert _asked_as_llama("ministral", **whole | {"sliding_window": None}).has_known_layers


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
    with pytest.raises(UsageError, match=r"needs torch and transformers.*Install the extra 'simulate': pip install"):
        _read({**LLAMA, "model_type": "starcoder2"}, counted_by_transformers)


@pytest.mark.slow
def test_the_count_is_made_in_a_process_of_its_own():
    assert counted_by_transformers(LLAMA) == count_model(LLAMA)


def test_a_type_that_transformers_does_not_have_is_refused():
    def none(_):
        raise NoModelError("transformers makes no language model of its config.json")

    with pytest.raises(UsageError, match=r"transformers makes no language model .* run it: python -m profiler\.run"):
        _read({**LLAMA, "model_type": "mine"}, none)


def test_a_mixture_that_nothing_counts_is_refused_as_one():
    def none(_):
        raise CountingError("it needs torch")

    mixture = {**LLAMA, "model_type": "granitemoe", "architectures": ["XForCausalLM"], "num_local_experts": 8}
    with pytest.raises(UsageError, match="a mixture of 8 experts has no closed-form estimate"):
        refuse_model(_read(mixture, none))


def _answer(tmp_path, *words, **values):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, **values}))
    return json.loads(answer([f"config={path}", *words, "trl=1.16", "format=json"], load_model=_no_hub))


def _no_hub(model):
    raise UsageError([Fault(key="model", found=model, problem="the hub cannot be reached")])


@pytest.mark.parametrize(
    "values",
    [
        {"reward_funcs": ["accuracy", "Qwen/Qwen2.5-1.5B-Instruct"]},
        {"reward_model_name_or_path": "Qwen/Qwen2.5-1.5B", "reward_funcs": ["format"]},
    ],
)
def test_a_reward_model_is_counted(tmp_path, values):
    without, found = _answer(tmp_path), _answer(tmp_path, **values)
    assert found["trial"]["reward_models"] == ["qwen2.5-1.5b"]
    more = found["peak_allocated_bytes"] - without["peak_allocated_bytes"]
    # 1,543,714,304 parameters, whose head is tied, and a head of 1,536, in bfloat16; buffers of the rotary embedding
    assert more == 2 * (1_543_714_304 + 1_536) + 2 * 64 * 4
    assert not any("Not counted" in line for line in found["notes"])


def test_a_reward_model_that_cannot_be_read_is_named(tmp_path, capsys):
    found = _answer(tmp_path, reward_funcs=["org/reward-7b", "Qwen/Qwen2.5-1.5B"])
    assert found["trial"]["reward_models"] == ["qwen2.5-1.5b"]
    assert found["notes"][-1] == "Not counted: the reward model org/reward-7b, which has no formula here."
    words = ["model=qwen2.5-0.5b", "reward_models=org/reward-7b"]
    assert main(words, load_model=_no_hub) == EXIT_USAGE
    assert capsys.readouterr().err == "reward_models=org/reward-7b: the hub cannot be reached.\n"


def test_the_length_of_prompts_is_assumed_in_the_first_line(tmp_path):
    assert _notes(tmp_path, max_prompt_length=None)[0].startswith("Assumed: max_prompt_length=256 (give that of your")
    assert not any("max_prompt_length=" in line for line in _notes(tmp_path))


def test_a_file_of_sft_is_not_answered_as_grpo(tmp_path):
    path = tmp_path / "sft.yaml"
    path.write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\npacking: true\nmax_length: 2048\n")
    assert json.loads(answer([f"config={path}", "format=json"]))["trial"]["recipe"] == "sft"


def test_an_evaluation_batch_is_counted(tmp_path):
    found = _answer(tmp_path, eval_strategy="steps", per_device_eval_batch_size=64)
    assert found["trial"]["per_device_eval_batch_size"] == 64
    phases = {each["phase"]: each["peak_allocated_bytes"] for each in found["phases"]}
    assert phases["evaluation"] > phases["rollout"]
    small = _answer(tmp_path, evaluation_strategy="epoch")
    assert "per_device_eval_batch_size=8 (transformers' default)" in small["notes"][0]
    without = _answer(tmp_path, eval_strategy="no", per_device_eval_batch_size=64)
    assert "evaluation" not in {each["phase"] for each in without["phases"]}


def test_groups_of_an_evaluation_are_whole(tmp_path, capsys):
    evaluated = {"eval_strategy": "steps", "per_device_eval_batch_size": 4, "num_generations": 2}
    assert _answer(tmp_path, **evaluated, num_generations_eval=16)["trial"]["num_processes"] == 4
    with pytest.raises(UsageError, match="must be a multiple of the 16 completions per prompt"):
        _answer(tmp_path, "num_processes=2", **evaluated, num_generations_eval=16)
    assert _answer(tmp_path, "num_processes=2", "per_device_eval_batch_size=8", **evaluated, num_generations_eval=16)


def _of_rows(tmp_path, **values):
    path = tmp_path / "sft.yaml"
    path.write_text(yaml.safe_dump({"model_name_or_path": "Qwen/Qwen2.5-0.5B", "packing": True, **values}))
    return json.loads(answer([f"config={path}", "trl=1.5", "format=json"]))


def test_an_evaluation_of_sft_is_counted(tmp_path):
    alone, found = _of_rows(tmp_path), _of_rows(tmp_path, eval_strategy="steps", per_device_train_batch_size=1)
    assert found["trial"]["per_device_eval_batch_size"] == 8
    assert "per_device_eval_batch_size=8 (transformers' default)" in found["notes"][0]
    assert not any("evaluation (batches of" in note for note in found["notes"])
    phases = {each["phase"]: each["peak_allocated_bytes"] for each in found["phases"]}
    assert max(phases, key=phases.get) == "evaluation"
    assert "evaluation" not in {each["phase"] for each in alone["phases"]}


@pytest.mark.parametrize(
    ("values", "counter"),
    [
        ({"use_liger_kernel": True}, ""),
        ({"fsdp": "full_shard"}, "; `python -m profiler.forecast` counts it on one GPU"),
    ],
)
def test_an_evaluation_without_a_formula_is_named(tmp_path, values, counter):
    found = _of_rows(tmp_path, eval_strategy="steps", **values)
    assert found["trial"]["per_device_eval_batch_size"] is None
    assert any(f"evaluation (batches of 8{counter})" in note for note in found["notes"])


FOUR_BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True}


@pytest.mark.parametrize(
    ("quantization", "tuning", "hint"),
    [
        (FOUR_BITS, "lora", "Use tuning=qlora."),
        ({"quant_method": "gptq", "bits": 4}, "qlora", "Name the model that is not quantised."),
        ({"quant_method": "fp8"}, "full", "Name the model that is not quantised."),
    ],
)
def test_a_quantised_checkpoint_that_is_not_counted_is_refused(tmp_path, capsys, quantization, tuning, hint):
    word = _config(tmp_path, **LLAMA, quantization_config=quantization)
    assert main([word, f"tuning={tuning}", "max_completion_length=64"]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "its checkpoint is quantised (" in line and line.endswith(hint)


def test_four_bits_of_a_checkpoint_are_those_of_qlora(tmp_path):
    word = _config(tmp_path, **LLAMA, quantization_config=FOUR_BITS)
    assert main([word, "tuning=qlora", "max_completion_length=64"]) == EXIT_OK


@pytest.mark.parametrize("first", ["model_name_or_path: Qwen/Qwen2.5-0.5B", "output_dir: out"])
def test_a_recipe_may_say_which_adapter_it_has(first, tmp_path, capsys):
    """Of tanghui315/fast-open-r1: `peft_type` made it a file of an adapter, of which no other key counts."""
    sizes = "num_generations: 4\nper_device_train_batch_size: 4\n"
    path = tmp_path / "grpo.yaml"
    path.write_text(f"{first}\nuse_peft: true\npeft_type: lora\nlora_r: 32\n{sizes}")
    words = [f"config={path}", "model=qwen2.5-0.5b", "trl=1.16", "format=json"]
    trial = json.loads(answer(words))["trial"]
    assert (trial["lora_rank"], trial["num_generations"], trial["per_device_train_batch_size"]) == (32, 4, 4)
    path.write_text(path.read_text().replace("lora\n", "prefix_tuning\n"))
    assert main(words) == EXIT_USAGE
    assert "peft_type=prefix_tuning: in grpo.yaml has no formula; only LORA" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["trainer", "trainer_type", "algorithm", "method"])
@pytest.mark.parametrize("trainer", ["orpo", "cpo", "gkd", "online_dpo", "ORPOTrainer", "online-dpo"])
def test_a_trainer_without_a_recipe_in_a_value_is_refused(tmp_path, key, trainer):
    path = tmp_path / "run.yaml"
    path.write_text(f"model_name_or_path: Qwen/Qwen2.5-0.5B\n{key}: {trainer}\nbeta: 0.1\nmax_length: 512\n")
    with pytest.raises(UsageError) as error:
        answer([f"config={path}"])
    said = [fault.sentence() for fault in error.value.faults]
    assert any(f"{key}={trainer}: is a trainer of trl that has no recipe here" in each for each in said)
    path.write_text(path.read_text().replace(f"{key}: {trainer}", f"{key}: dpo"))
    assert json.loads(answer([f"config={path}", "format=json"]))["trial"]["recipe"] == "dpo"


@pytest.mark.parametrize("script", ["dpo_online", "online_dpo", "orpo", "cpo", "gkd", "nash_md", "xpo", "bco"])
def test_a_script_of_another_trainer_is_refused_by_its_name(script):
    words = ["python", f"examples/scripts/{script}.py", "--model_name_or_path", "Qwen/Qwen2.5-0.5B"]
    words += ["--max_length", "512", "--per_device_train_batch_size", "2"]
    with pytest.raises(UsageError, match="is a trainer without a recipe here, by its name"):
        answer(["--", *words])
