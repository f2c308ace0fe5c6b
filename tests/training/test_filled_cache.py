"""A cache that is filled at once is the one that decoding token by token leaves."""

from types import SimpleNamespace

import pytest
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from profiler.training.rollouts.synthetic import fill_cache

ROWS, HEADS, HEAD_DIM, WINDOW = 2, 3, 4, 8


def states(tokens):
    return torch.zeros((ROWS, HEADS, tokens, HEAD_DIM))


def cache_of(prompt):
    cache = DynamicCache()
    cache.layers = [DynamicLayer(), DynamicSlidingWindowLayer(WINDOW)]
    cache.layer_class_to_replicate = None
    for layer in cache.layers:
        layer.update(states(prompt), states(prompt))
    return cache


def facts(layer):
    shown = SimpleNamespace(keys=layer.keys, values=layer.values)
    return [
        *(tuple(each.shape) for each in vars(shown).values()),
        *(each.untyped_storage().nbytes() for each in vars(shown).values()),
        layer.get_mask_sizes(1),
        layer.get_seq_length(),
    ]


@pytest.mark.parametrize("prompt", [1, 5, 6, 7, 8, 9, 12])
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 20])
def test_filled_at_once_or_token_by_token(prompt, steps):
    filled, decoded = cache_of(prompt), cache_of(prompt)
    fill_cache(filled, prompt + steps)
    for layer in decoded.layers:
        for _ in range(steps):
            layer.update(states(1), states(1))
    for one, other in zip(filled.layers, decoded.layers, strict=True):
        assert facts(one) == facts(other)
