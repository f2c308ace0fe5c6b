"""The simulated GPU: a dispatch mode under which `meta` tensors are recorded as memory of a card."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from profiler.domain.cards.gpu import Chip
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Category, Phase
from profiler.simulation.cuda.composites import CublasWorkspaces
from profiler.simulation.cuda.scratch.deferred_scratch import ScratchCall
from profiler.simulation.cuda.scratch.kernel_scratch import NO_SCRATCH, KernelScratch, Scratch, more_columns_alike
from profiler.simulation.device.op_cache import follow, known_plans, lasting, make_plan, signature
from profiler.simulation.tracing.backward import IN_PLACE, BackwardMode, without_a_mode
from profiler.simulation.tracing.host_values import (
    are_kept,
    content_of,
    forget,
    host_value,
    on_host,
    pinned,
    placeholder,
    set_host_value,
)
from profiler.simulation.tracing.recorder import Launches, Recorder

aten = torch.ops.aten
META = torch.device("meta")

SAMPLED_TOKEN = 2
"""Result of sampling from probabilities without a host value. Memory does not depend on it."""


class UnsupportedOperationError(UnsupportedTrialError):
    """The simulation does not know the result of an operation."""


_VIEWS = frozenset(
    id(operation)
    for operation in (
        aten.view.default,
        aten._unsafe_view.default,
        aten.t.default,
        aten.transpose.int,
        aten.detach.default,
        aten.slice.Tensor,
        aten.unsqueeze.default,
        aten.expand.default,
    )
)
"""Operations that return a view of their first argument and never allocate memory."""

_PRODUCTS = frozenset(
    id(operation)
    for operation in (
        aten.mm.default,
        aten.addmm.default,
        aten.addmm_.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.baddbmm_.default,
        aten.addbmm.default,
        aten.mv.default,
        aten.addmv.default,
        aten.dot.default,
    )
)
"""Operations that call cuBLAS."""

_NEVER_READ = frozenset(id(operation) for operation in (aten.cos.default, aten.sin.default))
"""Operations whose results no host value is kept of: angles of positions, on which no decision of the host depends. For
each pass of a model they and what is made of them would take 5 % of the time of a trial."""

_BROUGHT_BACK = "brought back from the host"
"""Name of a tensor that was offloaded: by its shape it could be taken for a gradient."""

_Sizes = tuple[KernelScratch, Mapping[Chip, KernelScratch]]
"""Scratch of an operation on the simulated chip, and on the others."""

Handler = Callable[["SimulatedGpu", tuple[Any, ...], dict[str, Any]], Any]


class SimulatedGpu(BackwardMode):
    """While active, every operation with a `meta` tensor runs on the simulated GPU; operations on the CPU run for real.

    Moving a CPU tensor to `meta` allocates memory on the card and keeps the host value (`host_values.py`). Moving it
    back returns the host value, or a placeholder.

    Args:
        recorder: Keeps the trace.
        chip: The simulated chip.
        others: Other chips that the run covers.
        scratch: Scratch that kernels allocate inside an operation (`KERNEL_SCRATCH` for CUDA).
        workspaces: Workspaces that cuBLAS allocates at the first product of a thread; None for no workspaces.
        made_last_first: Operations that allocate their last result first on CUDA.
        wider: Operations that run for more types than on `meta`, with what runs in their place.
        sampled_token: Returns the token that is sampled of a vocabulary of this size, or chosen as the most probable
            one in a rollout; None for `SAMPLED_TOKEN`, and for no choice without a host value.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        chip: Chip | None = None,
        others: Collection[Chip] = (),
        scratch: Mapping[Any, Scratch] | None = None,
        workspaces: CublasWorkspaces | None = None,
        made_last_first: Collection[Any] = (),
        wider: Mapping[Any, Callable[..., Any]] | None = None,
        sampled_token: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__()
        self.recorder = recorder
        self._chip, self._others = chip, tuple(others)
        self._workspaces = workspaces
        self._sizes: dict[Hashable, _Sizes | None] = {}
        self._calls: dict[Hashable, ScratchCall] = {}
        # By identity: ATen's operations live as long as the process, and hashing them is slow.
        self._scratch = {id(operation): takes for operation, takes in (scratch or {}).items()}
        self._made_last_first = frozenset(id(operation) for operation in made_last_first)
        self._wider = {id(operation): runs for operation, runs in (wider or {}).items()}
        self._plans = known_plans(self._wider)
        self.sampled_token = sampled_token

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch wraps each call of a mode's handler to keep its compiler away; nothing is compiled here.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():
            # Elsewhere operations that torch composes of others have been taken apart before.
            with self.also_within():
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self.recorder.operation = func
        handler = _HANDLER_OF.get(id(func))
        if handler is not None:
            return handler(self, args, kwargs)
        return self.run(func, args, kwargs)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation without its handler."""
        if id(func) in _VIEWS and args[0].is_meta and host_value(args[0]) is None:
            # Half of all operations: no allocation, no entry in the cache, no host value.
            return func(*args, **kwargs)
        key, tensors = signature(func, args, kwargs)
        on_device = sum([tensor.is_meta for tensor in tensors])
        if not on_device:
            if tensors or not _on_meta(kwargs):
                return func(*args, **kwargs)
            return self._make(func, args, kwargs)
        if on_device != len(tensors):
            args, kwargs = _to_meta(args), _to_meta(kwargs)
            key, tensors = signature(func, args, kwargs)
        self.recorder.operands = tensors
        try:
            result = self._run_with_operands(func, args, kwargs, key, tensors)
        finally:
            # What refers to an operand would keep its memory.
            self.recorder.operands = ()
        if self._workspaces is not None and id(func) in _PRODUCTS:
            self._workspaces.product(with_bias=func is aten.addmm.default and args[0].dim() == 1)
        if self.recorder.work is not None:
            self.recorder.work.operation(key, func, args, kwargs, tensors, result)
        _carry_values(func, args, kwargs, tensors, result)
        return result

    def _run_with_operands(self, func: Any, args: Any, kwargs: Any, key: Hashable, tensors: list[torch.Tensor]) -> Any:
        scratch = self._scratch.get(id(func)) if self._chip is not None else None
        if scratch is None:
            return self._run_on_device(func, args, kwargs, key, tensors)
        if self.recorder.leaves_scratch_open:
            return self._run_with_deferred(scratch, args, kwargs, func, key, tensors)
        if self.recorder.repeats_steps:
            self._note_change_ahead(func, args)
        sizes = self._sizes_of(scratch, args, kwargs, (key, tensors[0].storage_offset()))
        if sizes is None:
            return self._run_on_device(func, args, kwargs, key, tensors)
        return self._run_with_scratch(sizes, func, args, kwargs, key, tensors)

    def _run_on_device(self, func: Any, args: Any, kwargs: Any, key: Hashable, tensors: list[torch.Tensor]) -> Any:
        plan = self._plans.get(key)
        if plan is not None:
            result, made = follow(plan, tensors)
            self._record(func, made)
            return result
        shapes = [tensor.shape for tensor in tensors]
        try:
            result = self._wider.get(id(func), func)(*args, **kwargs)
        except NotImplementedError as error:
            raise UnsupportedOperationError(f"the simulation does not know the operation {func}: {error}") from error
        self._record(func, _tensors_in(result))
        if key not in self._plans:
            self._plans[lasting(key)] = make_plan(func, result, tensors, shapes)
        return result

    def _record(self, func: Any, made: Sequence[torch.Tensor]) -> None:
        if not made:
            self.recorder.written()
        elif len(made) == 1:
            self.recorder.made(made[0])
        else:
            numbered = list(enumerate(made))
            for number, tensor in reversed(numbered) if id(func) in self._made_last_first else numbered:
                self.recorder.made(tensor, number)

    def _run_with_scratch(
        self, sizes: _Sizes, func: Any, args: Any, kwargs: Any, key: Hashable, tensors: list[torch.Tensor]
    ) -> Any:
        here, by_capability = sizes
        name, recorder = f"{func}'s kernel", self.recorder

        def take(blocks: Callable[[KernelScratch], tuple[int, ...]]) -> Sequence[int]:
            others = {chip: blocks(found) for chip, found in by_capability.items()}
            return recorder.take(blocks(here), name, by_capability=others)

        def launch(blocks: Callable[[KernelScratch], Launches]) -> None:
            others = {chip: blocks(found) for chip, found in by_capability.items()}
            recorder.scratch(blocks(here), name, by_capability=others)

        before = take(lambda scratch: scratch.before)
        launch(lambda scratch: scratch.first)
        until_the_end = take(lambda scratch: scratch.until_the_end)
        inputs = take(lambda scratch: scratch.inputs)
        result = self._run_on_device(func, args, kwargs, key, tensors)
        recorder.give_back(inputs)
        held = take(lambda scratch: scratch.held)
        launch(lambda scratch: scratch.launches)
        recorder.give_back(held)
        recorder.give_back(until_the_end)
        recorder.give_back(before)
        return result

    def _run_with_deferred(
        self, scratch: Scratch, args: Any, kwargs: Any, func: Any, key: Hashable, tensors: list[torch.Tensor]
    ) -> Any:
        """Run an operation whose scratch is left open."""
        assert self._chip is not None
        places = key, *(tensor.storage_offset() for tensor in tensors)
        call = self._calls.get(places)
        if call is None:
            call = self._calls[places] = ScratchCall.of(scratch, self._chip, args, kwargs)
        self.recorder.deferred(call)
        result = self._run_on_device(func, args, kwargs, key, tensors)
        self.recorder.deferred(call.end)
        return result

    def _note_change_ahead(self, func: Any, args: Any) -> None:
        """In a decoding step, announce for how many more steps a reduction takes the same blocks on every chip."""
        assert self._chip is not None
        for chip in (self._chip, *self._others):
            if (steps := more_columns_alike(func, args, chip)) is not None:
                self.recorder.holds_for(steps)

    def _sizes_of(self, scratch: Scratch, args: Any, kwargs: Any, key: Hashable) -> _Sizes | None:
        """Return the scratch of an operation on each chip, None if it takes none; cached for equal arguments."""
        if key in self._sizes:
            return self._sizes[key]
        assert self._chip is not None
        here, others = scratch(args, kwargs, self._chip), {each: scratch(args, kwargs, each) for each in self._others}
        takes_some = any(found != NO_SCRATCH for found in (here, *others.values()))
        self._sizes[key] = (here, others) if takes_some else None
        return self._sizes[key]

    def _make(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a factory. Its result has a host value if it is small and not random."""
        result = func(*args, **kwargs)
        for tensor in _tensors_in(result):
            self.recorder.made(tensor)
            if are_kept([tensor]) and not _facts_of(func).is_random_or_empty:
                set_host_value(tensor, func(*args, **(kwargs | {"device": "cpu"})))
        return result

    def place(self, value: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Copy a CPU tensor to the card."""
        if dtype is not None and not are_kept([value]):
            # Without a conversion on the host, which would be as large.
            value, dtype = value.new_empty(0, dtype=dtype).new_empty_strided(value.shape, value.stride()), None
        converted = value if dtype is None else value.to(dtype)
        placed = torch.empty_like(converted, device=META)
        self.recorder.made(placed)
        if are_kept([converted]):
            # A copy: the host may change its own tensor afterwards.
            set_host_value(placed, converted.clone())
        return placed

    def bring_back(self, source: torch.Tensor, value: torch.Tensor | None) -> torch.Tensor:
        """Copy a tensor from pinned memory to the card."""
        placed = torch.empty(source.shape, dtype=source.dtype, device=META)
        self.recorder.made(placed)
        self.recorder.attribute([(_BROUGHT_BACK, placed)], Category.ACTIVATIONS)
        if self.recorder.work is not None:
            self.recorder.work.copied(from_host_bytes=placed.nbytes, stream=self.recorder.stream)
        if value is not None:
            set_host_value(placed, value)
        return placed


def _on_meta(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "meta"


def _to_meta(value: Any) -> Any:
    """Replace CPU tensors by `meta` tensors with the same host value; scalars on the host take no memory."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "meta":
            return value
        moved = torch.empty_like(value, device=META)
        set_host_value(moved, value)
        return moved
    if isinstance(value, list | tuple):
        return type(value)(_to_meta(item) for item in value)
    if isinstance(value, dict):
        return {name: _to_meta(item) for name, item in value.items()}
    return value


def _tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_meta else []
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors_in(item)]
    return []


