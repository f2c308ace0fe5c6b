"""`python -m profiler.solve KEY,KEY`: the largest value of the second key for each value of the first."""

import json

import pytest

from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_USAGE
from profiler.solve.main import main

MODEL = ("model=qwen2.5-7b", "tuning=lora", "gpu=h100-80gb", "gradient_accumulation_steps=1", "num_generations=2")
KEYS = "per_device_train_batch_size,max_completion_length"


def _never(specs):
    raise AssertionError("a limit line is not simulated")


def _json(capsys, *words):
    assert main([*words, "format=json"], simulate=_never) == EXIT_OK
    return json.loads(capsys.readouterr().out)


def test_each_point_is_what_one_key_alone_gives(capsys):
    (line,) = _json(capsys, KEYS, *MODEL)["lines"]
    assert line["keys"] == KEYS.split(",")
    assert set(line["keys"]).isdisjoint(line["trial"])
    values = [point["per_device_train_batch_size"] for point in line["points"]]
    assert values[:-1] == [2**exponent for exponent in range(1, len(values))]
    for point in (line["points"][0], line["points"][3], line["points"][-1]):
        rows = point["per_device_train_batch_size"]
        words = ("max_completion_length", *MODEL, f"per_device_train_batch_size={rows}", "confirm=false")
        (alone,) = _json(capsys, *words)["answers"]
        same = ("largest", "beyond", "largest_needed_bytes", "beyond_needed_bytes")
        assert {name: point[name] for name in same} == {name: alone[name] for name in same}
    limits = [point["largest"] for point in line["points"]]
    assert limits == sorted(limits, reverse=True)


def test_the_last_value_is_the_largest_that_fits_at_all(capsys):
    (line,) = _json(capsys, KEYS, *MODEL)["lines"]
    last = line["points"][-1]
    (alone,) = _json(capsys, "per_device_train_batch_size", *MODEL, "max_completion_length=1", "confirm=false")[
        "answers"
    ]
    assert (last["per_device_train_batch_size"], last["largest"] >= 1) == (alone["largest"], True)


def test_a_file_may_state_both_keys(capsys, tmp_path):
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(
        "model_name_or_path: Qwen/Qwen2.5-7B\nuse_peft: true\nmax_completion_length: 512\nnum_generations: 2\n"
        "per_device_train_batch_size: 8\nmax_prompt_length: 256\n"
    )
    (line,) = _json(capsys, KEYS, f"config={recipe}", "gpu=h100-80gb", "per_device_train_batch_size=4,16")["lines"]
    assert [point["per_device_train_batch_size"] for point in line["points"]] == [4, 16]


def test_values_of_the_first_key_may_be_given_and_each_card_has_a_line(capsys, tmp_path):
    keys = "max_completion_length,per_device_train_batch_size"
    words = (keys, *MODEL, "max_completion_length=1000,3000", "gpu=h100-80gb,a100-40gb")
    figure = tmp_path / "line.png"
    assert main([*words, f"figure={figure}"], simulate=_never) == EXIT_OK
    said = capsys.readouterr().out
    assert said.count("  1,000  ") == 2
    assert "on a100-40gb." in said
    assert f"Drawn in {figure}." in " ".join(said.split())
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert [line["gpu"] for line in _json(capsys, *words)["lines"]] == ["h100-80gb", "a100-40gb"]


def test_nothing_fits_and_everything_fits_have_words(capsys):
    words = (KEYS, "model=qwen2.5-7b", "gpu=t4-16gb")
    assert main(words, simulate=_never) == EXIT_OK
    assert "none fits" in capsys.readouterr().out
    assert main([*words, "fail_if=does_not_fit"], simulate=_never) == EXIT_ANSWER_IS_NO
    capsys.readouterr()
    assert main([KEYS, "model=tiny", "gpu=b200-180gb", "per_device_train_batch_size=4,8"], simulate=_never) == EXIT_OK
    said = capsys.readouterr().out
    assert said.count("all fit") == 2
    assert "All values of max_completion_length that the other keys allow fit" in " ".join(said.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["max_completion_length,max_completion_length"], "name one key to solve for, or two"),
        (["steps,max_completion_length,lora_rank"], "name one key to solve for, or two"),
        (["gpu,max_completion_length"], "gpu is solved for by itself"),
        (["max_completion_length,beta"], "key=beta: has no largest value that fits"),
        ([KEYS, "max_completion_length=1,2"], "max_completion_length=(1, 2): is what is solved for"),
        ([KEYS, "per_device_train_batch_size=4"], "per_device_train_batch_size=4: is what is solved for"),
        (["max_completion_length", "figure=a.png"], "figure=a.png: draws the limit line of two keys"),
        ([KEYS, "figure=a.jpg"], "figure=a.jpg: must be a file that ends with .png, .svg, .pdf"),
    ],
)
def test_bad_input_is_one_sentence(capsys, words, sentence):
    assert main([*words, "model=qwen2.5-7b", "gpu=h100-80gb"], simulate=_never) == EXIT_USAGE
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_a_key_with_several_values_is_not_in_the_title(capsys):
    words = ("lora_rank,max_completion_length", *MODEL, "lora_rank=8,16")
    assert main(words, simulate=_never) == EXIT_OK
    assert "rank" not in capsys.readouterr().out.replace("lora_rank", "")
