"""Substitutes in each process of a job: what one has replaced is read by the program that started it."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from profiler.domain.runs.other_runs import JobMemory, JobRecord, ScriptWeights
from profiler.domain.runs.outcome import Status
from profiler.emulation.launch import profiler_environment
from profiler.rendering.runs.page import job_table
from profiler.substitutes import options as module
from profiler.substitutes.checkpoints import known_configs
from profiler.substitutes.checkpoints.known_configs import cached_file_patches, made_folder, snapshot_patches
from profiler.substitutes.data_sets.answering import make_rows
from profiler.substitutes.data_sets.answering_sets import modelscope_patches
from profiler.substitutes.data_sets.known_datasets import of_trainer
from profiler.substitutes.options import Replaced, SubstituteOptions, job_options, job_variables
from profiler.training.data import source_data

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"

CHILD = """
import json, multiprocessing, os, sys, types
def child():
    sys.modules["verl"] = types.ModuleType("verl")
    import datasets
    from transformers import AutoTokenizer
    from huggingface_hub import snapshot_download
    rows = datasets.load_dataset("parquet", data_files="/none/gsm8k/train.parquet")["train"]
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    kept = rows.filter(lambda row: len(tokenizer.apply_chat_template(row["prompt"])["input_ids"]) > 0)
    folder = snapshot_download(sys.argv[1])
    AutoTokenizer.from_pretrained(folder)
    print(json.dumps([len(tokenizer), len(kept), rows[0]["data_source"], folder]), flush=True)
    os.kill(os.getpid(), 9)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start(); process.join(); sys.exit(process.exitcode == -9)
