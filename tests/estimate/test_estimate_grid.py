"""`python -m profiler.estimate` with several values of a key."""

import json
from itertools import product

import pytest
from counted import python_calls
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.config.models.lookup import builtin_architecture
from profiler.config.options.value_grammar import read_values
from profiler.config.trials.grid import MAX_POINTS
from profiler.config.trials.specification import parse_points
from profiler.domain.errors import EXIT_USAGE, UsageError
from profiler.estimate.command import read_command
from profiler.estimate.grid import INDEPENDENT_KEYS, grid_specs
from profiler.estimate.main import answer, main

_GRID = ["model=qwen2.5-0.5b,qwen2.5-7b", "num_generations=4,8,16", "gpu=a100-40gb"]
_COMMON = {"backend": "simulated", "model": "qwen2.5-0.5b"}

_VALUES = {
    "model": ["qwen2.5-0.5b", "llama-3.1-8b", "Qwen/Qwen2.5-7B"],
    "tuning": ["full", "lora", "qlora"],
    "lora_rank": [8, 16],
    "num_generations": [2, 4, 8],
    "max_prompt_length": [64, 1024],
    "max_completion_length": [128, 786, 40_000],
    "per_device_train_batch_size": [1, 4, 8],
    "gradient_accumulation_steps": [1, 4],
    "steps_per_generation": [None, 2],
    "steps": [1, 3],
    "seed": [0, 1],
    "beta": [0.0, 0.04],
    "attn_implementation": ["sdpa", "flash_attention_2"],
    "gpu": ["h100-80gb", "t4-16gb"],
}


def test_one_table_has_one_row_per_combination():
    lines = answer(_GRID).splitlines()
    header = next(line for line in lines if line.startswith("model"))
    rows = [line.split() for line in lines if line.startswith("qwen2.5")]

    assert header.split() == ["model", "num_generations", "allocated", "reserved", "rule", "peak", "in", "verdict"]
    expected = [[model, n] for model in ("qwen2.5-0.5b", "qwen2.5-7b") for n in ("4", "8", "16")]
    assert [row[:2] for row in rows] == expected
    assert "6 trials on a100-40gb; fits: 3; does not fit: 3." in " ".join(lines)


def test_every_point_equals_the_estimate_of_its_trial():
    found = json.loads(answer([*_GRID, "tuning=full,qlora", "format=json"]))

    assert found["origin"] == "estimated"
    assert len(found["points"]) == 12
    for point in found["points"]:
        trial = {**found["trial"], **point["trial"]}
        words = [f"{key}={_as_typed(value)}" for key, value in trial.items() if value not in (None, "")]
        alone = json.loads(answer([*words, "format=json"]))
        assert alone["trial"] == trial
        for key in ("peak_allocated_bytes", "peak_reserved_bytes", "peak_rule_bytes", "peak_phase"):
            assert point[key] == alone[key], (key, trial)
        assert point["verdict"] == next(gpu["verdict"] for gpu in alone["gpus"] if gpu["gpu"] == trial["gpu"])


def _as_typed(value):
    return json.dumps(value) if not isinstance(value, str) else value


def test_commas_in_brackets_and_quotes_do_not_split_a_value():
    assert read_values("4,8") == (4, 8)
    assert read_values("[q_proj,v_proj],all-linear") == (["q_proj", "v_proj"], "all-linear")
    assert read_values("'a:1,b:2',\"c,d\"") == ("a:1,b:2", "c,d")
    command = read_command(["beta=0,0.04", "steps=1,2", "lora_target_modules=[q_proj,v_proj]", "beta=0.1"])
    assert command.axes == {"steps": (1, 2)}
    assert command.keys == {"lora_target_modules": ["q_proj", "v_proj"], "beta": 0.1}


def test_values_with_the_same_meaning_are_one_row():
    found = json.loads(answer(["model=tiny", "tuning=full,lora", "lora_rank=8,16", "format=json"]))

    assert [(point["trial"]["tuning"], point["trial"]["lora_rank"]) for point in found["points"]] == [
        ("full", None),
        ("lora", 8),
        ("lora", 16),
    ]


@settings(max_examples=40)
@given(keys=st.lists(st.sampled_from(sorted(_VALUES)), min_size=1, max_size=4, unique=True), data=st.data())
def test_points_are_parsed_as_a_sweep_parses_them(keys, data):
    axes = {key: data.draw(st.permutations(_VALUES[key])) for key in keys}
    points = [{**_COMMON, **dict(zip(axes, values, strict=True))} for values in product(*axes.values())]
    try:
        expected = parse_points(points, architecture_of=builtin_architecture)
    except UsageError as error:
        with pytest.raises(UsageError) as raised:
            grid_specs(_COMMON, axes, architecture_of=builtin_architecture)
        assert raised.value.faults == error.faults
    else:
        assert grid_specs(_COMMON, axes, architecture_of=builtin_architecture) == expected


@pytest.mark.parametrize("key", INDEPENDENT_KEYS)
def test_a_wrong_value_of_an_independent_key_is_found(key, capsys):
    assert main(["model=tiny", f"{key}=4,many"]) == EXIT_USAGE
    assert f"{key}=many: must be a whole number" in capsys.readouterr().err


def test_wrong_input_ends_with_one_sentence_per_fault(capsys):
    assert main(["model=tiny,tny", "num_generations=4,32", "jobs=3"]) == EXIT_USAGE
    lines = capsys.readouterr().err.splitlines()

    assert [line.partition("=")[0] for line in lines] == ["jobs", "num_generations", "model"]
    assert "must divide" in lines[1]


def test_a_grid_of_a_verl_job_is_refused(tmp_path, capsys):
    path = tmp_path / "verl.yaml"
    path.write_text("actor_rollout_ref: {model: {path: Qwen/Qwen2.5-7B}}")

    assert main([f"config={path}", "gpu=h100-80gb,a100-80gb"]) == EXIT_USAGE
    assert "gpu=h100-80gb,a100-80gb: has several values" in capsys.readouterr().err


def test_too_many_points_are_refused(capsys):
    lengths = ",".join(map(str, range(1, 1_001)))

    assert main(["model=tiny", f"max_prompt_length={lengths}", f"max_completion_length={lengths}"]) == EXIT_USAGE
    assert f"more points than the {MAX_POINTS:,} of one grid" in capsys.readouterr().err


def test_points_of_a_grid_are_answered_together():
    """Some 500 calls per point; one estimate at a time takes many thousands."""
    words = [
        "model=qwen2.5-0.5b,qwen2.5-1.5b,qwen2.5-3b,qwen2.5-7b",
        "tuning=full,lora",
        "gradient_checkpointing=true,false",
        "per_device_train_batch_size=4,8,12,16,20",
        "max_prompt_length=64,128,256,512,1024",
        f"max_completion_length={','.join(map(str, range(8, 408, 40)))}",
    ]
    lines: list[str] = []
    calls = python_calls(lambda: lines.extend(answer(words).splitlines()))

    assert sum(line.startswith("qwen2.5") for line in lines) == 4_000
    assert calls < 4_000 * 1_000
