"""Models load by name without a checkpoint: with random weights from their configuration."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, Qwen2ForCausalLM

from profiler.domain.errors import UsageError
from profiler.domain.runs.other_runs import ScriptWeights
from profiler.substitutes import SubstituteOptions, substitutes
from profiler.substitutes.checkpoints.known_configs import known_models
from profiler.substitutes.checkpoints.models import number_positions


def test_a_built_in_model_loads_without_a_checkpoint() -> None:
    with substitutes() as replaced:
        model = AutoModelForCausalLM.from_pretrained("tiny")
    assert sum(parameter.numel() for parameter in model.parameters()) == 119_360
    assert model.dtype is torch.bfloat16
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config._name_or_path == "tiny"
    assert replaced.line() == "Substitutes: weights of tiny (random, from its configuration)"


def test_the_data_type_of_the_checkpoint_is_kept() -> None:
    with substitutes():
        assert AutoConfig.from_pretrained("meta-llama/Llama-2-7b-hf").dtype is torch.float16
        assert AutoConfig.from_pretrained("Qwen/Qwen2.5-7B").dtype is torch.bfloat16
        assert Qwen2ForCausalLM.from_pretrained("tiny", dtype="float32").dtype is torch.float32


def test_a_local_folder_loads_from_its_configuration(tmp_path: Path) -> None:
    with substitutes():
        config = AutoConfig.from_pretrained("tiny").to_dict() | {"hidden_size": 32, "dtype": "float32"}
        (tmp_path / "config.json").write_text(json.dumps(config))
        model = AutoModelForSequenceClassification.from_pretrained(str(tmp_path), num_labels=1)
    assert model.score.weight.shape == (1, 32)
    assert model.dtype is torch.float32


def test_weights_take_no_host_memory_until_they_are_written() -> None:
    """Seven billion parameters are 15 GB; the pages that a build of them uses are those of vectors.

    The bound leaves room for imports and for what other tests of this process do.
    """
    before = resident_bytes()
    with substitutes():
        model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B-Instruct")
    assert resident_bytes() - before < 3e9
    assert sum(parameter.nbytes for parameter in model.parameters()) > 15e9


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_weights_have_values_where_something_is_computed() -> None:
    with substitutes(SubstituteOptions(with_values=True)):
        model = AutoModelForCausalLM.from_pretrained("tiny", dtype="float32")
    assert 0.01 < float(model.model.embed_tokens.weight.detach().std()) < 0.03


def test_an_unknown_model_is_refused_in_one_sentence() -> None:
    with substitutes(), pytest.raises(UsageError, match=r"model=qwen/qwen2\.5-9b: is not built in.*Did you mean"):
        AutoModelForCausalLM.from_pretrained("qwen/qwen2.5-9b")


def test_everything_is_put_back() -> None:
    load = Qwen2ForCausalLM.from_pretrained.__func__
    with substitutes():
        assert Qwen2ForCausalLM.from_pretrained.__func__ is not load
    assert Qwen2ForCausalLM.from_pretrained.__func__ is load


def test_a_script_that_needs_no_library_imports_none() -> None:
    program = "import sys; from profiler.substitutes import substitutes\nwith substitutes(): pass\n"
    ends = "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program + ends], check=True)


@pytest.mark.parametrize("name", known_models())
def test_a_known_model_has_the_parameters_of_its_checkpoint(name: str) -> None:
    known = known_models()[name]
    with substitutes():
        config = AutoConfig.from_pretrained(name)
    with torch.device("meta"):
        model = getattr(transformers, known.architecture)(config)
    model.tie_weights()
    assert sum(parameter.numel() for parameter in model.parameters()) == known.parameters


PARTS = {
    ("runwayml/stable-diffusion-v1-5", "text_encoder"): 123_060_480,
    ("stabilityai/stable-diffusion-2-1", "text_encoder"): 340_387_840,
    ("stabilityai/stable-diffusion-xl-base-1.0", "text_encoder_2"): 694_659_840,
}


@pytest.mark.parametrize(("name", "folder"), PARTS)
def test_the_encoder_of_a_pipeline_has_the_parameters_of_its_checkpoint(name: str, folder: str) -> None:
    with substitutes():
        config = transformers.CLIPTextConfig.from_pretrained(name, subfolder=folder)
        tokenizer = transformers.CLIPTokenizer.from_pretrained(
            name, subfolder=folder.replace("text_encoder", "tokenizer")
        )
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARTS[name, folder]
    assert (len(tokenizer), tokenizer.model_max_length) == (49408, 77)


def test_the_defaults_of_a_class_are_assumed_and_named() -> None:
    with substitutes() as replaced:
        model = transformers.MistralForCausalLM.from_pretrained("somebody/own-model", dtype="bfloat16")
        tokenizer = transformers.AutoTokenizer.from_pretrained("somebody/my-mistral-chat")
    assert sum(parameter.numel() for parameter in model.parameters()) == 7_241_732_096
    assert len(tokenizer) == 32_000
    assert "configuration of somebody/own-model (assumed: the defaults of MistralConfig)" in replaced.phrases()
    assert "configuration of somebody/my-mistral-chat (assumed: the defaults of MistralConfig)" in replaced.phrases()


@pytest.mark.parametrize("name", ["facebook/opt-2.7b", "mistralai/Mistral-22B-v0.2", "somebody/nothing-known"])
def test_defaults_of_another_size_or_of_no_class_are_not_assumed(name: str) -> None:
    with substitutes(), pytest.raises(UsageError, match="is not built in"):
        AutoModelForCausalLM.from_pretrained(name)


def test_nothing_is_assumed_with_the_weights_of_a_checkpoint() -> None:
    options = SubstituteOptions(weights=ScriptWeights.CHECKPOINT)
    with substitutes(options), pytest.raises(UsageError, match="is not built in"):
        transformers.MistralForCausalLM.from_pretrained("somebody/own-model")


def test_names_are_given_by_place_or_by_name() -> None:
    with substitutes():
        model = Qwen2ForCausalLM.from_pretrained(pretrained_model_name_or_path="tiny")
        tokenizer = transformers.AutoTokenizer.from_pretrained(pretrained_model_name_or_path="tiny")
    assert (model.config.vocab_size, len(tokenizer)) == (512, 512)


def test_positions_are_numbered_whatever_was_in_memory() -> None:
    with torch.device("meta"):
        model = transformers.BertModel(AutoConfig.for_model("bert", num_hidden_layers=1))
    model.to_empty(device="cpu")
    model.embeddings.position_ids.fill_(-7)
    model.embeddings.token_type_ids.fill_(-7)
    number_positions(model)
    assert model.embeddings.position_ids[0, :4].tolist() == [0, 1, 2, 3]
    assert not model.embeddings.token_type_ids.any()
