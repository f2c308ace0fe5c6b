"""Models with random weights in place of a checkpoint, loaded by transformers itself.

transformers' `from_pretrained` takes a state dict instead of a checkpoint. It gets one with the tensors that the
configuration needs, so that placement, data types, quantisation and tied weights are transformers' own. The tensors
are zeros of memory that the system only reserves: a model of any size takes no host memory until it is written to.
"""

from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

_BLOCK = 1 << 20
"""Elements of the random block that is repeated where weights have values."""

_STD = 0.02

_POSITIONS = ("position_ids", "token_type_ids")
"""Buffers of indices that encoders have: 0, 1, 2, ... and 0."""


def empty_checkpoint(
    model_class: Any, config: Any, model_args: tuple[Any, ...], dtype: torch.dtype, *, with_values: bool
) -> dict[str, torch.Tensor]:
    """Return a state dict for a model of this configuration; tied weights are in it once."""
    with torch.device("meta"):
        model = model_class(deepcopy(config), *model_args)
    model.tie_weights()
    named = dict(model.named_parameters())
    buffers = {name: value for name, value in model.named_buffers() if name in model.state_dict()}
    make = _random if with_values else _zeros
    return {name: make(value, _dtype_of(value, dtype)) for name, value in (named | buffers).items()}


def _dtype_of(value: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    return dtype if value.is_floating_point() else value.dtype


def _zeros(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros that no operation writes: the system provides the pages when they are used.

    Vectors are ones, as the weights of norms are.
    """
    if like.dim() < 2:
        return torch.ones(like.shape, dtype=dtype, device="cpu")
    reserved = np.zeros(prod(like.shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(reserved).view(dtype).view(like.shape)


def _random(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return one random block, repeated: values of the right size, in the time of a copy."""
    if like.dim() < 2 or not dtype.is_floating_point:
        return torch.ones(like.shape, dtype=dtype, device="cpu")
    elements = prod(like.shape)
    block = torch.randn(min(_BLOCK, elements), device="cpu").mul_(_STD).to(dtype)
    return block.repeat(-(-elements // block.numel()))[:elements].view(like.shape)


def requested_dtype(options: dict[str, Any], config: Any) -> torch.dtype:
    """Return the data type that a call of `from_pretrained` asks for: its own, or that of the checkpoint."""
    for asked in (options.get("dtype"), options.get("torch_dtype"), getattr(config, "dtype", None)):
        if isinstance(asked, torch.dtype):
            return asked
        if isinstance(asked, str) and asked != "auto":
            return getattr(torch, asked.removeprefix("torch."))
    return torch.float32


def number_positions(model: Any) -> None:
    """Give buffers of positions and types the values that every model has there: they are indices.

    They are in no checkpoint. transformers writes them after loading, unless it takes a module for initialised, as it
    does where the script's default device is not the host: they would hold what was in memory before.
    """
    for name, buffer in model.named_buffers():
        kind = name.rpartition(".")[2]
        if buffer.device.type == "cpu" and buffer.dtype == torch.long and kind in _POSITIONS:
            buffer.zero_()
            if kind == "position_ids":
                buffer += torch.arange(buffer.shape[-1], device="cpu")


def adopt_name(model: Any, name: str) -> None:
    """Let a model have the name that it was asked for by; a local folder's settings of generation come with it."""
    model.config._name_or_path = name
    model.name_or_path = name
    if (Path(name) / "generation_config.json").is_file() and model.can_generate():
        from transformers import GenerationConfig

        model.generation_config = GenerationConfig.from_pretrained(name)
