"""`python -m profiler.advise`: what to change so that training fits a card."""

import json

import pytest
import yaml

from profiler.advise import plan
from profiler.advise.levers import LEVERS, Hurts
from profiler.advise.main import main
from profiler.analytical.explanation.explained import Fit, card_verdict
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.identity import spec_from_mapping
from profiler.config.trl.argument_keys import FREE_KEYS, KEY_OF, KEYS_OF_SOME, MODEL_KEYS, NEUTRAL_VALUES
from profiler.config.trl.config import read_trl_config
from profiler.config.trl.yaml import OLD_KEYS, trl_arguments
from profiler.domain.cards.gpu_names import gpu_named
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK
from profiler.domain.trials.recipe import GENERATING, Recipe
from profiler.domain.trials.trial import TrialSpec

CARD = "rtx-4090-24gb"


def _advised(capsys, *words: str) -> dict:
    assert main([*words, "format=json"]) == EXIT_OK
    return json.loads(capsys.readouterr().out)


def _needed(spec: TrialSpec) -> tuple[int, Fit]:
    architecture = builtin_architecture(spec.model)
    assert architecture is not None
    card = card_verdict(spec, architecture, gpu_named(str(spec.gpu)), replays=True)
    return card.needed_bytes, card.fit


def test_levers_are_ordered_by_what_hurts_least():
    order = list(Hurts)
    ranks = [order.index(lever.hurts) for lever in LEVERS]
    assert ranks == sorted(ranks)
    assert len({lever.name for lever in LEVERS}) == len(LEVERS)


def test_the_steps_add_up_to_a_trial_that_fits(capsys):
    found = _advised(capsys, "model=qwen2.5-7b", f"gpu={CARD}", "gradient_checkpointing=false", "dtype=float32")
    assert [step["name"] for step in found["steps"]] == [
        "gradient checkpointing",
        "weights in 16 bits",
        "LoRA in place of full fine-tuning",
    ]
    saved = sum(step["saved_bytes"] for step in found["steps"])
    assert found["before"]["needed_bytes"] - saved == found["after"]["needed_bytes"]
    after = spec_from_mapping(found["trial_after"])
    assert _needed(after) == (found["after"]["needed_bytes"], Fit.FITS)
    assert (found["fits"], found["before"]["verdict"]) == (True, "does not fit")
    # None of the steps can be left out.
    assert _needed(spec_from_mapping({**found["trial_after"], "gradient_checkpointing": False}))[1] is not Fit.FITS
    assert _needed(spec_from_mapping({**found["trial_after"], "dtype": "float32"}))[1] is not Fit.FITS


