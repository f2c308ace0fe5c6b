import dataclasses
import json

import pytest
import yaml

from profiler.config.notes import note_lines
from profiler.config.trl import argument_values as trl_trainers
from profiler.config.trl.argument_keys import FREE_KEYS, KEY_OF, MODEL_KEYS, NEUTRAL_VALUES
from profiler.config.trl.config import TRL_DEFAULTS, read_trl_config
from profiler.domain.errors import EXIT_USAGE
from profiler.domain.trials.trial import key_named
from profiler.estimate.main import answer, main


def _write(tmp_path, **values):
    path = tmp_path / "grpo.yaml"
    path.write_text(yaml.safe_dump(values))
    return f"config={path}"


def _trial(*words):
    return json.loads(answer([*words, "format=json"]))["trial"]


def test_a_config_of_trl_becomes_the_trial_that_it_describes(tmp_path):
    word = _write(
        tmp_path,
        model_name_or_path="Qwen/Qwen2.5-7B-Instruct",
        use_peft=True,
        lora_r=32,
        lora_target_modules=["q_proj", "v_proj"],
        per_device_train_batch_size=4,
        generation_batch_size=16,
        max_completion_length=1024,
        num_generations=8,
        dtype="auto",
        optim="adamw_bnb_8bit",
        learning_rate=1e-6,
        report_to="none",
        beta=0.04,
    )
    trial = _trial(word)

    assert trial["model"] == "qwen2.5-7b"
    assert (trial["tuning"], trial["lora_rank"]) == ("lora", 32)
    assert trial["lora_target_modules"] == ["q_proj", "v_proj"]
    assert (trial["steps_per_generation"], trial["gradient_accumulation_steps"]) == (4, 1)
    assert (trial["dtype"], trial["optim"], trial["beta"]) == ("bfloat16", "adamw_8bit", 0.04)
    assert trial["max_completion_length"] == 1024


def test_absent_keys_have_trls_defaults_and_given_ones_win(tmp_path):
    trial = _trial(_write(tmp_path, model_name_or_path="Qwen/Qwen2.5-0.5B"), "beta=0.1")

    assert trial["per_device_train_batch_size"] == 8
    assert trial["dtype"] == "float32"
    assert trial["beta"] == 0.1


def test_unknown_keys_and_values_are_reported_together(tmp_path, capsys):
    word = _write(
        tmp_path,
        model_name_or_path="Qwen/Qwen2.5-0.5B",
        learning_rte=1e-6,
        num_generations=1,
        torch_compile=True,
    )

    assert main([word, "tuning=lorra", "strict=true"]) == EXIT_USAGE
    said = {line.partition("=")[0]: line for line in capsys.readouterr().err.splitlines()}
    assert set(said) == {"learning_rte", "num_generations", "torch_compile", "tuning"}
    assert "Did you mean 'learning_rate'?" in said["learning_rte"]


@pytest.mark.parametrize(
    "values", [{"generation_batch_size": 12}, {"generation_batch_size": 16, "steps_per_generation": 2}]
)
def test_an_impossible_generation_batch_is_a_fault(values):
    assert [fault.key for fault in read_trl_config(values).faults] == ["generation_batch_size"]


@pytest.mark.parametrize(("content", "said"), [("- 1", "contains no keys"), ("a: [", "is not valid YAML")])
def test_a_file_without_a_configuration(tmp_path, capsys, content, said):
    path = tmp_path / "wrong.yaml"
    path.write_text(content)

    assert main([f"config={path}"]) == EXIT_USAGE
    assert said in capsys.readouterr().err
    assert main([f"config={tmp_path / 'nowhere.yaml'}"]) == EXIT_USAGE


