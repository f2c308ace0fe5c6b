"""The reductions that were recorded: which ones, and how one of them is run on a device."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch

DTYPES = ("float32", "bfloat16", "float16", "int64", "bool")
FLOATING = DTYPES[:3]
SHAPES = (
    (4168, 896),
    (896, 4168),
    (64, 64),
    (8, 1000, 896),
    (1, 151_936),
    (4, 100, 32_000),
    (3, 5, 7, 129),
    (1_000_003,),
    (2, 3_000_000),
    (40_000, 3),
    (17_000, 151_936),
)
LAYOUTS = ("contiguous", "transposed", "expanded", "from the second", "every other")
DIMENSIONS: tuple[int | tuple[int, ...] | None, ...] = (None, 0, -1, (0, 1))

Reduce = Callable[[torch.Tensor, Any], Any]

OPERATIONS: dict[str, tuple[tuple[str, ...], Reduce]] = {
    "sum": (DTYPES, lambda x, dim: x.sum() if dim is None else x.sum(dim)),
    "sum to float32": (FLOATING, lambda x, dim: torch.sum(x, dim, dtype=torch.float32)),
    "mean": (FLOATING, lambda x, dim: x.mean() if dim is None else x.mean(dim)),
    "amax": (DTYPES, lambda x, dim: x.amax(() if dim is None else dim)),
    "max": (DTYPES, lambda x, dim: x.max() if dim is None else x.max(dim)),
    "min": (DTYPES, lambda x, dim: x.min() if dim is None else x.min(dim)),
    "argmax": (DTYPES[:4], lambda x, dim: x.argmax(dim)),
    "any": (DTYPES, lambda x, dim: x.any() if dim is None else x.any(dim)),
    "all": (DTYPES, lambda x, dim: x.all() if dim is None else x.all(dim)),
    "var": (FLOATING, lambda x, dim: x.var(dim)),
    "std": (FLOATING, lambda x, dim: x.std(dim)),
    "var and mean": (FLOATING, lambda x, dim: torch.var_mean(x, dim)),
    "norm": (FLOATING, lambda x, dim: torch.linalg.vector_norm(x, 2, dim)),
    "norm to float32": (FLOATING, lambda x, dim: torch.linalg.vector_norm(x, 2, dim, dtype=torch.float32)),
}
"""Types of values, and the operation."""

_ONE_DIMENSION = ("max", "min", "argmax")

Point = tuple[str, str, tuple[int, ...], str, Any]


def points() -> Iterator[Point]:
    """Yield operation, type, shape, layout and reduced dimensions of each reduction."""
    for (name, (dtypes, _)), shape, layout, dim in product(OPERATIONS.items(), SHAPES, LAYOUTS, DIMENSIONS):
        large = len(shape) == 2 and shape[0] * shape[1] > 2**31
        for dtype in dtypes:
            if len(shape) == 1 and (layout == "transposed" or isinstance(dim, tuple)):
                continue
            if isinstance(dim, tuple) and name in _ONE_DIMENSION:
                continue
            if large and (layout != "contiguous" or dtype not in ("bfloat16", "float32")):
                continue
            yield name, dtype, shape, layout, dim


def reduce(point: Point, device: str) -> tuple[torch.Tensor, Callable[[], Any]]:
    """Return the values of a point on `device`, and its reduction."""
    name, dtype, shape, layout, dim = point
    values = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
    if layout == "transposed":
        values = values.transpose(-1, -2)
    elif layout == "expanded":
        values = values.unsqueeze(0).expand(3, *shape)
    elif layout == "from the second":
        values = values[..., 1:]
    elif layout == "every other":
        values = values[..., ::2]
    operation = OPERATIONS[name][1]
    return values, lambda: operation(values, dim)
