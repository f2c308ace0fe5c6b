"""Keys of a user's own script in a recipe of trl: which are ignored, and which refuse the file."""

import json

import pytest
import yaml

from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.estimate.main import answer, main

RECIPE = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct",
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "max_completion_length": 256,
}

OWN = {
    "wandb_project": "maths",
    "wandb_entity": "team",
    "system_prompt": "Think.",
    "dataset_prompt_column": "question",
}


@pytest.fixture
def recipe(tmp_path):
    """Write a recipe and return the word that names it."""

    def write(**values):
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(values))
        return f"config={path}"

    return write


def test_keys_of_the_users_script_next_to_trls_are_ignored(recipe, capsys):
    assert main([recipe(**RECIPE, **OWN)]) == EXIT_OK
    said = capsys.readouterr()
    assert all(key in said.err for key in OWN)
    assert main([recipe(**RECIPE)]) == EXIT_OK
    assert capsys.readouterr().out == said.out


@pytest.mark.parametrize("words", [(), ("model=qwen2.5-0.5b",)])
def test_a_file_of_which_most_keys_are_unknown_is_refused(recipe, capsys, words):
    assert main([recipe(**RECIPE, **OWN, rounds=3), *words]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "recipe.yaml: has 5 of 9 keys that trl does not have (" in said
    assert "wandb_project" in said
    assert "Give the job by keys of a trial" in said
    assert len(said.splitlines()) == 1


def test_keys_in_an_unknown_section_count_one_by_one(recipe, capsys):
    own = {"training": {"rows": 4, "lora": {"r": 8, "alpha": 16}}, "seed": 1, "output_dir": "x"}
    assert main([recipe(**own), "model=qwen2.5-0.5b"]) == EXIT_USAGE
    assert "has 3 of 5 keys that trl does not have (" in capsys.readouterr().err


def test_a_length_and_a_seed_are_no_job(recipe, capsys):
    """A configuration of a data set has them too; what would be answered are trl's defaults."""
    own = {"sources": {"path": "a", "weight": 1.0}, "preprocessing": {"max_seq_length": 64, "dedup": "md5"}, "seed": 1}
    assert main([recipe(**own), "model=qwen2.5-0.5b"]) == EXIT_USAGE
    assert "has 4 of 5 keys that trl does not have (" in capsys.readouterr().err
    own["training"] = {"per_device_train_batch_size": 2}
    assert main([recipe(**own), "model=qwen2.5-0.5b"]) == EXIT_OK


def test_without_a_key_that_only_recipes_have_half_is_enough(recipe, capsys):
    assert main([recipe(seed=1, max_steps=9, scenarios="a", repeats=3), "model=qwen2.5-0.5b"]) == EXIT_USAGE
    assert "has 2 of 4 keys that trl does not have" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("own", "key", "given"),
    [
        ({"kl_beta": 0.04}, "beta", "beta=0.04"),
        ({"group_size": 4}, "num_generations", "num_generations=4"),
        ({"max_new_tokens": 600}, "max_completion_length", "max_completion_length=600"),
        ({"batch_size": 4}, "per_device_train_batch_size", "per_device_train_batch_size=4"),
        ({"target_modules": ["q_proj"]}, "lora_target_modules", "lora_target_modules=[q_proj]"),
        ({"lora_config": {"r": 8}}, "tuning", "tuning=lora"),
        ({"base_model": "a/b"}, "model", "model=qwen2.5-0.5b"),
    ],
)
def test_what_trl_has_a_key_for_is_not_lost_under_another_name(recipe, capsys, own, key, given):
    trls = {"beta": 0.0, "gradient_accumulation_steps": 4, "learning_rate": 1e-6, "bf16": True, "seed": 1}
    trls = {name: value for name, value in trls.items() if name != key}
    named = [] if key == "model" else ["model=qwen2.5-0.5b"]
    assert main([recipe(**trls, **own), *named]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert f"{key}=" in said
    assert f"is {next(iter(own))} in recipe.yaml, and trl's key is " in said
    assert main([recipe(**trls, **own), *named, given]) == EXIT_OK, capsys.readouterr().err


def test_another_name_next_to_trls_is_the_users_own(recipe):
    assert main([recipe(**RECIPE, batch_size=99, use_lora=False)]) == EXIT_OK


@pytest.mark.parametrize("label", ["model_short", "model_tag", "base_model_alias"])
def test_a_label_of_the_model_is_not_its_name(recipe, label):
    """Of nhockid235/xling-grpo-sub3b."""
    sections = {"grpo": {key: value for key, value in RECIPE.items() if key != "model_name_or_path"}}
    own = {"model_name_or_path": RECIPE["model_name_or_path"], label: "qwen05b", "reward": {"right": 1}}
    assert json.loads(answer([recipe(**own, **sections), "format=json"]))["trial"]["model"] == "qwen2.5-0.5b"


@pytest.mark.parametrize(
    ("named", "is_read"), [("base.yaml", True), (["first.yaml", "base.yaml"], True), ("none.yaml", False)]
)
@pytest.mark.parametrize("key", ["extends", "_base_"])
def test_what_a_file_extends_counts_below_it(recipe, tmp_path, capsys, key, named, is_read):
    """Of nhockid235/xling-grpo-sub3b: sections over those of a shared file, which extends another one."""
    (tmp_path / "first.yaml").write_text(yaml.safe_dump({"grpo": {"num_generations": 2, "beta": 0.5}}))
    base = {key: "first.yaml", "model_name_or_path": RECIPE["model_name_or_path"], "grpo": {"num_generations": 4}}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    own = {"per_device_train_batch_size": 8, "max_completion_length": 64}
    word = recipe(**{key: named}, rewards=["right"], grpo=own)
    if not is_read:
        assert main([word]) == EXIT_USAGE
        assert f"config=none.yaml: is what recipe.yaml extends ({key}), and there is no" in capsys.readouterr().err
        return
    trial = json.loads(answer([word, "trl=1.16", "format=json"]))["trial"]
    expected = {"num_generations": 4, "beta": 0.5, "per_device_train_batch_size": 8, "model": "qwen2.5-0.5b"}
    assert {name: trial[name] for name in expected} == expected


def test_files_that_extend_each_other_are_refused(recipe, capsys):
    assert main([recipe(extends="recipe.yaml", **RECIPE)]) == EXIT_USAGE
    assert "is what recipe.yaml extends (extends)" in capsys.readouterr().err


def test_a_companion_file_with_mostly_unknown_keys_is_refused(recipe, capsys):
    own = {"machine_rank": 0, "rooms": 1, "doors": 2, "windows": 3}
    assert main([recipe(**own), "model=qwen2.5-0.5b"]) == EXIT_USAGE
    assert "has 3 of 4 keys that accelerate does not have" in capsys.readouterr().err


def test_a_recipe_with_a_key_of_an_adapter_stays_a_recipe(recipe):
    own = {"base_model_name_or_path": "Qwen/Qwen2.5-0.5B"}
    assert json.loads(answer([recipe(**RECIPE, **own), "format=json"]))["trial"]["num_generations"] == 8
