"""A simulated GPU for the length of one trial: all parts of the simulation, switched on together."""

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.fx.experimental import _config
from torch.utils._python_dispatch import _disable_current_modes

from profiler.allocator.traces.trace import Trace
from profiler.domain.cards.gpu import Gpu
from profiler.domain.memory import Category, Phase
from profiler.seams.patching import patched
from profiler.simulation.cuda.autocast import SimulatedAutocast, autocast_dtype, autocast_on_meta, scaled_gradients
from profiler.simulation.cuda.composites import COMPOSED_FOR_CUDA, MASK_FIRST, CublasWorkspaces
from profiler.simulation.cuda.fused_attention.attention import scaled_dot_product_attention
from profiler.simulation.cuda.fused_attention.flash_attention import simulated_flash_attention
from profiler.simulation.cuda.offloading import BACKEND, dist, emptied_cache, of_process, offloaded_activations
from profiler.simulation.cuda.optimizers import MADE_LAST_FIRST, cuda_optimizers, four_bit_products
from profiler.simulation.cuda.scratch.deferred_scratch import Rule, ScratchCall, Sizes
from profiler.simulation.cuda.scratch.kernel_scratch import (
    KERNEL_SCRATCH,
    LINEAR_ATTENTION_SCRATCH,
    SORTING_SCRATCH,
    WEIGHT_FIRST,
)
from profiler.simulation.cuda.scratch.losses import LOSS_SCRATCH, LOSSES, WIDER_KERNELS, WIDER_SCRATCH
from profiler.simulation.cuda.trl_kernels import Products, triton_path
from profiler.simulation.device.cpu_choices import Choices, cpu_choices
from profiler.simulation.device.op_cache import host_calls
from profiler.simulation.device.simulated_gpu import META, SimulatedGpu
from profiler.simulation.extrapolation.decode_extrapolator import DecodeExtrapolator
from profiler.simulation.extrapolation.step_template import RepeatedSteps
from profiler.simulation.tracing.attribution import Attribution, attributed_cache
from profiler.simulation.tracing.recorder import Recorder
from profiler.simulation.tracing.work import WorkCounter

# torch adds `patch` to the module at import, so its types do not have it.
_symbolic_config: Any = _config


@dataclass(frozen=True, kw_only=True)
class Extrapolation:
    """Which repeated parts of a run are extrapolated instead of run."""

    decoding: bool = True
    """Decoding steps of a rollout."""
    steps: bool = True
    """Optimizer steps: the run ends when they repeat."""
    every_block: bool = False
    """Keep blocks of extrapolated decoding steps that leave the caching allocator as it was."""
    scratch: bool = False
    """Leave the scratch of kernels open, so that it can be computed for other lengths."""
    layers_of: Mapping[str, Any] | None = None
    """The fields of the model's `config.json` if few of its layers run, and the others are extrapolated. Most
    extrapolated decoding steps are then noted only, and have to be written out (`TraceBuilder.left_out`)."""


_NEVER_OPENING = (Phase.LOAD, Phase.EVALUATION)
"""An evaluation before the first step opens no cycle of phases."""


