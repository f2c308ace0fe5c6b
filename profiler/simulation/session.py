"""A simulated GPU for the length of one trial: every piece switched on together."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from torch.fx.experimental import _config
from torch.utils._python_dispatch import _disable_current_modes

from profiler.domain.gpu import Gpu
from profiler.domain.memory import Category, Phase
from profiler.simulation.cuda.attention import scaled_dot_product_attention
from profiler.simulation.cuda.autocast import autocast_on_meta
from profiler.simulation.cuda.composites import COMPOSED_FOR_CUDA
from profiler.simulation.cuda.emptied_cache import emptied_cache
from profiler.simulation.cuda.flash_attention import simulated_flash_attention
from profiler.simulation.cuda.four_bit import MADE_LAST_FIRST, four_bit_products
from profiler.simulation.cuda.kernel_scratch import KERNEL_SCRATCH
from profiler.simulation.cuda.libraries import CublasWorkspaces
from profiler.simulation.cuda.optimizers import cuda_optimizers
from profiler.simulation.cuda.trl_kernels import triton_path
from profiler.simulation.device.cpu_choices import Choices, cpu_choices
from profiler.simulation.device.host_calls import host_calls
from profiler.simulation.device.simulated_gpu import META, SimulatedGpu
from profiler.simulation.extrapolation.decode_extrapolator import DecodeExtrapolator
from profiler.simulation.tracing.attribution import Attribution
from profiler.simulation.tracing.kv_cache import attributed_cache
from profiler.simulation.tracing.recorder import Recorder

# `patch` is put into the module when it is imported, so torch's types do not know it.
_symbolic_config: Any = _config


class Simulation:
    """The placement and the observer of a trial on a GPU that is not there. One a process."""

    def __init__(self, gpu: Gpu, *, others: Iterable[Gpu] = (), choices: Choices = Choices.CUDA) -> None:
        self._chip = gpu.chip
        # Chips of the same family that the run is to answer for too.
        self._others = frozenset(other.chip for other in others) - {self._chip}
        self._choices = choices
        self.recorder = Recorder()
        self._workspaces = CublasWorkspaces(self.recorder.trace, self._chip, self._others)
        self.decoding = DecodeExtrapolator(self.recorder)
        self._attribution = Attribution(self.recorder, device_type=META.type)

    # ---- the placement that training asks for ------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Torch's name for the simulated GPU."""
        return META

    @property
    def use_cpu(self) -> bool:
        """True: transformers is not to look for a GPU; `adopt` moves its configuration to the simulated one."""
        return True

    @contextmanager
    def host_side(self) -> Iterator[None]:
        """A context in which `meta` tensors are no memory."""
        with _disable_current_modes():
            yield

    def attributed(self, category: Category) -> AbstractContextManager[None]:
        """A context in which new memory belongs to `category`."""
        return self.recorder.attributed(category)

    def decode_extrapolator(self) -> DecodeExtrapolator:
        """What tells decoding steps over."""
        return self.decoding

    # ---- the observer ------------------------------------------------------------------------------------------------

    def enter(self, phase: Phase) -> None:
        """`phase` begins. Reference cycles are collected between steps, at the same points in every run."""
        if phase is Phase.ROLLOUT:
            gc.collect()
        self.recorder.enter(phase)

    # ---- around a run ------------------------------------------------------------------------------------------------

    def adopt(self, arguments: Any) -> None:
        """Move trl's configuration, and accelerate's state with it, to the simulated GPU."""
        arguments.__dict__["_setup_devices"] = META
        for state in (PartialState._shared_state, AcceleratorState._shared_state):
            if "device" in state:
                state["device"] = META

    def trainer_ready(self, trainer: Any) -> None:
        """Say which memory is weights, reference and adapters, and how to recognise logits and gradients."""
        self._attribution.trainer_ready(trainer)

    def trainer_done(self, trainer: Any) -> None:
        """Say which memory is the optimizer's state."""
        self._attribution.trainer_done(trainer)

    @contextmanager
    def running(self) -> Iterator[None]:
        """While active, `meta` is the simulated GPU. Automatic garbage collection is off: runs are repeatable."""
        choices = cpu_choices(self.recorder) if self._choices is Choices.CPU else self._cuda_choices()
        with ExitStack() as stack:
            stack.enter_context(_symbolic_config.patch(meta_nonzero_assume_all_nonzero=True))
            for part in (host_calls(), choices, attributed_cache(self.recorder)):
                stack.enter_context(part)
            stack.enter_context(self.recorder.modules.watching())
            stack.enter_context(_no_automatic_collection())
            stack.enter_context(self._device())
            yield

    def _device(self) -> SimulatedGpu:
        if self._choices is Choices.CPU:
            return SimulatedGpu(self.recorder)
        return SimulatedGpu(
            self.recorder,
            chip=self._chip,
            others=self._others,
            scratch=KERNEL_SCRATCH,
            made_last_first=MADE_LAST_FIRST,
            workspaces=self._workspaces,
        )

    @contextmanager
    def _cuda_choices(self) -> Iterator[None]:
        """While active, kernels are chosen as CUDA chooses them."""
        attention = scaled_dot_product_attention(self.recorder, self._chip, self._others)
        with ExitStack() as stack:
            stack.enter_context(emptied_cache(self.recorder))
            stack.enter_context(cuda_optimizers())
            stack.enter_context(four_bit_products(self.recorder, self._chip, self._others))
            stack.enter_context(triton_path(self.recorder, self._workspaces, self._chip))
            stack.enter_context(simulated_flash_attention(self.recorder, self._chip, self._others))
            stack.enter_context(autocast_on_meta({"scaled_dot_product_attention": attention, **COMPOSED_FOR_CUDA}))
            yield


@contextmanager
def _no_automatic_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    # What was there before (modules of torch and transformers) needs no look at every collection of the run.
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()
