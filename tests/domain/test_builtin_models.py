"""Built-in models by the names that people use."""

import pytest

from profiler.domain.models.builtin_models import BUILTIN_MODELS, REPUBLISHERS, find_builtin


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("QWEN/qwen2.5-7b-instruct", "qwen2.5-7b"),
        ("unsloth/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("unsloth/mistral-7b-instruct-v0.3", "mistral-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b-v0.2"),
        ("NousResearch/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("NousResearch/Meta-Llama-3-8B-Instruct", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.1-70b"),
    ],
)
def test_hub_ids_and_their_mirrors(name, model):
    found = find_builtin(name)
    assert found is not None and found.name == model


@pytest.mark.parametrize(
    "name",
    [
        "unsloth/Qwen2.5-7B-Instruct-bnb-4bit",
        "someone/Qwen2.5-7B-Instruct",
        "unsloth/",
        "",
        "NousResearch/Hermes-3-Llama-3.1-8B",
    ],
)
def test_other_names_are_not_built_in(name):
    assert find_builtin(name) is None


def test_no_hub_id_belongs_to_two_models():
    """A republisher's hub id that is stated has other tensors than its name has elsewhere, or a name of its own."""
    hub_ids = [hub_id.lower() for model in BUILTIN_MODELS.values() for hub_id in model.hub_ids]
    of_makers = [hub_id for hub_id in hub_ids if not hub_id.startswith(REPUBLISHERS)]
    tails = {hub_id.rpartition("/")[2] for hub_id in of_makers}
    assert len(set(hub_ids)) == len(hub_ids) and len(of_makers) == len(tails)
    again = set(hub_ids) - set(of_makers)
    assert {each for each in again if each.rpartition("/")[2] in tails} == {
        "unsloth/phi-4",
        "unsloth/phi-3.5-mini-instruct",
    }
