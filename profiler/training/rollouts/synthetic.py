"""The protocol of a rollout engine, transformers' `generate` as one, and rollouts that are not run in full.

Rollout without its length: the prefill, a KV cache filled at once, and the last decoding step.

`rollout=synthetic` has the memory that decoding token by token has at its end: per layer K and V of
[sequences, kv_heads, prompt + completion - 1, head_dim], the growth copy of one layer at a time, and the last step's
logits and sampling buffers. The tokens in between are left out.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import DynamicCache, GenerationConfig

from profiler.domain.memory import Category
from profiler.training.placement import Placement
from profiler.training.rollouts.decode_loop import extrapolated_decoding

_FILLER_TOKEN = 2


_NEVER_SAMPLED = 2**31 - 1
"""Above every vocabulary. With None transformers takes the model's own id, and rows would end there."""

CacheScope = Callable[[], AbstractContextManager[None]]
"""A context in which new memory belongs to the KV cache."""


class RolloutEngine(Protocol):
    """Generates completions for a trainer of trl."""

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments of trl's configuration that the engine needs."""

    def starting(self, *, model: Any, tokenizer: Any, folder: Path) -> AbstractContextManager[None]:
        """The context in which trl makes the trainer.

        Args:
            model: The model to train, without adapters.
            tokenizer: The trial's.
            folder: Where files of the trial may be written.
        """

    def generating(self, model: Any, *, evaluates: bool = False) -> AbstractContextManager[None]:
        """The context in which trl generates the completions of one batch, of training or of an evaluation.

        `model` is the transformers model itself, not a peft wrapper around it.
        """


class GeneratedRollout:
    """Decodes every token."""

    def arguments(self) -> Mapping[str, Any]:
        """Return an end-of-sequence token that is never sampled.

        The specification decides the lengths of completions, so generation must not stop early. The id is used in
        generation only.
        """
        return {"generation_kwargs": {"eos_token_id": _NEVER_SAMPLED}}

    def starting(self, **_: Any) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def generating(self, model: Any, *, evaluates: bool = False) -> AbstractContextManager[None]:
        """Do nothing."""
        del model, evaluates
        return nullcontext()


class SyntheticRollout(GeneratedRollout):
    """Decodes the first and the last token; those in between are a filler token."""

    def __init__(self, placement: Placement) -> None:
        self._cache_scope: CacheScope = lambda: placement.attributed(Category.KV_CACHE)

    @contextmanager
    def generating(self, model: Any, *, evaluates: bool = False) -> Iterator[None]:
        """While active, `model.generate` decodes only its first and its last token."""
        del evaluates
        decode = model.generate

        def generate(*args: Any, **kwargs: Any) -> torch.Tensor:
            return _first_and_last_token(decode, model.config, self._cache_scope, *args, **kwargs)

        model.generate = generate
        try:
            yield
        finally:
            del model.generate


def _first_and_last_token(
    decode: Callable[..., Any],
    config: Any,
    cache_scope: CacheScope,
    *,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    generation_config: GenerationConfig,
    **kwargs: Any,
) -> torch.Tensor:
    completion = int(generation_config.max_new_tokens)
    if completion < 3:
        return decode(input_ids=input_ids, attention_mask=attention_mask, generation_config=generation_config, **kwargs)
    one_token = copy(generation_config)
    one_token.max_new_tokens = 1
    cache = DynamicCache(config=config)
    ids = decode(
        input_ids=input_ids,
        attention_mask=attention_mask,
        generation_config=one_token,
        past_key_values=cache,
        **kwargs,
    )
    rows, prompt = input_ids.shape
    with cache_scope():
        fill_cache(cache, prompt + completion - 2)
    filler = torch.full((rows, completion - 2), _FILLER_TOKEN, dtype=ids.dtype, device=ids.device)
    ids = torch.cat([ids, filler], dim=1)
    seen = torch.ones((rows, completion - 1), dtype=attention_mask.dtype, device=attention_mask.device)
    return decode(
        input_ids=ids,
        attention_mask=torch.cat([attention_mask, seen], dim=1),
        generation_config=one_token,
        past_key_values=cache,
        **kwargs,
    )


def fill_cache(cache: DynamicCache, tokens: int) -> None:
    """Grow every layer of `cache` to `tokens` positions, one layer at a time; the new positions are zero.

    A layer with sliding attention does not grow beyond its window, and shows all positions of it but the oldest. One
    with linear attention does not grow at all.
    """
    for layer in cache.layers:
        if getattr(layer, "keys", None) is None:
            continue
        window = getattr(layer, "sliding_window", None) or tokens + 1
        layer.keys = _longer(layer.keys, tokens, window)
        layer.values = _longer(layer.values, tokens, window)
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = tokens


def _longer(states: torch.Tensor, tokens: int, window: int) -> torch.Tensor:
    rows, heads, present, head_dim = states.shape
    if present >= tokens:
        return states
    # The last step joined the positions that are shown and a new one, and shows all but the oldest of more.
    grown = states.new_zeros((rows, heads, min(tokens, window), head_dim))
    grown[:, :, : min(present, window)] = states
    return grown[:, :, -window + 1 :]


class ExtrapolatedRollout(GeneratedRollout):
    """Extrapolates the decoding steps of rollouts; those beyond the extrapolator's number are synthetic.

    Rollouts of evaluations are counted apart: they have other rows.
    """

    def __init__(self, placement: Placement) -> None:
        extrapolator = placement.decode_extrapolator()
        if extrapolator is None:
            raise ValueError("an extrapolated rollout needs a placement with a decode extrapolator")
        self._extrapolator = extrapolator
        self._synthetic = SyntheticRollout(placement)
        self._rollouts: Counter[bool] = Counter()
        """Of evaluations, and of training."""

    def generating(self, model: Any, *, evaluates: bool = False) -> AbstractContextManager[None]:
        """While active, `model.generate` runs as few decoding steps as the extrapolation needs."""
        self._rollouts[evaluates] += 1
        if self._rollouts[evaluates] > self._extrapolator.most_rollouts:
            return self._synthetic.generating(model)
        return extrapolated_decoding(model, extrapolator=self._extrapolator)
