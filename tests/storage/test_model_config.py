"""A model's `config.json` from a folder, a file or the hub, and why it is unavailable."""

import json

import pytest

from profiler.analytical.formulas.models.parameters import lora_parameter_count
from profiler.config.models.lookup import builtin_architecture, suggested_model
from profiler.domain.errors import UsageError
from profiler.storage.foreign.hub import HubError
from profiler.storage.foreign.model_config import load_model_config


def sentence(model, **how):
    with pytest.raises(UsageError) as caught:
        load_model_config(str(model), **how)
    (fault,) = caught.value.faults
    assert (fault.key, fault.found) == ("model", str(model))
    return fault.sentence()


def test_a_folder_and_its_file_are_the_same(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    assert load_model_config(str(tmp_path)) == {"hidden_size": 8}
    assert load_model_config(str(tmp_path / "config.json")) == {"hidden_size": 8}


def test_a_hub_id_is_downloaded(tmp_path):
    (tmp_path / "downloaded").write_text(json.dumps({"hidden_size": 9}))
    asked = []

    def download(hub_id):
        asked.append(hub_id)
        return tmp_path / "downloaded"

    assert load_model_config("somebody/model", download=download) == {"hidden_size": 9}
    assert asked == ["somebody/model"]


def test_a_hub_that_does_not_answer_is_a_fault(monkeypatch):
    def refuse(*_):
        raise HubError("no route to the hub")

    monkeypatch.setattr("profiler.storage.foreign.hub.hub_file", refuse)
    said = sentence("Qwen/Qwen2.5-7B-Instuct")
    assert "is unavailable from the hub (no route to the hub)" in said
    assert "Did you mean 'Qwen/Qwen2.5-7B-Instruct'?" in said


@pytest.mark.parametrize("name", ["missing/config.json", "missing"])
def test_a_path_that_is_not_there(tmp_path, name):
    assert "there is no file" in sentence(tmp_path / name)


def test_a_folder_without_the_file(tmp_path):
    assert f"there is no file {tmp_path}/config.json" in sentence(tmp_path)


@pytest.mark.parametrize(("content", "reason"), [("{", "as JSON"), ("[1]", "no JSON object"), ("\x00", "as JSON")])
def test_a_file_that_is_no_json_object(tmp_path, content, reason):
    (tmp_path / "config.json").write_text(content)
    assert reason in sentence(tmp_path)


def test_a_name_that_is_nothing():
    said = sentence("qwen3-0.6")
    assert "a local path or a hub id" in said
    assert "Did you mean 'qwen3-0.6b'?" in said


@pytest.mark.parametrize("name", ["gpt2", "distilgpt2", "bert-base-uncased", "t5-small"])
def test_a_name_without_an_owner_is_its_hub_id(tmp_path, name):
    asked = []

    def download(hub_id):
        asked.append(hub_id)
        path = tmp_path / "config.json"
        path.write_text('{"model_type": "gpt2"}')
        return path

    assert load_model_config(name, download=download) == {"model_type": "gpt2"}
    (hub_id,) = asked
    assert hub_id.endswith(f"/{name}") and load_model_config(hub_id, download=download) == {"model_type": "gpt2"}
    assert asked == [hub_id, hub_id]


def test_an_early_name_is_refused_as_its_hub_id(monkeypatch):
    """The hub that does not answer, and a cache without it."""
    asked = []

    def absent(hub_id, name):
        asked.append(hub_id)
        raise HubError("no network")

    monkeypatch.setattr("profiler.storage.foreign.hub.hub_file", absent)
    said = []
    for name in ("gpt2", "openai-community/gpt2"):
        with pytest.raises(UsageError) as error:
            load_model_config(name)
        said.append(error.value.faults)
    assert said[0] == said[1] and "openai-community/gpt2" in said[0][0].sentence()
    assert asked == ["openai-community/gpt2", "gpt2"] * 2  # an early client has cached it so
    with pytest.raises(UsageError, match="must be a built-in name"):
        load_model_config("gpt5")


@pytest.mark.parametrize("name", ["unsloth/Phi-3-medium-4k-instruct", "unsloth/Phi-3.5-small-instruct"])
def test_a_model_of_another_size_is_not_suggested(name):
    """Of 14 billion parameters: no slip of the pen for one of 3.8."""
    assert suggested_model(name, ["unsloth/Phi-3.5-mini-instruct"]) == ""
    assert "Phi-3.5-mini" in suggested_model("unsloth/Phi-3.5-mini-instuct", ["unsloth/Phi-3.5-mini-instruct"])


def test_names_of_unsloth_are_models_that_it_publishes():
    """`nb/TinyLlama_(1.1B)-Alpaca.ipynb` prints 25,231,360 trained values of rank 32."""
    model = builtin_architecture("unsloth/tinyllama")
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert lora_parameter_count(model, 32, targets) == 25_231_360