@pytest.mark.parametrize(
    ("keys", "lever", "lines"),
    [
        (("logprobs=full",), "fused log-probabilities", ['pip install "trl>=1.16"']),
        (
            ("attn_implementation=eager", "max_completion_length=2048"),
            "attention without stored scores",
            ["attn_implementation: sdpa"],
        ),
        (("gradient_checkpointing=false",), "gradient checkpointing", ["gradient_checkpointing: true"]),
        (
            (),
            "expandable segments of the allocator",
            ["export PYTORCH_ALLOC_CONF=expandable_segments:True"],
        ),
        (
            ("use_vllm=true", "gradient_checkpointing=false"),
            "vLLM sleeps while the model trains",
            ["vllm_enable_sleep_mode: true"],
        ),
        (
            ("gradient_checkpointing=false",),
            "smaller micro-batches, same effective batch",
            ["per_device_train_batch_size: 1", "gradient_accumulation_steps: 16", "steps_per_generation: 16"],
        ),
        (
            ("max_completion_length=8192", "tuning=qlora"),
            "fewer completions generated at once, same effective batch",
            ["steps_per_generation: 1"],
        ),
        (("use_vllm=true",), "a smaller part of the card for vLLM", ["vllm_gpu_memory_utilization: 0.1"]),
        (
            ("num_processes=4",),
            "weights, gradients and optimizer states sharded over the GPUs",
            ["accelerate launch --use_fsdp --fsdp_version 2 train.py"],
        ),
        ((), "8-bit optimizer", ["optim: adamw_8bit"]),
        (("optim=adamw_8bit",), "paged 8-bit optimizer", ["optim: paged_adamw_8bit"]),
        (("dtype=float32",), "weights in 16 bits", ["dtype: bfloat16"]),
        (("dtype=float32", "fp16=true", "tuning=lora"), "weights in 16 bits", ["dtype: float16"]),
        (("beta=0.04",), "no KL term, so no reference model", ["beta: 0.0"]),
        (
            (),
            "LoRA in place of full fine-tuning",
            [
                "lora_r: 16",
                "lora_alpha: 32",
                "lora_target_modules: [all-linear]",
                "lora_dropout: 0.0",
                "use_peft: true",
            ],
        ),
        (("tuning=lora", "lora_rank=512"), "lower LoRA rank", ["lora_r: 8", "lora_alpha: 16"]),
        (("max_completion_length=8192",), "shorter completions", ["max_completion_length: 2048"]),
        (("recipe=sft", "max_length=8192"), "shorter rows", ["max_length: 2048"]),
        (
            ("max_completion_length=8192",),
            "fewer completions per prompt",
            ["num_generations: 2", "gradient_accumulation_steps: 2", "steps_per_generation: 2"],
        ),
        (("tuning=qlora", "bnb_4bit_use_double_quant=false"), "double quantisation", ["use_bnb_nested_quant: true"]),
        (("tuning=lora",), "QLoRA: base weights in 4 bits", ["load_in_4bit: true", "use_bnb_nested_quant: true"]),
        ((), "a smaller model of the same family", ["model_name_or_path: Qwen/Qwen2.5-0.5B"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_lever_saves_memory_and_has_lines_to_paste(capsys, monkeypatch, keys, lever, lines):
    monkeypatch.setattr(plan, "_WORTH", 0.0)
    found = _advised(capsys, "model=qwen2.5-1.5b", "gpu=b200", *keys)
    (step,) = [step for step in found["alone"] if step["name"] == lever]
    assert step["lines"] == lines
    assert step["saved_bytes"] > 0
    assert step["costs"]


def test_the_same_effective_batch(capsys):
    keys = ("model=qwen2.5-3b", f"gpu={CARD}", "tuning=lora", "gradient_checkpointing=true")
    found = _advised(capsys, *keys, "per_device_train_batch_size=64", "gradient_accumulation_steps=1")
    before, after = (spec_from_mapping(found[key]) for key in ("trial", "trial_after"))
    assert after.per_device_train_batch_size < before.per_device_train_batch_size
    rows = {spec.per_device_train_batch_size * spec.gradient_accumulation_steps for spec in (before, after)}
    assert rows == {64}
    assert before.generation_batch_size == after.generation_batch_size == 64


def test_a_trial_that_fits_needs_no_change(capsys):
    assert main(["model=qwen2.5-0.5b", "tuning=lora", "gpu=h100"]) == EXIT_OK
    said = capsys.readouterr().out
    assert "It fits as it is." in said
    assert "What to change" not in said


def test_nothing_fits(capsys):
    found = _advised(capsys, "model=tiny", "gpu=1GiB", "max_completion_length=3000", "per_device_train_batch_size=64")
    assert found["fits"] is True  # the model is small enough for every card
    found = _advised(capsys, "model=llama-2-7b", "gpu=4GiB")
    assert (found["fits"], found["smallest_gpu"]) == (False, "rtx-4070-12gb")
    assert found["smallest_gpu_unchanged"] == "h100-pcie-80gb"
    assert main(["model=llama-2-7b", "gpu=4GiB"]) == EXIT_OK
    assert "Nothing makes it fit 4GiB" in capsys.readouterr().out


def test_a_kernel_that_the_card_lacks_is_named(capsys):
    assert main(["model=qwen2.5-0.5b", "tuning=lora", "gpu=t4"]) == EXIT_OK
    assert "No kernel: trl's fused LM head in bfloat16 does not run on t4-16gb" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main(["model=qwen2.5-0.5b", "tuning=lora", "gpu=t4", "fail_if=does_not_fit"]) == EXIT_ANSWER_IS_NO


def test_a_margin_asks_for_more(capsys):
    words = ("model=qwen2.5-7b", "tuning=lora", "gpu=24GiB")
    assert not _advised(capsys, *words)["steps"]
    found = _advised(capsys, *words, "margin=30%")
    assert found["steps"]
    assert found["after"]["needed_bytes"] <= 0.7 * 24 * 2**30


def test_the_file_is_read_back_as_the_trial(capsys, tmp_path):
    recipe = {
        "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct",
        "torch_dtype": "bfloat16",
        "learning_rate": 1e-6,
        "system_prompt": "x",
        "hub_token": "hf_secret",
        "max_prompt_length": 512,
        "generation_batch_size": 16,
    }
    file = tmp_path / "grpo.yaml"
    file.write_text(yaml.safe_dump(recipe))
    assert main([f"config={file}", f"gpu={CARD}"]) == EXIT_OK
    said = capsys.readouterr().out
    written = yaml.safe_load(said[said.index("# GRPOConfig") :])
    assert written["model_name_or_path"] == "Qwen/Qwen2.5-7B-Instruct"
    assert written["learning_rate"] == 1e-6
    assert "hf_secret" not in said
    (left_out,) = (line for line in said.splitlines() if line.startswith("# left out"))
    assert "system_prompt" in said[said.index("# left out") :]
    # `dtype` is its name today, and is written.
    assert "torch_dtype" not in left_out and written["dtype"] == "bfloat16"
    found = _advised(capsys, f"config={file}", f"gpu={CARD}")
    point = read_trl_config(written).point
    after = trl_arguments(spec_from_mapping(found["trial_after"]))
    assert written["steps_per_generation"] == point["steps_per_generation"] == after["steps_per_generation"]
    assert (point["tuning"], point["lora_target_modules"]) == ("lora", ["all-linear"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("tuning=lora", "gpu=16GiB"),
        ("gpu=a100-40gb", "use_vllm=true"),
        ("gpu=6GiB",),
        ("recipe=sft", "gpu=12GiB"),
        ("recipe=dpo", "gpu=12GiB"),
        ("recipe=dpo", "gpu=24GiB", "tuning=lora", "lora_dropout=0.1"),
        ("recipe=kto", "gpu=12GiB"),
        ("recipe=reward", "gpu=24GiB", "tuning=lora", "lora_dropout=0.1"),
        ("trainer=rloo", "gpu=12GiB"),
    ],
)
def test_trl_accepts_the_file(capsys, tmp_path, words):
    """trl's own parser makes its arguments and its LoraConfig of what `advise` ends with."""
    trl = pytest.importorskip("trl")
    from trl.scripts.grpo import GRPOScriptArguments

    assert main(["model=qwen2.5-3b", *words]) == EXIT_OK
    said = capsys.readouterr().out
    trainer = next((word.partition("=")[2] for word in words if word.startswith(("recipe", "trainer"))), "grpo")
    file = tmp_path / "advised.yaml"
    config = f"{Recipe(trainer).in_classes}Config"
    file.write_text(said[said.index(f"# {config}") :])
    script = GRPOScriptArguments if Recipe(trainer) in GENERATING else trl.ScriptArguments
    training = getattr(trl, config)
    parser = trl.TrlParser((script, training, trl.ModelConfig))
    own = ["--config", str(file), "--use_cpu", "true", "--dataset_name", "x", "--output_dir", str(tmp_path)]
    _, training_args, model_args = parser.parse_args_and_config(own)
    written = yaml.safe_load(file.read_text())
    for name, value in written.items():
        known = getattr(training_args if hasattr(training_args, name) else model_args, name)
        assert known == value or [known] == value, name
    peft = trl.get_peft_config(model_args)
    if written.get("use_peft"):
        assert (peft.r, peft.target_modules) == (written["lora_r"], "all-linear")
    else:
        assert peft is None


@pytest.mark.slow
def test_keys_of_other_trainers_are_as_trl_has_them():
    pytest.importorskip("trl")
    import dataclasses

    import trl
    from trl.scripts.grpo import GRPOScriptArguments

    def names(*classes: type) -> set[str]:
        return {field.name for each in classes for field in dataclasses.fields(each)}

    known = {*KEY_OF, *FREE_KEYS, *NEUTRAL_VALUES, *MODEL_KEYS} - OLD_KEYS
    found = {}
    for recipe in Recipe:
        script = GRPOScriptArguments if recipe.facts.has_rollout else trl.ScriptArguments
        found[recipe] = known & names(getattr(trl, f"{recipe.in_classes}Config"), trl.ModelConfig, script)
    of_all = set.intersection(*found.values())
    listed = [key for keys in KEYS_OF_SOME.values() for key in keys]
    assert len(listed) == len(set(listed))
    for recipe, keys in found.items():
        assert {key for recipes, each in KEYS_OF_SOME.items() if recipe in recipes for key in each} == keys - of_all


def test_an_engine_that_does_not_start_gets_a_larger_part_of_the_card(capsys):
    words = ("model=qwen3-8b", "tuning=qlora", "use_vllm=true", "gpu=a100-40gb", "max_completion_length=4096")
    found = _advised(capsys, *words, "gradient_checkpointing=true")
    (step,) = found["steps"]
    assert (found["before"]["verdict"], found["after"]["verdict"]) == ("vLLM does not start", "fits")
    assert step["lines"] == ["vllm_gpu_memory_utilization: 0.45", "vllm_max_model_length: 4352"]
    assert step["saved_bytes"] < 0
    assert main([*words]) == EXIT_OK
    said = " ".join(capsys.readouterr().out.split())
    assert "vLLM does not start: vllm_gpu_memory_utilization=0.3 of a100-40gb" in said
    assert "1. memory for vLLM's weights and one sequence: the job starts, takes " in said


def test_where_no_part_of_the_card_is_enough_for_vllm_the_model_generates_itself(capsys):
    found = _advised(
        capsys, "model=qwen2.5-7b", "tuning=qlora", "use_vllm=true", "gpu=rtx-4070-12gb", "max_completion_length=256"
    )
    assert "rollouts without vLLM" in [step["name"] for step in found["steps"]]
    assert found["fits"] and not found["trial_after"]["use_vllm"]
    assert not any("vllm" in key for key in found["config"])


def test_fewer_rows_of_an_evaluation_are_written_to_the_file(capsys, tmp_path):
    """With trl 1.5 the logits of 8 rows of 4,096 are the peak; two fit, and training has one row."""
    path = tmp_path / "sft.yaml"
    path.write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\npacking: true\neval_strategy: steps\n"
        "per_device_train_batch_size: 1\nmax_length: 4096\n"
    )
    found = _advised(capsys, f"config={path}", f"gpu={CARD}", "trl=1.5")
    assert [(step["name"], step["lines"]) for step in found["steps"]] == [
        ("smaller batches of the evaluation", ["per_device_eval_batch_size: 2"])
    ]
    assert found["config"]["per_device_eval_batch_size"] == 2