class Simulation:
    """A session of training on a simulated GPU. One per process.

    Args:
        gpu: The card that is simulated.
        others: Cards of the same kernel family for which the run is valid too, unless they diverge.
        choices: The device whose kernels are chosen.
        extrapolation: What is extrapolated instead of run.
        sampled_token: As `SimulatedGpu` has it.
        offloads: Whether activations are offloaded to the host.
        processes: Of a job of several GPUs, of which the first is simulated.
        counts: Whether the work of the steps is counted (`recorder.work`).
    """

    def __init__(
        self,
        gpu: Gpu,
        *,
        others: Iterable[Gpu] = (),
        choices: Choices = Choices.CUDA,
        extrapolation: Extrapolation = Extrapolation(),
        sampled_token: Callable[[int], int] | None = None,
        offloads: bool = False,
        processes: int = 1,
        counts: bool = False,
    ) -> None:
        self._gpu, self._chip = gpu, gpu.chip
        self._others = frozenset(other.chip for other in others) - {self._chip}
        self._choices = choices
        self._extrapolation = extrapolation
        self._sampled_token = sampled_token
        self._offloads = offloads
        self._processes = processes
        self.recorder = Recorder()
        self.recorder.work = WorkCounter() if counts else None
        self.recorder.defers_scratch = extrapolation.scratch
        self._workspaces = CublasWorkspaces(self.recorder.trace, self._chip, self._others)
        self.products = Products(self.recorder, self._workspaces, self._chip)
        """Products that libraries compute into float32."""
        self.decoding = DecodeExtrapolator(
            self.recorder,
            every_block=extrapolation.every_block,
            leaves_out=extrapolation.layers_of is not None,
        )
        self._attribution = Attribution(self.recorder, device_type=META.type)
        self._is_ready = False
        self._opening: Phase | None = None
        """The phase that follows loading; it opens every later cycle of phases too."""

    # ---- the device --------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The name of the simulated GPU in torch."""
        return META

    @property
    def use_cpu(self) -> bool:
        """True: transformers must not look for a GPU; `adopt` moves its arguments to the simulated one."""
        return True

    @property
    def whole_config(self) -> Mapping[str, Any] | None:
        """The fields of the model's `config.json` where few of its layers run."""
        return self._extrapolation.layers_of

    @contextmanager
    def host_side(self) -> Iterator[None]:
        """A context in which `meta` tensors do not count as memory."""
        with _disable_current_modes():
            yield

    def attributed(self, category: Category) -> AbstractContextManager[None]:
        """A context in which new memory belongs to `category`."""
        return self.recorder.attributed(category)

    def decode_extrapolator(self) -> DecodeExtrapolator | None:
        """Return the extrapolator of decoding steps; None if they all run."""
        return self.decoding if self._extrapolation.decoding else None

    # ---- the stages of a run -----------------------------------------------------------------------------------------

    def enter(self, phase: Phase) -> None:
        """Begin `phase`. Reference cycles are collected once per cycle of phases, at the same points in every run."""
        if self._opening is None and self._is_ready and phase not in _NEVER_OPENING:
            self._opening = phase
        if phase is self._opening:
            gc.collect()
        self.recorder.enter(phase)

    def left_open(self, part: Callable[..., object], *arguments: Any) -> None:
        """Run a part of the program without a gradient and a result; or record that it runs, where scratch is open."""
        if not self._extrapolation.scratch:
            part(*arguments)
            return
        call = ScratchCall.of(_events_of(part, self._gpu), self._chip, arguments, {"autocast": autocast_dtype()})
        self.recorder.deferred(call)

    def adopt(self, arguments: Any) -> None:
        """Move trl's configuration, and accelerate's state with it, to the simulated GPU."""
        arguments.__dict__["_setup_devices"] = META
        for state in (PartialState._shared_state, AcceleratorState._shared_state):
            if "device" in state:
                state["device"] = META

    def trainer_ready(self, trainer: Any) -> None:
        """Attribute weights, reference and adapters, and prepare to recognise logits, gradients and repeated steps."""
        self._attribution.trainer_ready(trainer)
        self._is_ready = True
        if self._extrapolation.steps:
            trainer.add_callback(RepeatedSteps(self.recorder))

    def trainer_done(self, trainer: Any) -> None:
        """Attribute the optimizer states."""
        self._attribution.trainer_done(trainer)

    @contextmanager
    def running(self) -> Iterator[None]:
        """While active, `meta` is the simulated GPU. Automatic garbage collection is off, so runs are repeatable."""
        choices = cpu_choices(self.recorder) if self._choices is Choices.CPU else self._cuda_choices()
        with ExitStack() as stack:
            stack.enter_context(_symbolic_config.patch(meta_nonzero_assume_all_nonzero=True))
            for part in (host_calls(), choices, attributed_cache(self.recorder)):
                stack.enter_context(part)
            if self._offloads:
                stack.enter_context(offloaded_activations(self.recorder))
            stack.enter_context(self.recorder.modules.watching())
            stack.enter_context(_no_automatic_collection())
            stack.enter_context(_one_thread())
            stack.enter_context(_one_of_several(self._processes))
            stack.enter_context(self._device())
            yield

    @contextmanager
    def computing(self) -> Iterator[None]:
        """While active, operations on `meta` are those of the card; for a part of a program, without a trainer."""
        with self._cuda_choices(), self._device():
            yield

    def _device(self) -> SimulatedGpu:
        if self._choices is Choices.CPU:
            return SimulatedGpu(self.recorder)
        return SimulatedGpu(
            self.recorder,
            chip=self._chip,
            others=self._others,
            scratch={**KERNEL_SCRATCH, **LINEAR_ATTENTION_SCRATCH, **LOSS_SCRATCH, **SORTING_SCRATCH, **WIDER_SCRATCH},
            made_last_first=(*MADE_LAST_FIRST, *MASK_FIRST, *WEIGHT_FIRST),
            wider={**WIDER_KERNELS, **LOSSES},
            sampled_token=self._sampled_token,
            workspaces=self._workspaces,
        )

    @contextmanager
    def _cuda_choices(self) -> Iterator[None]:
        """While active, kernels are chosen as on CUDA."""
        attention = scaled_dot_product_attention(self.recorder, self._chip, self._others)
        with ExitStack() as stack:
            stack.enter_context(emptied_cache(self.recorder))
            stack.enter_context(cuda_optimizers())
            stack.enter_context(scaled_gradients(self.recorder))
            stack.enter_context(
                four_bit_products(
                    self.recorder,
                    self._chip,
                    self._others,
                    workspaces=self._workspaces,
                    run_alone=lambda part: _events_of(part, self._gpu, has_result=True),
                )
            )
            stack.enter_context(triton_path(self.recorder, self.products))
            stack.enter_context(simulated_flash_attention(self.recorder, self._chip, self._others))
            stack.enter_context(autocast_on_meta({"scaled_dot_product_attention": attention, **COMPOSED_FOR_CUDA}))
            yield


