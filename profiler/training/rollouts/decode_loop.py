"""transformers' decoding loop with most of its steps extrapolated instead of run.

The loop calls `prepare_inputs_for_generation` once per step. There a step begins, and there the loop's own tensors
(ids, masks, positions, the KV cache) can be lengthened in place, so that the loop continues many tokens later. This is
the only file that touches this seam; a test fails when it moves.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from profiler.domain.errors import UnsupportedTrialError
from profiler.training.placement import DecodeExtrapolator

_LENGTHENED_PER_STEP = ("attention_mask", "position_ids", "token_type_ids")
"""Arguments of a step that transformers' loop makes longer by one, in their last dimension."""


class _ExtrapolationMismatchError(Exception):
    """A step that ran differs from the prediction."""


@contextmanager
def extrapolated_decoding(model: Any, *, extrapolator: DecodeExtrapolator) -> Iterator[None]:
    """While active, `model.generate` runs the prefill and few decoding steps; `extrapolator` adds the others.

    `model` is the transformers model itself, not a peft wrapper around it. After an extrapolation mismatch the rollout
    is decoded again, until it matches its prediction or has run as a whole.
    """
    decode = model.generate

    def generate(*args: Any, generation_config: Any, **kwargs: Any) -> torch.Tensor:
        while True:
            ids = _extrapolated(model, decode, extrapolator, *args, generation_config=generation_config, **kwargs)
            if ids is not None:
                return ids
            extrapolator.undo()

    model.generate = generate
    try:
        yield
    finally:
        del model.generate


def _extrapolated(
    model: Any, decode: Callable[..., Any], extrapolator: DecodeExtrapolator, *args: Any, **kwargs: Any
) -> Any:
    """Return the ids of a rollout; None on an extrapolation mismatch."""
    extrapolator.rollout_begins()
    try:
        with _steps_noticed(model, extrapolator, last_token=_last_token(*args, **kwargs)):
            ids = decode(*args, **kwargs)
    except _ExtrapolationMismatchError:
        return None
    return ids if extrapolator.rollout_ends() else None


def _last_token(*, input_ids: torch.Tensor, generation_config: Any, **_: Any) -> int:
    """Return the position of the last token, from 1."""
    return int(input_ids.shape[1]) + int(generation_config.max_new_tokens)


@contextmanager
def _steps_noticed(model: Any, extrapolator: DecodeExtrapolator, *, last_token: int) -> Iterator[None]:
    prepare = model.prepare_inputs_for_generation
    # The loop still has the inputs of the step before; they must not live any longer than that.
    inputs_before: list[weakref.ref[torch.Tensor]] = []

    @wraps(prepare)
    def prepare_inputs_for_generation(input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not extrapolator.step_begins():
            raise _ExtrapolationMismatchError
        # The step that begins makes the next token; the step that makes the last token has to run.
        steps = last_token - int(input_ids.shape[1]) - 1
        if steps < 0:
            tokens = f"{len(input_ids):,} rows of {last_token:,} tokens"
            raise UnsupportedTrialError(f"A rollout of {tokens} does not end: the values of so many are not kept.")
        layers = getattr(kwargs.get("past_key_values"), "layers", [])
        _extrapolate(extrapolator, steps, layers, lambda: _growing(input_ids, kwargs, inputs_before, layers))
        inputs = prepare(input_ids, *args, **kwargs)
        inputs_before[:] = [weakref.ref(value) for value in inputs.values() if isinstance(value, torch.Tensor)]
        return inputs

    model.prepare_inputs_for_generation = prepare_inputs_for_generation
    try:
        yield
    finally:
        del model.prepare_inputs_for_generation


def _extrapolate(
    extrapolator: DecodeExtrapolator, steps: int, layers: Any, growing: Callable[[], list[tuple[torch.Tensor, int]]]
) -> None:
    """Extrapolate up to `steps` steps, and add them to the layers' counts of tokens."""
    if (until_full := _steps_before_a_window_is_full(layers)) is not None:
        if until_full == 0:
            extrapolator.restart()
        steps = min(steps, until_full)
    if steps <= 0:
        return
    extrapolated = extrapolator.repeat(steps, growing())
    for layer in layers:
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length += extrapolated


def _growing(
    input_ids: torch.Tensor, step: dict[str, Any], inputs_before: list["weakref.ref[torch.Tensor]"], layers: Any
) -> list[tuple[torch.Tensor, int]]:
    """Return every tensor of the loop that each step makes longer by one, with the dimension."""
    before = [tensor for reference in inputs_before if (tensor := reference()) is not None]
    of_the_loop = [step[name] for name in _LENGTHENED_PER_STEP if step.get(name) is not None]
    of_the_loop += [tensor for tensor in before if tensor.shape[-1] == input_ids.shape[1] - 1]
    return [
        (input_ids, 1),
        *((tensor, tensor.dim() - 1) for tensor in of_the_loop),
        *((states, 2) for layer in layers for states in _growing_states(layer)),
    ]


def _window(layer: Any) -> int | None:
    """Return the number of positions that the layer attends to; None for all."""
    window: int | None = getattr(layer, "sliding_window", None)
    return window


def _steps_before_a_window_is_full(layers: Any) -> int | None:
    """Return the steps until a layer begins to drop its first positions; None if no layer will begin to."""
    waiting = [
        max(0, window - 2 - layer.cumulative_length)
        for layer in layers
        if (window := _window(layer)) is not None and layer.cumulative_length < window
    ]
    return min(waiting, default=None)


def _growing_states(layer: Any) -> Iterator[torch.Tensor]:
    """Yield keys and values of a layer that does not drop positions yet."""
    window = _window(layer)
    if getattr(layer, "keys", None) is None or (window is not None and layer.cumulative_length >= window):
        return
    yield layer.keys
    yield layer.values