def test_all_keys_of_the_installed_trl_have_known_defaults():
    from trl import GRPOConfig, ModelConfig, ScriptArguments, SFTConfig

    keys = {
        field.name: field.default
        for kind in (ScriptArguments, ModelConfig, GRPOConfig)
        for field in dataclasses.fields(kind)
    }
    keys |= {field.name: field.default for field in dataclasses.fields(SFTConfig) if field.name not in keys}
    known = {*FREE_KEYS, *NEUTRAL_VALUES, *KEY_OF, *MODEL_KEYS, "model_init_kwargs"}

    assert set(keys) <= known
    # bf16 is None there, which trl's `__post_init__` makes true where there is no fp16
    assert {key: keys[key] for key in TRL_DEFAULTS if key != "bf16"} == {
        key: value for key, value in TRL_DEFAULTS.items() if key != "bf16"
    }


def test_the_defaults_of_sft_are_those_of_the_installed_trl():
    from trl import SFTConfig

    defaults = {field.name: field.default for field in dataclasses.fields(SFTConfig)}
    point = read_trl_config({"packing": False}).point
    shared = set(point) & set(defaults) - {"bf16"}
    assert {key: point[key] for key in shared} == {key: defaults[key] for key in shared}
    assert key_named("max_length").given_default == defaults["max_length"]


def test_a_file_of_sft_is_answered_by_its_own_recipe(tmp_path):
    values = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "max_seq_length": 2048, "dataset_text_field": "text"}
    trial = _trial(_write(tmp_path, **values))
    assert (trial["recipe"], trial["max_length"], trial["lengths"]) == ("sft", 2048, "ragged")
    assert _trial(_write(tmp_path, **values, packing=True))["lengths"] == "forced"


