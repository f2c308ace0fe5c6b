import pytest

from profiler.config.models.architecture import read_architecture
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.models.builtin_models import BUILTIN_MODELS


def architecture_of(name: str) -> Architecture:
    return read_architecture(BUILTIN_MODELS[name].config, model=name)


@pytest.fixture(scope="session")
def half_billion() -> Architecture:
    return architecture_of("qwen2.5-0.5b")


@pytest.fixture(scope="session")
def toy() -> Architecture:
    """A model small enough to compute by hand: 2 query heads and 1 key head of 4."""
    return Architecture(
        model_type="qwen2",
        vocab_size=100,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        qkv_bias=True,
    )