"""


def in_job(folder: Path, **changed: object) -> dict[str, str]:
    own = SubstituteOptions(folder=folder, **changed)  # type: ignore[arg-type]
    return profiler_environment(Path(sys.executable), base=os.environ) | job_variables(own) | {"HF_HUB_OFFLINE": "1"}


def test_a_child_that_is_killed_has_said_what_it_replaced(tmp_path):
    """A process of verl that another one has started: its data, tokenizer and the folder that vLLM asks for."""
    (tmp_path / "program.py").write_text(CHILD)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), MODEL],
        env=in_job(tmp_path, prompt_tokens=7),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    vocabulary, rows, source, folder = json.loads(done.stdout.splitlines()[-1])
    assert (vocabulary, rows, source) == (151_936, 1024, "openai/gsm8k")
    assert json.loads((Path(folder) / "config.json").read_text())["num_hidden_layers"] == 24
    assert Replaced.of_job(tmp_path).phrases() == (
        "data set /none/gsm8k/train.parquet (1,024 rows of data_source, prompt, ability, reward_model, extra_info; "
        "prompts of 7 tokens, completions of 512)",
        f"tokenizer of {MODEL} (one token per word)",
        f"files of {MODEL} (its configuration)",
    )


def test_options_reach_the_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "hub_problem", lambda: "")
    own = SubstituteOptions(folder=tmp_path, prompt_tokens=7, completion_tokens=8, weights=ScriptWeights.CHECKPOINT)
    (variable,) = job_variables(own).values()
    assert job_options(variable) == own
    monkeypatch.setattr(module, "hub_problem", lambda: "no network")
    assert job_variables(own)["HF_HUB_OFFLINE"] == "1"


def test_a_line_that_was_not_finished_is_left_out(tmp_path):
    Replaced.noted_in(tmp_path).add("weights of", "a", "random")
    with (tmp_path / "substitutes").open("a") as file:
        file.write('["weights of", "b"')
    assert Replaced.of_job(tmp_path).phrases() == ("weights of a (random)",)
    assert Replaced.of_job(tmp_path / "none").phrases() == ()


@pytest.mark.parametrize(("problem", "name", "is_made"), [("no network", MODEL, True), ("", MODEL, False),
                                                          ("no network", "who/knows", False)])  # fmt: skip
def test_folders_are_made_for_known_models_without_a_hub(tmp_path, monkeypatch, problem, name, is_made):
    monkeypatch.setattr(known_configs, "hub_problem", lambda: problem)
    made = made_folder(name, tmp_path, Replaced())
    assert (made is not None) == is_made
    assert [path.name for path in tmp_path.rglob("config.json")] == ["config.json"] * is_made


def test_what_the_hubs_client_finds_itself_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(known_configs, "hub_problem", lambda: "no network")

    def nothing(*_: object, **__: object) -> str:
        raise FileNotFoundError

    def patched_by(patches: Any, **functions: Any) -> Any:
        place = SimpleNamespace(**functions)
        ((_, name, function),) = patches(place, tmp_path, Replaced())
        assert [name] == list(functions)
        return function

    found = patched_by(cached_file_patches, try_to_load_from_cache=lambda name, file: "/cache" if name == "a" else None)
    assert (found("a", "config.json"), found(MODEL, "tokenizer.json")) == ("/cache", None)
    assert found(MODEL, "config.json").endswith("/Qwen--Qwen2.5-0.5B-Instruct/config.json")
    whole = patched_by(snapshot_patches, snapshot_download=nothing)
    for given in ({"repo_id": MODEL}, {"model_id": MODEL}):  # ModelScope's client has another name
        assert Path(whole(**given)).name == Path(whole(MODEL)).name == "Qwen--Qwen2.5-0.5B-Instruct"
    for name, kind in (("who/knows", "model"), (MODEL, "dataset"), (None, "model")):
        with pytest.raises(FileNotFoundError):
            whole(name, repo_type=kind)
    (tmp_path / "Qwen--Qwen2.5-0.5B-Instruct" / "config.json").unlink()
    (tmp_path / "Qwen--Qwen2.5-0.5B-Instruct").rmdir()
    tmp_path.rmdir()
    assert Path(whole("who/knows", repo_type="dataset", ignore_patterns=["*"])).is_dir()


@pytest.mark.parametrize(
    ("package", "columns"), [("verl", {"prompt", "reward_model"}), ("swift", {"messages", "rejected_response"}),
                             ("axolotl", {"instruction", "output", "messages"})],
)  # fmt: skip
def test_a_trainer_gets_the_columns_that_it_reads(package, columns):
    found = of_trainer({"torch", package})
    assert found is not None
    assert columns <= found.columns.keys()
    assert of_trainer({"torch", "trl"}) is None


def test_a_refused_answer_differs_from_the_chosen_one():
    """ms-swift removes rows in which they are equal."""
    found = of_trainer({"swift"})
    assert found is not None
    rows = make_rows(found.columns, SubstituteOptions(), 3)
    assert not set(rows["rejected_response"]) & {row[-1]["content"] for row in rows["messages"]}
    assert not set(rows["rejected_response"]) & set(rows["response"])


def test_modelscope_loads_what_datasets_loads_for_it(monkeypatch):
    asked = []

    def load(name: str, **_: object) -> str:
        if name == "theirs":
            return "found"
        raise ConnectionError

    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)))
    place = SimpleNamespace(MsDataset=SimpleNamespace(load=load))
    ((_, name, loaded),) = modelscope_patches(place)
    assert name == "load"
    assert loaded("theirs") == "found"
    assert asked == []
    loaded("who/knows", subset_name="default", split="train", version="master", use_streaming=True)
    assert asked == [(("who/knows", "default"), {"split": "train", "streaming": True})]


def test_words_of_rows_need_no_tokenizer(monkeypatch):
    """torchtitan has the package datasets and not transformers."""
    for name in ("tokenizers", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    assert runpy.run_path(source_data.__file__)["word"](64) == "w0"


def test_the_table_of_a_command_begins_with_them():
    record = JobRecord(
        command=("train.py",), gpu="a card", cards=1, memory_bytes=1, status=Status.OK, message="", exit_code=0,
        wall_s=1.0, memory=JobMemory(), values="complete", substitutes=("weights of a (random)",),
    )  # fmt: skip
    assert job_table(record).startswith("Substitutes: weights of a (random).\n")
