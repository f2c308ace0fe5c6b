"""Calls that make or read tensors of the simulated GPU without an operation that a dispatch mode sees."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._device import _device_constructors

from profiler.seams.patching import patched
from profiler.simulation.tracing.host_values import on_host


def host_calls() -> AbstractContextManager[None]:
    """While active, `torch.tensor` keeps host values and `.tolist()` reads them."""
    # torch lists its constructors once, at the first `with torch.device(...)`, and they must be its own: a list with
    # the replacement has no `torch.tensor` later, and transformers would take rotary frequencies for initialised.
    _device_constructors()
    make, as_list = torch.tensor, torch.Tensor.tolist

    def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "meta":
            return make(data, *args, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        placed = make(_read(data), *args, **(kwargs | {"device": "cpu"})).to("meta")
        return placed.requires_grad_() if requires_grad else placed

    def tolist(self: torch.Tensor) -> Any:
        return as_list(on_host(self) if self.device.type == "meta" else self)

    return patched([(torch, "tensor", tensor), (torch.Tensor, "tolist", tolist)])


def _read(data: Any) -> Any:
    """Return `data` with the numbers that tensors of the simulated GPU in its lists have on the host."""
    if isinstance(data, torch.Tensor) and data.is_meta:
        return on_host(data).tolist()
    return [_read(item) for item in data] if isinstance(data, list) else data
