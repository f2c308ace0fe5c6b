"""Bad input ends the sweep before the first trial: exit code 2, one sentence per fault, no traceback."""

import json

import pytest
from sweep_fakes import H100

GRID = "+grid=lora_vs_full"


def check(result, world, *sentences, count=1):
    code, _, err = result
    assert code == 2
    assert not world.runs
    assert "Traceback" not in err
    assert len(err.splitlines()) == count
    for sentence in sentences:
        assert sentence in err


@pytest.mark.parametrize(
    ("words", "sentences"),
    [
        (["+grid=lora_vs_ful"], ["grid=lora_vs_ful: Did you mean 'lora_vs_full'? It is not a grid", "oxen_2025"]),
        ([], ["grid=(none): a sweep needs a grid", "completion_length, dpo, fsdp,"]),
        (["+grid=full,logprobs"], ["grid=full,logprobs: names several grids"]),
        (["+grid=full", "grid=logprobs"], ["grid=full,logprobs: names several grids"]),
        (["+grid=[full,logprobs]"], ["grid=full,logprobs: names several grids"]),
        ([GRID, "model=qwen2.5-0.5"], ["model=qwen2.5-0.5: Did you mean 'qwen2.5-0.5b'? It must be a built-in name"]),
        ([GRID, "modle=tiny"], ["modle=tiny: is unknown. Did you mean 'model'?"]),
        ([GRID, "+nmu_generations=4,8"], ["nmu_generations=[4,8]: is unknown. Did you mean 'num_generations'?"]),
        ([GRID, "gpu=h100-80g"], ["gpu=h100-80g: Did you mean 'h100-80gb'? It must be one of h100-80gb"]),
        ([GRID, "num_generations=1"], ["num_generations=1: must be a whole number of at least 2"]),
        ([GRID, "num_generations=3"], ["num_generations=3: must divide", "4 x 4 = 16"]),
        ([GRID, "max_prompt_length=0"], ["max_prompt_length=0: must be a whole number of at least 1"]),
        ([GRID, "per_device_train_batch_size=-4"], ["per_device_train_batch_size=-4: must be a whole number"]),
        ([GRID, "optim=adamw_9bit"], ["optim=adamw_9bit: Did you mean 'adamw_8bit'? It must be one of"]),
        ([GRID, "model=/nowhere/config.json"], ["model=/nowhere/config.json: there is no file"]),
        ([GRID, "num_generations=4,"], ["num_generations=4,: cannot be read"]),
        ([GRID, "num_generations=interval(1,4)"], ["num_generations=interval(1,4): cannot be read"]),
        ([GRID, "~beta"], ["argument=~beta: would remove a key"]),
        ([GRID, "hydra.verbosee=true"], ["hydra.verbosee=true: Hydra refuses it"]),
        ([GRID, "axes.model=[tiny]"], ["axes.model=[tiny]: belongs to a grid file"]),
        ([GRID, "dry_run=true,false"], ["dry_run=true,false: takes one value"]),
        ([GRID, "jobs=0"], ["jobs=0: must be a whole number of at least 1"]),
        ([GRID, "resume=perhaps"], ["resume=perhaps: must be true or false"]),
        ([GRID, "model=${modle}"], ["model=${modle}: refers to no key"]),
        ([GRID, "--cgf"], ["flag=--cgf: Did you mean '--cfg'? It is not known"]),
        ([GRID, "-cd", "/nowhere"], ["--config-dir=/nowhere: must be a folder that exists"]),
        ([GRID, "backend=cuda"], ["backend=cuda: needs a GPU, but there is none in this test"]),
        ([GRID, "backend=cpu", "tuning=qlora"], ["tuning=qlora: needs backend=cuda"]),
        ([GRID, "backend=gpu"], ["backend=gpu: must be one of auto, cuda, emulated, simulated, cpu"]),
    ],
)
def test_one_fault_is_one_sentence(sweep, world, words, sentences):
    check(sweep(*words), world, *sentences)


def test_a_word_that_is_not_an_override(sweep, world):
    check(sweep("lora_vs_full", GRID), world, "argument=lora_vs_full: is not of the form", "+grid=lora_vs_full")


def test_all_faults_of_all_points_come_at_once(sweep, world):
    result = sweep(GRID, "modle=x", "optim=adamw_9bit,adamw_8bit", "num_generations=1,3,4", "model=tiny,huge", "jobs=0")
    keys = ["modle=x", "jobs=0", "optim=adamw_9bit", "num_generations=1", "num_generations=3", "model=huge"]
    check(result, world, *(f"{key}: " for key in keys), count=len(keys))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no file"),
        ("{", "cannot be read as JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "has no hidden_size"),
        (
            json.dumps(
                {
                    "model_type": "bert",
                    "architectures": ["BertModel"],
                    "hidden_size": 1,
                    "intermediate_size": 1,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 1,
                    "vocab_size": 1,
                }
            ),
            "describes no causal language model",
        ),
    ],
)
def test_a_config_json_that_is_missing_or_not_of_a_decoder(sweep, world, tmp_path, content, reason):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    check(sweep(GRID, f"model={tmp_path}"), world, f"model={tmp_path}: ", reason)


def test_an_unwritable_results_folder(sweep, world, tmp_path):
    (tmp_path / "file").write_text("")
    result = sweep(GRID, results_dir=tmp_path / "file" / "below")
    check(result, world, f"results_dir={tmp_path}/file/below: results cannot be written there")


def test_a_folder_that_only_looks_writable(sweep, world, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    check(sweep(GRID), world, "results_dir=", "Permission denied", count=1)


def test_wrong_input_creates_no_folder(sweep, tmp_path):
    sweep(GRID, "steps=0", results_dir=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_card_cannot_be_capped_to_a_bigger_one(sweep, world):
    world.visible = H100
    check(sweep(GRID, "backend=cuda", "gpu=b200-180gb"), world, "gpu=b200-180gb: a real card", "178.3 GiB", "79.1 GiB")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# @package _global_\nmodle: x\n", "modle=x: is unknown. Did you mean 'model'?"),
        ("# @package _global_\naxes: {modle: [x]}\n", "Did you mean 'model'?"),
        ("# @package _global_\naxes: {model: tiny}\n", "axes.model=tiny: must be a list"),
        ("a: [\n", "grid=mine: cannot be composed"),
        ("defaults: [nothing]\n", "grid=mine: cannot be composed"),
    ],
)
def test_a_grid_file_of_the_user_that_is_wrong(sweep, world, tmp_path, text, sentence):
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "mine.yaml").write_text(text)
    check(sweep("-cd", str(tmp_path), "+grid=mine"), world, sentence)
