"""The keys of images: what is assumed where they are left out, and what a recipe says."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from profiler.config.models.context import images_line
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.config.trl.yaml import trl_arguments
from profiler.constraints.table import faults_in_a_sweep
from profiler.domain.errors import EXIT_USAGE, UsageError
from profiler.estimate.main import answer
from profiler.sweep.main import main as sweep

QWEN = "qwen2.5-vl-3b"


def _parsed(**values):
    return parse_point({"backend": "simulated", "model": QWEN, **values}, architecture_of=builtin_architecture)


def _images(spec):
    return spec.images_per_prompt, spec.min_pixels, spec.max_pixels, spec.max_prompt_length


def test_without_any_key_the_published_processor_decides():
    """12,845,056 / 784 = 16,384 tokens, and 256 of text."""
    assert _images(_parsed()) == (1, 3_136, 12_845_056, 16_640)
    assert _images(_parsed(model="qwen3-vl-4b")) == (1, 65_536, 16_777_216, 16_640)


def test_a_given_length_includes_the_images_and_limits_them():
    assert _images(_parsed(max_prompt_length=2048)) == (1, 3_136, 2_048 * 784, 2_048)
    assert _images(_parsed(max_prompt_length=2048, images_per_prompt=2)) == (2, 3_136, 1_024 * 784, 2_048)
    assert _images(_parsed(max_prompt_length=20_000)) == (1, 3_136, 12_845_056, 20_000)
    assert _images(_parsed(max_pixels=401_408, images_per_prompt=3)) == (3, 3_136, 401_408, 1_792)
    assert _images(_parsed(max_pixels=784)) == (1, 784, 784, 257)


def test_a_model_of_text_alone_has_none_of_the_keys():
    assert _images(_parsed(model="qwen2.5-0.5b"))[:3] == (None, None, None)
    with pytest.raises(UsageError, match="which has no vision tower"):
        _parsed(model="qwen2.5-0.5b", images_per_prompt=1)


@given(
    images=st.integers(1, 4) | st.none(),
    tokens=st.integers(1, 16_384) | st.none(),
    length=st.integers(70_000, 100_000) | st.none(),
)
def test_a_specification_read_again_is_the_same(images, tokens, length):
    pixels = None if tokens is None else tokens * 784 + 5
    stated = {} if length is None else {"max_prompt_length": length}
    spec = _parsed(images_per_prompt=images, max_pixels=pixels, **stated)
    again = dict(
        zip(("images_per_prompt", "min_pixels", "max_pixels", "max_prompt_length"), _images(spec), strict=True)
    )
    assert _parsed(**again) == spec


def test_the_answer_states_images_first(tmp_path):
    path = tmp_path / "recipe.yaml"
    recipe = {"model_name_or_path": "Qwen/Qwen2.5-VL-3B-Instruct", "dtype": "bfloat16", "max_pixels": 401_408}
    path.write_text(yaml.safe_dump(recipe))
    found = json.loads(answer([f"config={path}", "format=json"]))
    stated = "1 image per prompt, in prompts of 768 tokens; each has 512 tokens, made of 2,048 patches"
    assert found["notes"][0] == f"{QWEN}: {stated} (max_pixels=401408)."
    assert not any("max_prompt_length=256" in note for note in found["notes"])
    assert f"\n\n{QWEN}: 1 image per prompt, in prompts of 768 tokens;" in answer([f"config={path}"])
    cards = answer([f"config={path}", "gpu=any"])
    assert "each has 512" in " ".join(cards.split())
    grid = answer([f"model={QWEN}", "max_pixels=401408", "num_generations=4,8"])
    assert grid.startswith(f"{QWEN}: 1 image per prompt; each has 512 tokens")
    assert "the processor's default" in answer([f"model={QWEN}"])


def test_the_values_of_an_axis_are_read_one_by_one():
    """A shorter prompt has a smaller image, also where other keys of a grid are read once."""
    found = json.loads(answer([f"model={QWEN}", "max_prompt_length=512,4096", "format=json"]))
    peaks = [point["peak_allocated_bytes"] for point in found["points"]]
    alone = [json.loads(answer([f"model={QWEN}", f"max_prompt_length={n}", "format=json"])) for n in (512, 4096)]
    assert peaks == [each["peak_allocated_bytes"] for each in alone]


@pytest.mark.parametrize("recipe", ["grpo", "rloo", "sft"])
def test_a_sweep_says_that_it_does_not_run_such_a_model(recipe, capsys):
    assert [fault.key for fault in faults_in_a_sweep([_parsed(recipe=recipe)], builtin_architecture)] == ["model"]
    words = [f"+grid={'sft' if recipe == 'sft' else 'logprobs'}", f"recipe={recipe}", f"model={QWEN}"]
    assert sweep([*words, "backend=simulated", "dry_run=true"]) == EXIT_USAGE
    assert "a sweep does not run models with a vision tower yet" in capsys.readouterr().err


def test_advice_names_the_checkpoint_and_no_key_that_trl_lacks():
    found = trl_arguments(_parsed(max_pixels=401_408))
    assert found["model_name_or_path"] == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert not [name for name in found if "pixels" in name]


def test_a_model_of_text_alone_has_no_line():
    spec = _parsed(model="qwen2.5-0.5b")
    assert images_line(spec, builtin_architecture("qwen2.5-0.5b")) == ""
