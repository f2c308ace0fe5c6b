"""Files of public repositories, rebuilt from their facts in words of our own, and answered.

Each case has a repository, a path, keys and values, and the facts that a reader found there. What is rebuilt keeps the
constructs by which the file states its values: variables of a shell, arrays, options of argparse, constants.
"""

import contextlib
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from profiler.config.models.lookup import canonical_model
from profiler.domain.errors import EXIT_OK
from profiler.estimate.main import answer, main

HERE = Path(__file__).parent

SMALL = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}

FACTS = {
    "per_device_batch": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "group": "num_generations",
    "max_prompt_length": "max_prompt_length",
    "max_completion_length": "max_completion_length",
    "max_length": "max_length",
    "checkpointing": "gradient_checkpointing",
    "lora_rank": "lora_rank",
    "lora_alpha": "lora_alpha",
    "lora_targets": "lora_target_modules",
    "optimizer": "optim",
    "attention": "attn_implementation",
    "beta": "beta",
    "gpus": "num_processes",
    "dtype": "dtype",
    "bf16": "bf16",
    "lora_dropout": "lora_dropout",
    "double_quantization": "bnb_4bit_use_double_quant",
    "logprobs": "logprobs",
    "liger": "use_liger_kernel",
    "zero_stage": "zero_stage",
    "lengths": "lengths",
    "vllm_mode": "vllm_mode",
    "vllm_share": "vllm_gpu_memory_utilization",
    "steps_per_generation": "steps_per_generation",
}
"""The key of a trial by the name of a fact."""


SHORT = {
    "unsloth/llama-3-8b": "llama-3.1-8b",
    "unsloth/llama-3-8b-Instruct": "llama-3.1-8b",
    "unsloth/mistral-7b": "mistral-7b-v0.1",
}
"""Built-in models by Unsloth's own names of them."""


def cases(name: str) -> list[dict[str, Any]]:
    """Return the cases of a format."""
    found = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(found, list)
    return found


@dataclass(frozen=True)
class Said:
    """What the command says of a file."""

    trial: Mapping[str, Any] | None
    """None if it is refused."""
    notes: str
    errors: tuple[str, ...]
    bounds: Mapping[str, Any]
    """Those of a program with kernels of its own; empty for an estimate."""


MODEL = "model=qwen2.5-0.5b"


def said(*words: str) -> Said:
    """Return the answer in the newest release of trl that the file can be for; `MODEL` may be among the words."""
    for release in (("trl=1.16",), ()):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*words[:1], "gpu=h100", "format=json", *release, *words[1:]], load_model=lambda _: SMALL)
        if code == EXIT_OK:
            found = json.loads(out.getvalue())
            return Said(found["trial"], " ".join(found["notes"]), (), found.get("bounds", {}))
    return Said(None, "", tuple(err.getvalue().splitlines()), {})


def wrong(facts: Mapping[str, Any], answer: Said, *, with_model: bool = False) -> dict[str, tuple[Any, Any]]:
    """Return the facts that the answered trial contradicts, each with both values."""
    trial = answer.trial
    assert trial is not None
    found = {}
    for fact, key in FACTS.items():
        if fact not in facts or trial.get(key) is None or _same(facts[fact], trial[key]):
            continue
        if fact == "per_device_batch" and f"Unsloth widens {facts[fact]}" in answer.notes:
            continue
        if facts[fact] == "auto" and f"trl's default of {key}" in answer.notes:
            continue
        found[fact] = (facts[fact], trial[key])
    stated = facts.get("model") if not with_model else None
    stated = stated.removesuffix("-bnb-4bit") if isinstance(stated, str) else stated
    if (
        stated is not None
        and canonical_model(SHORT.get(str(stated), str(stated))) != trial["model"]
        and f"no {stated} here" not in answer.notes
    ):
        found["model"] = (stated, trial["model"])
    if facts.get("quantization") is True and trial["tuning"] != "qlora":
        found["quantization"] = (True, trial["tuning"])
    if facts.get("use_vllm") in (True, False) and facts["use_vllm"] != (trial.get("vllm_mode") is not None):
        found["use_vllm"] = (facts["use_vllm"], trial.get("vllm_mode"))
    if "lora_rank" in facts and facts.get("tuning") and trial["tuning"] == "full":
        found["tuning"] = ("lora", "full")
    if facts.get("method") not in (None, trial["recipe"]):
        found["method"] = (facts["method"], trial["recipe"])
    return found


def _same(stated: Any, found: Any) -> bool:
    if isinstance(stated, list | tuple) or isinstance(found, list):
        return sorted(map(str, stated if isinstance(stated, list) else [stated])) == sorted(map(str, found))
    if isinstance(stated, str) and isinstance(found, bool):
        return stated.lower() == str(found).lower()
    if isinstance(stated, int | float) and isinstance(found, int | float):
        return float(stated) == float(found)
    return str(stated) == str(found)


# ---- command lines -------------------------------------------------------------------------------------------------


