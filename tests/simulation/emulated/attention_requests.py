"""The attention requests that torch was asked about: lists of values per axis, and the tensors of one point.

The recorder builds the tensors on a CUDA device, the tests on `meta`.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import Any

import torch

ROWS = 2
LETTER_OF = {0: "m", 1: "f", 2: "e", 3: "c"}
"""By torch's number of the backend (`sdp::SDPBackend`): math, flash, efficient, cuDNN."""

PLAIN: dict[str, list[Any]] = {
    "width": [64],
    "value_width": ["equal"],
    "dtype": ["bfloat16"],
    "mask": ["none"],
    "is_causal": [False],
    "wants_gradient": [False],
    "query_tokens": [64],
    "key_tokens": [64],
    "heads": ["equal"],
    "dropout": [0.0],
    "layout": ["plain"],
}

WIDTHS = [8, 40, 64, 80, 96, 128, 160, 192, 200, 224, 256, 264, 288]

BLOCKS: list[dict[str, list[Any]]] = [
    PLAIN
    | {
        "width": WIDTHS,
        "value_width": ["equal", 128, 20],
        "dtype": ["bfloat16", "float16", "float32"],
        "mask": ["none", "bool"],
        "is_causal": [False, True],
        "wants_gradient": [False, True],
        "heads": ["equal", "grouped"],
        "dropout": [0.0, 0.1, 0.125],
    },
    PLAIN
    | {
        "width": [40, 64, 192],
        "dtype": ["bfloat16", "float32"],
        "mask": ["none", "bool", "float", "two dimensions", "three dimensions", "trained", "expanded keys"],
        "is_causal": [False, True],
        "query_tokens": [1, 7, 64],
        "key_tokens": [1, 64, 65],
        "heads": ["equal", "grouped", "grouped, not announced", "uneven"],
        "dropout": [0.0, 0.1, 0.125],
    },
    PLAIN
    | {
        "width": [1, 4, 20, 64, 256],
        "value_width": ["equal", 64],
        "dtype": ["bfloat16", "float16", "float32"],
        "mask": ["none", "bool"],
        "wants_gradient": [False, True],
        "heads": ["equal", "grouped"],
        "layout": ["plain", "by tokens", "strided widths", "strided value", "one row of keys", "three dimensions"],
    },
]
"""Each block is the product of its axes, the last axis fastest."""

_HEADS = {"equal": (4, 4), "grouped": (4, 2), "grouped, not announced": (4, 2), "uneven": (4, 3)}


def points(axes: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield every point of a block."""
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def arguments(point: Mapping[str, Any], device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named arguments of `torch._fused_sdp_choice` for one point."""
    heads, key_heads = _HEADS[point["heads"]]
    width = point["width"]
    value_width = width if point["value_width"] == "equal" else point["value_width"]
    queries, keys, layout = point["query_tokens"], point["key_tokens"], point["layout"]
    rest = (point["dtype"], point["wants_gradient"], device)
    strided = layout == "strided widths"
    query = _states(ROWS, heads, queries, width, "strided" if strided else layout, *rest)
    key_rows = 1 if layout == "one row of keys" else ROWS
    key = _states(key_rows, key_heads, keys, width, "strided" if strided else layout, *rest)
    value_layout = "strided" if layout in ("strided widths", "strided value") else layout
    value = _states(key_rows, key_heads, keys, value_width, value_layout, *rest)
    mask = _mask(point["mask"], heads, queries, keys, point["dtype"], device)
    gqa = point["heads"] in ("grouped", "uneven")
    return (query, key, value, mask, point["dropout"], point["is_causal"]), {"enable_gqa": gqa}


@lru_cache(maxsize=4096)
def _states(
    rows: int, heads: int, tokens: int, width: int, layout: str, dtype: str, wants_gradient: bool, device: str
) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if layout == "by tokens":
        states = torch.empty((rows, tokens, heads, width), dtype=kind, device=device).transpose(1, 2)
    elif layout == "strided":
        states = torch.empty((rows, heads, width, tokens), dtype=kind, device=device).transpose(2, 3)
    else:
        states = torch.empty((rows, heads, tokens, width), dtype=kind, device=device)
    if layout == "three dimensions":
        states = states[0]
    return states.detach().requires_grad_(wants_gradient)


@lru_cache(maxsize=4096)
def _mask(kind: str, heads: int, queries: int, keys: int, dtype: str, device: str) -> torch.Tensor | None:
    if kind == "none":
        return None
    if kind == "bool":
        return torch.empty((ROWS, 1, queries, keys), dtype=torch.bool, device=device)
    shapes = {
        "float": (1, 1, 1, keys),
        "two dimensions": (queries, keys),
        "three dimensions": (heads, queries, keys),
        "trained": (ROWS, heads, queries, keys),
        "expanded keys": (ROWS, heads, queries, 1),
    }
    mask = torch.empty(shapes[kind], dtype=getattr(torch, dtype), device=device)
    if kind == "expanded keys":
        mask = mask.expand(ROWS, heads, queries, keys)
    return mask.requires_grad_(kind == "trained")