class _Facts(NamedTuple):
    """What an operation does, whatever its arguments are."""

    operation: Any
    """Kept, because its identity would otherwise be that of a later object."""
    writes: bool
    """Whether it changes one of them."""
    is_random: bool
    is_random_or_empty: bool


_facts: dict[int, _Facts] = {}
"""By identity: to ask torch takes as long as many an operation."""


def _facts_of(func: Any) -> _Facts:
    facts = _facts.get(id(func))
    if facts is None:
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        facts = _facts[id(func)] = _Facts(
            operation=func,
            writes=bool(func._schema.is_mutable),
            is_random=is_random,
            is_random_or_empty=is_random or "empty" in func.__name__,
        )
    return facts


def _carry_values(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor], result: Any) -> None:
    """Compute the host value of a result if all arguments have one; drop host values that are overwritten."""
    if id(func) in _NEVER_READ:
        return
    known = [host_value(tensor) is not None for tensor in tensors]
    if True not in known:
        # Most operations: nothing of theirs was made on the host.
        return
    facts = _facts_of(func)
    if facts.is_random or False in known:
        if facts.writes:
            for tensor in _tensors_in(result):
                forget(tensor)
        return
    if facts.is_random_or_empty:
        return
    if not facts.writes and not are_kept(_tensors_in(result)):
        return
    computed = func(*_host_values_in(args), **{name: _host_values_in(value) for name, value in kwargs.items()})
    for tensor, value in zip(_tensors_in(result), _plain_tensors(computed), strict=True):
        set_host_value(tensor, value)


