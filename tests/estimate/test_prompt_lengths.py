"""Prompts of a local data set are measured where a tokenizer is on this machine."""

import json
import os
import sys

import pytest
import yaml

from profiler.estimate.command import read_command
from profiler.estimate.job import counting, inputs
from profiler.estimate.job.counting import PromptLengths, PromptsError, measured_by_transformers
from profiler.estimate.job.inputs import job_files, read_inputs

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
PROMPTS = ["one two three", "one", "one two three four five six seven"]

_CACHED = "profiler.storage.foreign.hub.cached_file"


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return path


def _read(*words, measure=None):
    command = read_command([str(word) for word in words])
    assert not command.faults
    found = measure or (lambda *_: PromptLengths(rows=3, longest=7, mean=4))
    return read_inputs(command, job_files(command).part, measure=found)


def test_the_longest_prompt_is_taken_and_stated(tmp_path, model, data):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"model_name_or_path": str(model), "dataset_name": str(data), "num_generations": 8}))
    found = _read(f"config={path}")
    assert found.keys["max_prompt_length"] == 7
    assert found.notes[0].startswith("Assumed: max_prompt_length=7 (the longest of 3 prompts of ")
    assert "4 on average" in found.notes[0] and "give that of your data" not in found.notes[0]
    assert _read(f"config={path}", "max_prompt_length=99").keys["max_prompt_length"] == 99


def test_a_command_line_alone_is_measured_as_well(model, data):
    assert _read(f"model={model}", f"dataset={data}").keys["max_prompt_length"] == 7


def test_what_is_not_here_is_not_measured(model, data, monkeypatch):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr(_CACHED, lambda *_: None)
    for words in (
        (f"model={model}", "dataset=org/data"),
        ("model=org/model", f"dataset={data}"),
        (f"model={model}",),
        (f"model={model}", f"dataset={data}", "max_prompt_length=8,16"),
        (f"model={model}", f"dataset={data}", "recipe=sft"),
    ):
        assert "max_prompt_length" not in _read(*words, measure=never).keys


def test_a_tokenizer_in_the_hub_s_cache_is_used(model, data, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "profiler.storage.foreign.hub.cached_file",
        lambda *words: asked.append(words) or model / "tokenizer_config.json",
    )
    assert _read("model=qwen2.5-0.5b", f"dataset={data}").keys["max_prompt_length"] == 7
    assert asked == [("Qwen/Qwen2.5-0.5B", "tokenizer_config.json")]


def test_data_that_cannot_be_read_are_named(model, data):
    def broken(*_):
        raise PromptsError("no column prompt")

    found = _read(f"model={model}", f"dataset={data}", measure=broken)
    assert "max_prompt_length" not in found.keys
    assert "are not measured: no column prompt" in found.notes[0]


def test_without_the_libraries_nothing_is_measured(monkeypatch, model, data):
    monkeypatch.setattr(counting, "find_spec", lambda _: None)
    with pytest.raises(PromptsError, match="are not installed"):
        measured_by_transformers(model, data)


@pytest.mark.slow
def test_prompts_are_counted_by_the_tokenizer_without_torch(model, data, tmp_path, monkeypatch):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(sorted({*" ".join(PROMPTS).split(), "[UNK]"}))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(model)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise SystemExit('torch is imported')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "broken"), *sys.path]))
    assert measured_by_transformers(model, data) == PromptLengths(rows=3, longest=7, mean=4)


class Words:
    """A tokenizer with one token per word, and one for the turn of a conversation."""

    def __call__(self, text, **_):
        return {"input_ids": text.split()}

    def apply_chat_template(self, turns, **_):
        return " ".join(f"{turn['role']} {turn['content']}" for turn in turns) + " assistant"


@pytest.mark.slow
def test_conversations_are_written_by_the_template():
    from datasets import Dataset

    from profiler.training.data.source_data import prompt_lengths

    asked, answered = {"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}
    assert prompt_lengths(Dataset.from_dict({"prompt": [[asked]], "answer": ["c"]}), Words()) == [4]
    assert prompt_lengths(Dataset.from_dict({"messages": [[asked, answered]]}), Words()) == [4]
    with pytest.raises(ValueError, match="no column prompt or question"):
        prompt_lengths(Dataset.from_dict({"text": ["a"]}), Words())
    with pytest.raises(ValueError, match="no rows"):
        prompt_lengths(Dataset.from_dict({"prompt": []}), Words())


def test_measuring_is_what_an_estimate_does():
    assert inputs.read_inputs.__kwdefaults__["measure"] is measured_by_transformers


def test_rows_that_are_not_read_are_named(model, data):
    """The first rows are read, and a longer prompt may follow: the note says of how many."""
    some = PromptLengths(rows=10_000, longest=7, mean=4, all_rows=25_000)
    found = counting.prompt_note(str(model), str(data), lambda *_: some)
    assert isinstance(found, tuple)
    assert "the longest of the first 10,000 of 25,000 prompts" in found[1].text


@pytest.mark.slow
def test_the_worker_counts_all_rows(model, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(model)
    data = tmp_path / "many.jsonl"
    data.write_text('{"prompt": "one"}\n' * 10_003)
    assert measured_by_transformers(model, data) == PromptLengths(rows=10_000, longest=1, mean=1, all_rows=10_003)
