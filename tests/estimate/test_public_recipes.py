"""Configurations that others published for trl's GRPO get an answer.

`public_recipes.json` has keys and values of 21 files, each with its repository; long texts are shortened.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from profiler.domain.errors import EXIT_OK, EXIT_USAGE, Fault, UsageError
from profiler.estimate.main import answer, main

RECIPES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "public_recipes.json").read_text())


def _no_hub(model: str) -> Mapping[str, object]:
    raise UsageError([Fault(key="model", found=model, problem="the hub cannot be reached")])


def _written(folder: Path, recipe: Mapping[str, Any]) -> str:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe["keys"]))
    return f"config={path}"


def test_every_recipe_with_a_known_model_is_answered(tmp_path, capsys):
    refused = {}
    for recipe in RECIPES:
        if main([_written(tmp_path, recipe)], load_model=_no_hub) != EXIT_OK:
            refused[recipe["keys"]["model_name_or_path"]] = capsys.readouterr().err
    assert set(refused) == {"silx-ai/Quasar-2.5-7B-Ultra"}
    assert "the hub cannot be reached" in refused["silx-ai/Quasar-2.5-7B-Ultra"]


def _first(name: str) -> dict[str, Any]:
    return next(recipe for recipe in RECIPES if recipe["file"].endswith(name))


def test_what_the_file_does_not_say_is_stated(tmp_path):
    found = json.loads(answer([_written(tmp_path, _first("grpo_rlpvr-example.yaml")), "format=json"]))
    # 24 x 8 completions are no multiple of 7; 7 processes make 1,344.
    assert "num_processes=7 (the fewest that num_generations allows)" in found["notes"][0]
    assert "vllm_mode=server (vLLM has GPUs of its own)" in found["notes"][0]
    assert "beta=0.04 (trl's default then)" in found["notes"][0]
    assert (found["trial"]["num_processes"], found["trial"]["vllm_mode"]) == (7, "server")


def test_a_key_of_the_command_line_needs_no_assumption(tmp_path):
    settled = ["trl=0.17", "beta=0.04", "optim=adamw_torch", "logprobs=fused"]
    words = ["num_processes=14", "vllm_mode=colocate", *settled, "format=json"]
    found = json.loads(answer([_written(tmp_path, _first("grpo_rlpvr-example.yaml")), *words]))
    assert found["notes"] == []
    assert found["trial"]["vllm_gpu_memory_utilization"] == 0.7


def test_keys_of_the_users_script_are_listed_and_change_nothing(tmp_path, capsys):
    recipe = _first("config_demo.yaml")
    assert main([_written(tmp_path, recipe)]) == EXIT_OK
    said = capsys.readouterr()
    assert said.err.startswith("Ignored, because trl has no such keys: dataset_configs, system_prompt")
    trimmed = {"keys": {key: value for key, value in recipe["keys"].items() if key not in said.err}}
    assert main([_written(tmp_path, trimmed)]) == EXIT_OK
    assert capsys.readouterr().out == said.out


def test_strict_refuses_keys_that_trl_does_not_have(tmp_path, capsys):
    assert main([_written(tmp_path, _first("config_demo.yaml")), "strict=true"]) == EXIT_USAGE
    assert "system_prompt=" in capsys.readouterr().err
    assert main([_written(tmp_path, _first("config_demo.yaml")), "strict=maybe"]) == EXIT_USAGE


@pytest.mark.parametrize("path", ["/nowhere/Qwen2.5-7B-Instruct", "./models/qwen2.5-7b-instruct/"])
def test_a_folder_of_another_machine_is_taken_by_its_name(tmp_path, path):
    recipe = {"keys": {**_first("config_demo.yaml")["keys"], "model_name_or_path": path}}
    found = json.loads(answer([_written(tmp_path, recipe), "format=json"], load_model=_no_hub))
    assert found["trial"]["model"] == "qwen2.5-7b"
    assert f"because there is no {path} here" in found["notes"][0]


def test_a_folder_that_is_here_is_read(tmp_path):
    folder = tmp_path / "Qwen2.5-7B-Instruct"
    folder.mkdir()
    recipe = {"keys": {**_first("config_demo.yaml")["keys"], "model_name_or_path": str(folder)}}
    with pytest.raises(UsageError, match="the hub cannot be reached"):
        answer([_written(tmp_path, recipe)], load_model=_no_hub)