def _host_values_in(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return host_value(value)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, list | tuple):
        return type(value)(_host_values_in(item) for item in value)
    return value


def _plain_tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _plain_tensors(item)]
    return []


# ---- operations that depend on more than shapes ----------------------------------------------------------------------


def _copy_to(gpu: SimulatedGpu, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handle `_to_copy` between host and card, or on the card."""
    source = args[0]
    if source.is_meta and kwargs.get("device") is None:
        return gpu.run(aten._to_copy.default, args, kwargs)
    target = torch.device(kwargs.get("device") or source.device)
    if source.device.type == "cpu" and target.type == "meta":
        if (content := content_of(source)) is not None:
            return gpu.bring_back(source, content.value)
        return gpu.place(source, dtype=kwargs.get("dtype"))
    if source.device.type == "meta" and target.type == "cpu":
        return on_host(source).to(kwargs.get("dtype") or source.dtype)
    if source.device.type == "meta":
        kwargs = {**kwargs, "device": META}
    return gpu.run(aten._to_copy.default, args, kwargs)


def _copy_in_place(gpu: SimulatedGpu, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handle `copy_`: a tensor on the host receives the host value."""
    target, source = args[:2]
    if (content := content_of(target)) is not None:
        if not source.is_contiguous():
            # `copy_requires_temporaries` (native/cuda/Copy.cu): the card makes it contiguous first.
            gpu.recorder.temporary(target.numel() * target.element_size())
        content.value = host_value(source)
        if gpu.recorder.work is not None:
            gpu.recorder.work.copied(to_host_bytes=source.nbytes, stream=gpu.recorder.stream)
        return target
    if target.device.type == "cpu" and source.device.type == "meta":
        return aten.copy_.default(target, on_host(source))
    found = gpu.run(aten.copy_.default, args, kwargs)
    is_whole = target.is_meta and target.untyped_storage().nbytes() == target.nbytes
    if source.device.type == "cpu" and is_whole and host_value(target) is None and torch.distributed.is_initialized():
        # DDP reads the order of its buckets back.
        set_host_value(target, source.expand(target.shape).to(target.dtype, copy=True))
    return found


def _empty(operation: Any) -> Handler:
    """Return the handler of a factory, which may ask for pinned memory of the host."""

    def handle(gpu: SimulatedGpu, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not kwargs.get("pin_memory"):
            return gpu.run(operation, args, kwargs)
        like = args[0]
        if isinstance(like, torch.Tensor):
            return pinned(like.shape, kwargs.get("dtype") or like.dtype)
        return pinned(like, kwargs.get("dtype") or torch.get_default_dtype())

    return handle


def _to_scalar(gpu: SimulatedGpu, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handle the read of a number by the host."""
    tensor = args[0]
    if tensor.device.type != "meta":
        return aten._local_scalar_dense.default(tensor)
    value = host_value(tensor)
    return placeholder(tensor.dtype) if value is None else value.item()


def _nonzero(gpu: SimulatedGpu, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handle `nonzero`: as many rows as the host value has, or all of them without one."""
    tensor = args[0]
    if tensor.device.type != "meta":
        return aten.nonzero.default(tensor)
    value = host_value(tensor)
    if value is None:
        found = torch.empty((tensor.numel(), tensor.dim()), dtype=torch.int64, device=META)
        gpu.recorder.made(found)
        return found
    return gpu.place(value.nonzero())


def _index(gpu: SimulatedGpu, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handle indexing by a mask: it takes the positions that are set, whose indices CUDA allocates first."""
    tensor, indices = args[:2]
    if tensor.device.type != "meta":
        return aten.index.Tensor(*args, **kwargs)
    return gpu.run(aten.index.Tensor, (tensor, _as_positions(gpu, indices)), kwargs)


def _as_positions(gpu: SimulatedGpu, indices: list[Any]) -> list[Any]:
    """Replace each mask by one index per dimension: columns of one tensor (`expandTensors`)."""
    positions: list[Any] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            positions.append(index)
            continue
        value = host_value(index) if index.device.type == "meta" else index
        value = torch.ones(index.shape, dtype=torch.bool, device="cpu") if value is None else value
        found = value.nonzero()
        with gpu.recorder.attributed(Category.WORKSPACE, "positions of a mask"):
            placed = gpu.place(found)
        for dimension in range(found.shape[1]):
            column = placed[:, dimension]
            set_host_value(column, found[:, dimension])
            positions.append(column)
    return positions


def _masked_select(gpu: SimulatedGpu, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handle `masked_select`: CUDA expands both to one shape and indexes (`native/cuda/IndexKernel.cpp`)."""
    tensor, mask = torch.broadcast_tensors(*args)
    return _index(gpu, (tensor, [mask]), kwargs)


def _index_put(operation: Any) -> Handler:
    def handle(gpu: SimulatedGpu, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args[0].device.type != "meta":
            return operation(*args, **kwargs)
        written = without_a_mode(operation, args) if operation in IN_PLACE else operation
        return gpu.run(written, (args[0], _as_positions(gpu, args[1]), *args[2:]), kwargs)

    return handle


def _multinomial(gpu: SimulatedGpu, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handle sampling: CUDA divides by exponential noise in a tensor of its own (`multinomial_kernel`, ATen)."""
    probabilities, samples = args[:2]
    if probabilities.device.type != "meta":
        return aten.multinomial.default(*args, **kwargs)
    gpu.recorder.temporary(probabilities.nbytes)
    shape = (*probabilities.shape[:-1], samples)
    token = SAMPLED_TOKEN if gpu.sampled_token is None else gpu.sampled_token(probabilities.shape[-1])
    return gpu.place(torch.full(shape, token, dtype=torch.int64, device="cpu"))


def _argmax(gpu: SimulatedGpu, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handle the choice of the most probable token in a rollout."""
    scores = args[0]
    found = gpu.run(aten.argmax.default, args, kwargs)
    chosen_in_rollout = gpu.sampled_token is not None and gpu.recorder.phase is Phase.ROLLOUT
    if chosen_in_rollout and found.is_meta and host_value(found) is None and scores.is_floating_point():
        assert gpu.sampled_token is not None
        set_host_value(
            found, torch.full(found.shape, gpu.sampled_token(scores.shape[-1]), dtype=found.dtype, device="cpu")
        )
    return found


def _unscale(gpu: SimulatedGpu, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handle the end of scaled gradients: all are finite, so `found_inf` stays 0, and the optimizer steps.

    Raises:
        NotImplementedError: Gradients are in bfloat16, as in CUDA's `AmpKernels.cu`.
    """
    operation = aten._amp_foreach_non_finite_check_and_unscale_.default
    gradients, found = args[:2]
    if any(gradient.dtype is torch.bfloat16 for gradient in gradients):
        raise NotImplementedError("\"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'")
    value = host_value(found)
    result = gpu.run(operation, args, kwargs)
    if value is not None:
        set_host_value(found, value)
    return result


_UNIQUE = (aten.unique_consecutive.default, aten.unique_dim.default, aten.unique_dim_consecutive.default)


def _sized_by_values(operation: Any) -> Handler:
    """Return the handler of an operation whose result has a size that depends on values, all of them on the host."""

    def handle(gpu: SimulatedGpu, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = host_value(args[0]) if args[0].device.type == "meta" else None
        if value is None:
            return gpu.run(operation, args, kwargs)
        found = operation(value, *args[1:], **kwargs)
        if isinstance(found, torch.Tensor):
            return gpu.place(found)
        return tuple(gpu.place(part) for part in found)

    return handle


def _by_autograd(operation: Any) -> Handler:
    """Return the handler of an operation that autograd runs in place where no mode is active."""

    def handle(gpu: SimulatedGpu, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return gpu.run(without_a_mode(operation, args), args, kwargs)

    return handle


HANDLERS: dict[Any, Handler] = {
    **{operation: _by_autograd(operation) for operation in (aten.add.Tensor, *IN_PLACE)},
    aten._to_copy.default: _copy_to,
    aten.empty.memory_format: _empty(aten.empty.memory_format),
    aten.empty_like.default: _empty(aten.empty_like.default),
    aten.copy_.default: _copy_in_place,
    aten._local_scalar_dense.default: _to_scalar,
    aten.nonzero.default: _nonzero,
    aten.index.Tensor: _index,
    aten.masked_select.default: _masked_select,
    aten.index_put.default: _index_put(aten.index_put.default),
    aten.index_put_.default: _index_put(aten.index_put_.default),
    aten._index_put_impl_.default: _index_put(aten._index_put_impl_.default),
    aten.multinomial.default: _multinomial,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    aten.argmax.default: _argmax,
    aten.repeat_interleave.Tensor: _sized_by_values(aten.repeat_interleave.Tensor),
    **{each: _sized_by_values(each) for each in _UNIQUE},
}
_HANDLER_OF = {id(operation): handler for operation, handler in HANDLERS.items()}
