"""Calls of the simulated GPU that are cheaper: cached outputs by shapes, and those without an operation.

Op cache: the outputs of an operation by its arguments' shapes, so that its shape function runs once.

The shape functions of `meta` kernels are written in Python and dominate a simulated step. A trainer runs the same
operations on the same shapes many times: from the second time on, also in later trials of the process, outputs are made
from the cache.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._device import _device_constructors

from profiler.seams.patching import patched
from profiler.simulation.tracing.host_values import on_host

Operation = Callable[..., Any]


@dataclass(frozen=True)
class NewTensor:
    """An output with a storage of its own."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class SameTensor:
    """An output that is one of the tensor arguments, by its position among them."""

    index: int


Output = NewTensor | SameTensor | None


@dataclass(frozen=True)
class Plan:
    """The outputs of an operation; `as_sequence` is the type of their sequence, None for a single output."""

    outputs: tuple[Output, ...]
    as_sequence: type | None


_SEQUENCE = id(tuple)


def signature(operation: Operation, args: Any, kwargs: Any) -> tuple[Hashable, list[torch.Tensor]]:
    """Return a key that determines the outputs' shapes, and the tensors among the arguments in order."""
    tensors: list[torch.Tensor] = []
    # By identity: hashing operations is slow. The default type decides what integers become.
    key: list[Any] = [id(operation), torch.get_default_dtype()]
    _add_to_key(key, args, tensors)
    if kwargs:
        _add_to_key(key, tuple(kwargs.items()), tensors)
    return tuple(key), tensors


def _add_to_key(key: list[Any], values: Iterable[Any], tensors: list[torch.Tensor]) -> None:
    """Append to the key, flat because nested tuples are slow; the first entry per value gives its type."""
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            key += (value.is_meta, value.shape, value.stride(), value.dtype)
        elif isinstance(value, list | tuple):
            key += (_SEQUENCE, len(value))
            _add_to_key(key, value, tensors)
        else:
            # 1, 1.0 and True are equal and mean different data types.
            key += (id(type(value)), value)


def lasting(key: Hashable) -> Hashable:
    """Return an equal key of numbers and words, which the garbage collector does not visit in every cycle of phases."""
    assert isinstance(key, tuple)
    return tuple(tuple(each) if isinstance(each, torch.Size) else each for each in key)


REMEMBER = True
"""Whether the cache is used; off only in measurements of its benefit."""


Plans = dict[Hashable, Plan | None]
"""By signature; None where an operation has to run."""

_MOST_PLANS = 100_000
"""Of a process. A trial makes some 700."""

_plans: dict[Hashable, Plans] = {}
"""By what runs in place of operations."""
_planned: dict[int, Operation] = {}
"""Planned operations by their identity, which would otherwise be that of a later object."""


def known_plans(wider: Mapping[Any, Callable[..., Any]]) -> Plans:
    """Return the plans of earlier runs of this process, to which a run adds its own.

    Args:
        wider: What runs in place of operations, by their identity.
    """
    if not REMEMBER:
        return {}
    if sum(map(len, _plans.values())) > _MOST_PLANS:
        _plans.clear()
    return _plans.setdefault(frozenset(wider.items()), {})


def make_plan(
    operation: Operation, result: Any, tensors: list[torch.Tensor], key_shapes: list[torch.Size]
) -> Plan | None:
    """Return a plan that makes `result` again; None for a view, or if metadata changed in place."""
    if not REMEMBER:
        return None
    _planned[id(operation)] = operation
    sequence = type(result) if isinstance(result, list | tuple) else None
    outputs: list[Output] = []
    storages = {tensor.untyped_storage()._cdata for tensor in tensors}
    seen: set[int] = set()
    for item in result if sequence else (result,):
        output = _plan_output(item, tensors, storages, seen)
        if output is _NOT_PLANNABLE:
            return None
        outputs.append(output)
    if [tensor.shape for tensor in tensors] != key_shapes:
        return None
    return Plan(tuple(outputs), sequence)


_NOT_PLANNABLE: Any = object()


def _plan_output(item: Any, tensors: list[torch.Tensor], storages: set[int], seen: set[int]) -> Any:
    if item is None:
        return None
    if not isinstance(item, torch.Tensor) or item.device.type != "meta":
        return _NOT_PLANNABLE
    for index, tensor in enumerate(tensors):
        if item is tensor:
            return SameTensor(index)
    storage = item.untyped_storage()
    if storage._cdata in storages or storage._cdata in seen or item.storage_offset() != 0:
        return _NOT_PLANNABLE
    if item.numel() and storage.nbytes() != _span_bytes(item):
        return _NOT_PLANNABLE
    seen.add(storage._cdata)
    return NewTensor(tuple(item.shape), tuple(item.stride()), item.dtype)


def _span_bytes(tensor: torch.Tensor) -> int:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def follow(plan: Plan, tensors: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    """Make the outputs of a plan; return them, and those of them that are new."""
    made: list[torch.Tensor] = []
    outputs: list[Any] = []
    for output in plan.outputs:
        if output is None:
            outputs.append(None)
        elif isinstance(output, SameTensor):
            outputs.append(tensors[output.index])
        else:
            tensor = torch.empty_strided(output.shape, output.stride, dtype=output.dtype, device="meta")
            made.append(tensor)
            outputs.append(tensor)
    if plan.as_sequence is None:
        return outputs[0], made
    return plan.as_sequence(outputs), made


def host_calls() -> AbstractContextManager[None]:
    """While active, `torch.tensor` keeps host values and `.tolist()` reads them."""
    # torch lists its constructors once, at the first `with torch.device(...)`, and they must be its own: a list with
    # the replacement has no `torch.tensor` later, and transformers would take rotary frequencies for initialised.
    _device_constructors()
    make, as_list = torch.tensor, torch.Tensor.tolist

    def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is None and not isinstance(data, torch.Tensor):
            # Within `with torch.device(...)` torch makes it there, without an operation to intercept.
            made = make(data, *args, **kwargs)
            if not made.is_meta:
                return made
        elif device is None or torch.device(device).type != "meta":
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