@cache
def _events_of(part: Callable[..., object], gpu: Gpu, *, has_result: bool = False) -> Rule:
    """Return the rule of a part of the program that is left open: it runs on a simulated GPU of its own.

    With `has_result` its result, a tensor, is no block of the rule; else it is dropped at once. Kept: calls are alike
    by the identity of their rule.
    """

    def rule(arguments: Any, kwargs: Any, _: Any) -> Sizes:
        within, dtype = Simulation(gpu), kwargs["autocast"]
        with within.computing(), torch.no_grad(), SimulatedAutocast(dtype, enabled=dtype is not None):
            within.recorder.enter(Phase.FORWARD)
            given = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
            for tensor in given:
                within.recorder.made(tensor)
            result = part(*arguments)
            if not has_result:
                result = None
            made = within.recorder.number_of(result.untyped_storage()) if isinstance(result, torch.Tensor) else 0
            trace = within.recorder.finished()
        return _scratch_in(trace, len(given), made)

    return rule


def _scratch_in(trace: Trace, given: int, result: int) -> Sizes:
    """Return what a part frees of its own: not the first `given` blocks, nor its result, nor workspaces that stay.

    Args:
        trace: Of the part.
        given: How many blocks its arguments are.
        result: Number of the block of its result, which parts the events; 0 for none.
    """
    freed = sorted(-event for event in trace.events if event < -given)
    numbers = {block: number for number, block in enumerate(freed, start=1)}
    at = trace.events.index(result) if result else len(trace.events)
    begins, ends = (
        tuple((1 if event > 0 else -1) * numbers[abs(event)] for event in part if abs(event) in numbers)
        for part in (trace.events[:at], trace.events[at:])
    )
    return tuple(trace.sizes_bytes[block - 1] for block in freed), begins, ends


_ENVIRONMENT = {
    "LOCAL_RANK": "0",
    "ACCELERATE_TORCH_DEVICE": META.type,
    # DDP would move inputs to the device of an index, and `meta` has none.
    "ACCELERATE_BYPASS_DEVICE_MAP": "true",
}


@contextmanager
def _one_of_several(processes: int) -> Iterator[None]:
    """While active, this process is the first of so many for accelerate; each has a GPU."""
    if processes == 1:
        yield
        return
    if not dist.is_backend_available(BACKEND):
        dist.Backend.register_backend(BACKEND, of_process, devices=[META.type])
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=processes)
    try:
        with patched([(PartialState, "_prepare_backend", lambda *_: ("nccl", DistributedType.MULTI_GPU))]):
            yield
    finally:
        dist.destroy_process_group()
        for state in (PartialState._shared_state, AcceleratorState._shared_state):
            state.clear()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def _one_thread() -> Iterator[None]:
    """While active, torch computes host values in one thread.

    Thousands of operations on small tensors follow each other. Threads that wait for each other at the end of each one
    take more time than the operations, above all where other processes keep the cores busy: with two threads on two
    busy cores a trial took 2.4 times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_keeps_frozen = False
"""Whether this process froze its imported modules before a run. To ask the garbage collector visits each of them."""


def freeze_imported() -> None:
    """Exempt what is imported from garbage collection, for all runs of this process and of those forked from it."""
    global _keeps_frozen
    gc.freeze()
    _keeps_frozen = True


@contextmanager
def _no_automatic_collection() -> Iterator[None]:
    # Modules of torch and transformers do not have to be searched at every collection of the run. A process that has
    # frozen them, as a warmed one, keeps them frozen: the collection before the next run then searches little.
    global _keeps_frozen
    _keeps_frozen = _keeps_frozen or gc.get_freeze_count() > 0
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        if not _keeps_frozen:
            gc.unfreeze()
        gc.enable()