def words_of(case: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line."""
    program = [case["script"]]
    if not case["start"].startswith("trl") and not case["script"].endswith(".py"):
        program = ["-m", case["script"]]
    start = case["start"].split()
    if start[0] == "trl":
        start, program = ["trl", case["script"]], []
    return [*start, *_options(case["launch"]), *program, *_options(case["arguments"])]


def _options(values: Mapping[str, Any]) -> list[str]:
    words = []
    for key, value in values.items():
        words.append(f"--{key}")
        if isinstance(value, list):
            words += [str(each) for each in value]
        elif value is not True:
            words.append(str(value))
    return words


def write_shell(folder: Path, case: Mapping[str, Any]) -> str:
    """Write the files of a command line, and a script whose values are in variables and in an array."""
    for name, keys in case["files"].items():
        path = folder / Path(name.replace("../", "")).name
        path.write_text(json.dumps(keys) if path.suffix == ".json" else yaml.safe_dump(keys))
    lines = ["#!/bin/bash", "set -e"]
    start = words_of({**case, "arguments": {}})
    array = []
    for number, word in enumerate(_options(case["arguments"])):
        if word.startswith("--"):
            array.append(word)
        elif word.startswith("$"):
            array.append(f'"{word}"')
        else:
            lines.append(f"VALUE_{number}={shlex.quote(word)}")
            array.append(f'"$VALUE_{number}"')
    lines += ["ARGUMENTS=(", *(f"    {each}" for each in array), ")"]
    lines.append(
        " \\\n    ".join(["ACCELERATE_LOG_LEVEL=info " + start[0], *map(shlex.quote, start[1:]), '"${ARGUMENTS[@]}"'])
    )
    (folder / "run.sh").write_text("\n".join(lines) + "\n")
    return f"config={folder / 'run.sh'}"


# ---- scripts -------------------------------------------------------------------------------------------------------

_TRAINERS = {"grpo": "GRPOTrainer", "sft": "SFTTrainer", "rloo": "RLOOTrainer"}
_LORA = {"lora_r": "r", "lora_target_modules": "target_modules"}


def script_text(case: Mapping[str, Any]) -> str:
    """Return a script that states the values of a case by the constructs of its file."""
    calls, options = case["calls"], {key: each["value"] for key, each in case["options"].items()}
    constants: dict[str, Any] = {}
    bodies = {name: _arguments(name, each, options, constants) for name, each in calls.items()}
    module = "trl" if case["of_trl"] else "ours.training"
    trainer = _TRAINERS.get(case["method"], "GRPOTrainer")
    config = next((name for name in ("GRPOConfig", "SFTConfig", "RLOOConfig") if name in calls), "GRPOConfig")
    lines = [
        "import argparse",
        "import torch",
        "from peft import LoraConfig",
        f"from {module} import {config}, {trainer}",
    ]
    lines += [
        "from transformers import AutoModelForCausalLM, BitsAndBytesConfig",
        "",
        "parser = argparse.ArgumentParser()",
    ]
    for name, value in options.items():
        lines.append(f"parser.add_argument('--{name}', default={value!r})")
    lines += [
        "args = parser.parse_args()",
        *(f"{name} = {value!r}" for name, value in constants.items()),
        "",
        "def main(args):",
    ]
    model = next((f"args.{key}" for key, each in case["options"].items() if each["fact"] == "model"), None)
    if model is None:
        model = repr(case["facts"]["model"]) if "model" in case["facts"] else "choose_model()"
    if "BitsAndBytesConfig" in bodies:
        lines.append(f"    quantization = BitsAndBytesConfig({bodies['BitsAndBytesConfig']})")
    loads = next((name for name in bodies if name.endswith("from_pretrained")), None)
    if loads is not None and "pretrained_model_name_or_path" not in calls[loads]:
        bodies[loads] = ", ".join(filter(None, [model, bodies[loads]]))
    if loads is not None and "BitsAndBytesConfig" in bodies and "quantization_config" not in calls[loads]:
        bodies[loads] = ", ".join(filter(None, [bodies[loads], "quantization_config=quantization"]))
    if loads is not None:
        lines.append(f"    model = AutoModelForCausalLM.from_pretrained({bodies[loads]})")
        model = "model"
    if "ModelConfig" in bodies:
        lines.append(f"    model_config = ModelConfig({bodies['ModelConfig']})")
    adapter = f", peft_config=LoraConfig({bodies['LoraConfig']})" if "LoraConfig" in bodies else ""
    lines.append(f"    arguments = {config}({bodies.get(config, '')})")
    lines.append(f"    {trainer}(model={model}, args=arguments{adapter}).train()")
    lines += ["", "if __name__ == '__main__':", "    main(args)", ""]
    return "\n".join(lines)


def _arguments(name: str, each: Mapping[str, Any], options: dict[str, Any], constants: dict[str, Any]) -> str:
    words = []
    for key, stated in each.items():
        argument = _LORA.get(key, key) if name == "LoraConfig" else key
        value = repr(stated["value"])
        if stated["how"] in ("option", "field"):
            options.setdefault(key, stated["value"])
            value = f"args.{key}"
        elif stated["how"] == "constant":
            constants[f"CONSTANT_{key.upper()}"] = stated["value"]
            value = f"CONSTANT_{key.upper()}"
        elif stated["how"] == "torch":
            value = str(stated["value"])
        elif stated["value"] is None:
            value = f"settings()[{key!r}]"
        words.append(f"{argument}={value}")
    if name == "LoraConfig" and "lora_rank" in options and "lora_r" not in each:
        words.append("r=args.lora_rank")
    return ", ".join(words)


def write_script(folder: Path, case: Mapping[str, Any]) -> str:
    """Write a script, or a notebook with its text in two cells."""
    text = script_text(case)
    if not case["notebook"]:
        (folder / "train.py").write_text(text)
        return f"config={folder / 'train.py'}"
    first, _, second = text.partition("def main")
    cells = [
        {"cell_type": "markdown", "source": "# Training"},
        {"cell_type": "code", "source": ["!pip install trl\n", *first.splitlines(True)]},
        {"cell_type": "code", "source": f"def main{second}"},
    ]
    (folder / "train.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}))
    return f"config={folder / 'train.ipynb'}"


def write_yaml(folder: Path, case: Mapping[str, Any]) -> str:
    """Write a YAML file, whose name may say what it trains."""
    name = f"{Path(case['path']).stem}.yaml"
    (folder / name).write_text(yaml.safe_dump(case["keys"]))
    return f"config={folder / name}"


def write_program(folder: Path, case: Mapping[str, Any]) -> str:
    """Write a script that calls a program with commands of its own, with variables of the environment."""
    lines = ["#!/bin/bash", "set -e"]
    for number, (name, value) in enumerate(case["environment"].items()):
        lines.append(f"{'export ' if number else ''}{name}={shlex.quote(value)}")
    first = next(iter(case["environment"]), None)
    start = [f'{first}="${first}"'] if first is not None else []
    words = [shlex.quote(word) for word in _options(case["arguments"])]
    lines.append(" \\\n    ".join([*start, case["command"], *words]))
    (folder / "run.sh").write_text("\n".join(lines) + "\n")
    return f"config={folder / 'run.sh'}"


def write_unsloth(folder: Path, case: Mapping[str, Any]) -> str:
    """Write a script that loads its model by Unsloth, adapts it, and trains by trl, or a notebook of it."""
    names = {name.partition(".")[0] for name in case["calls"]} - {"TrainingArguments"}
    of_unsloth = {name for name in names if name.startswith(("Fast", "Unsloth"))}
    lines = [f"from unsloth import {', '.join(sorted(of_unsloth))}", "import os"]
    lines += [f"from trl import {', '.join(sorted(names - of_unsloth))}"] if names - of_unsloth else []
    lines.append("from transformers import TrainingArguments")
    lines += [f"os.environ[{name!r}] = '1'" for name in case.get("environment", ())]
    found = {name: ", ".join(f"{key}={value!r}" for key, value in each.items()) for name, each in case["calls"].items()}
    load, adapt = (next(name for name in found if name.endswith(end)) for end in ("from_pretrained", "get_peft_model"))
    trainer = next(name for name in found if name.endswith("Trainer"))
    config = next((name for name in found if name.endswith(("Config", "Arguments"))), "TrainingArguments")
    lines.append(f"model, tokenizer = {load}({found[load]})")
    lines.append(f"model = {adapt}({', '.join(filter(None, ['model', found[adapt]]))})")
    lines.append(f"arguments = {config}({found.get(config, '')})")
    lines.append(f"{trainer}(model=model, args=arguments).train()")
    if not case["notebook"]:
        (folder / "train.py").write_text("\n".join(lines) + "\n")
        return f"config={folder / 'train.py'}"
    cells = [{"cell_type": "code", "source": [f"{line}\n" for line in lines]}]
    (folder / "train.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}))
    return f"config={folder / 'train.ipynb'}"


# ---- texts ----------------------------------------------------------------------------------------------------------

OPTIONS = """
while getopts ":n:" opt; do case ${opt} in n ) ROLLOUTS=$OPTARG;; esac; done
ROLLOUTS="${ROLLOUTS:-8}"
python -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct trainer.n_gpus_per_node=2 \\
    algorithm.adv_estimator=grpo data.train_batch_size=32 actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.n=${ROLLOUTS} \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.tensor_model_parallel_size=1
"""
"""A script that starts verl's trainer."""


def facts_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the answer to some words, as JSON."""
    found: dict[str, Any] = json.loads(answer([*words, "format=json"]))
    return found


def read(folder: Path, name: str, text: str, *words: str) -> tuple[str, ...]:
    """Write a file, and return the words of a command that reads it."""
    (folder / name).write_text(text, encoding="utf-8")
    return f"config={folder / name}", "gpu=h100", *words