@pytest.mark.parametrize(
    ("values", "trainer"),
    [
        ({"max_length": 1024, "rpo_alpha": 0.1}, "DPOTrainer up to 0.28"),
        ({"total_episodes": 10}, "PPOTrainer"),
    ],
)
def test_a_file_of_another_trainer_is_refused_by_name(tmp_path, capsys, values, trainer):
    assert main([_write(tmp_path, model_name_or_path="Qwen/Qwen2.5-0.5B", **values)]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert trainer in said
    assert "the recipes are grpo, rloo, sft, dpo, kto, reward" in said


@pytest.mark.parametrize(
    ("values", "recipe"),
    [
        ({"max_length": 1024, "beta": 0.1}, "dpo"),
        ({"loss_weights": [1.0]}, "dpo"),
        ({"center_rewards_coefficient": 0.1}, "reward"),
        ({"desirable_weight": 1.0, "precompute_ref_log_probs": True}, "kto"),
        ({"precompute_ref_log_probs": True}, "dpo"),
        ({"max_length": 1024}, "sft"),
        ({"beta": 0.1, "num_generations": 8}, "grpo"),
    ],
)
def test_a_file_is_of_the_trainer_whose_keys_it_has(tmp_path, values, recipe):
    assert _trial(_write(tmp_path, model_name_or_path="Qwen/Qwen2.5-0.5B", **values))["recipe"] == recipe


def test_a_file_of_dpo_has_the_defaults_of_its_trainer(tmp_path):
    keys = {"max_length": 2048, "beta": 0.2, "use_peft": True, "lora_dropout": 0.1, "padding_free": True}
    reading = read_trl_config(keys)
    assert reading.faults == ()
    texts = note_lines(reading.notes)
    assert any("padding_free=false (trl switches it off with a warning, and pads)" in text for text in texts)
    assert any("lora_dropout=0 (disable_dropout is true, which is trl's default)" in text for text in texts)
    trial = _trial(_write(tmp_path, model_name_or_path="Qwen/Qwen2.5-0.5B", **keys))
    assert (trial["max_length"], trial["beta"], trial["lora_dropout"]) == (2048, 0.2, 0)
    assert (trial["per_device_train_batch_size"], trial["gradient_accumulation_steps"]) == (8, 1)
    dropping = _trial(_write(tmp_path, model_name_or_path="Qwen/Qwen2.5-0.5B", **keys, disable_dropout=False))
    assert dropping["lora_dropout"] == 0.1
    before = {"max_length": 512, "precompute_ref_log_probs": True, "precompute_ref_batch_size": 32}
    trial = _trial(_write(tmp_path, model_name_or_path="Qwen/Qwen2.5-0.5B", **before))
    assert (trial["beta"], trial["precompute_ref_batch_size"]) == (0.1, 32)


def test_padding_free_of_other_trainers_stays_a_fault():
    assert [fault.key for fault in read_trl_config({"packing": False, "padding_free": True}).faults] == ["padding_free"]


def test_the_keys_that_tell_trainers_apart_are_theirs_alone():
    """Names of earlier versions are in no class today."""
    from trl import DPOConfig, GRPOConfig, KTOConfig, RewardConfig, RLOOConfig, SFTConfig

    kinds = {
        "GRPOTrainer": GRPOConfig,
        "SFTTrainer": SFTConfig,
        "DPOTrainer": DPOConfig,
        "KTOTrainer": KTOConfig,
        "RewardTrainer": RewardConfig,
        "RLOOTrainer": RLOOConfig,
    }
    names = {name: {field.name for field in dataclasses.fields(kind)} for name, kind in kinds.items()}
    claimed = {other.trainer: other.keys for other in trl_trainers.OTHERS} | {
        **{f"{recipe.in_classes}Trainer": keys for recipe, keys in trl_trainers.NAMED_BY.items()},
        "RLOOTrainer": trl_trainers.RLOO_KEYS,
    }
    for trainer, keys in claimed.items():
        assert trainer not in names or keys & names[trainer], trainer  # trl 1.16 has no PPOTrainer
        assert not any(keys & names[other] for other in names if other != trainer), trainer
    assert not trl_trainers.GENERATION_KEYS & (names["SFTTrainer"] | names["DPOTrainer"] | names["RewardTrainer"])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"packing": True, "eval_strategy": "steps", "use_liger_kernel": True}, "evaluation (batches of 8)"),
        (
            {
                "packing": True,
                "eval_strategy": "epoch",
                "use_liger_kernel": True,
                "per_device_eval_batch_size": 32,
            },
            "evaluation (batches of 32)",
        ),
    ],
)
def test_what_is_not_counted_is_named(values, said):
    (line,) = [line for line in note_lines(read_trl_config(values).notes) if line.startswith("Not counted")]
    assert said in line


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "num_iterations=2, by which the policy scores its completions (less than the backward pass needs)"),
        # It does so for one iteration too.
        ({"use_vllm": True}, ""),
        ({"use_vllm": True, "use_liger_kernel": True}, ""),
    ],
)
def test_passes_over_the_same_completions_need_no_more(values, said):
    own = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "num_generations": 8, **values}
    once, twice = (read_trl_config({**own, "num_iterations": count}) for count in (1, 2))
    assert (once.point, twice.point, twice.faults) == (twice.point, once.point, ())
    notes = " ".join(note.text for note in twice.notes)
    assert said in notes and ("num_iterations" in notes) is bool(said)


@pytest.mark.parametrize("count", [2, 0, "two"])
def test_passes_with_logits_that_liger_leaves_out_are_refused(count):
    own = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "num_generations": 8, "use_liger_kernel": True}
    faults = read_trl_config({**own, "num_iterations": count}).faults
    assert [fault.key for fault in faults] == ["num_iterations"]


def test_what_trl_would_take_is_an_assumption():
    (line,) = note_lines(read_trl_config({"use_vllm": True}).notes)
    assert "max_prompt_length=256 (give that of your data)" in line
    assert "dtype=float32 (trl's default)" in line
    assert "vllm_mode=colocate" in line


def test_the_processes_that_share_an_engine_are_assumed():
    found = read_trl_config({"use_vllm": True, "vllm_tensor_parallel_size": 2})
    assert (found.point["vllm_tensor_parallel_size"], found.point["num_processes"]) == (2, 2)
    assert any("num_generations and vllm_tensor_parallel_size allow" in line for line in note_lines(found.notes))
    on_server = read_trl_config({"use_vllm": True, "vllm_mode": "server", "vllm_tensor_parallel_size": 2})
    assert on_server.point["num_processes"] == 1
