"""Memory of the host: a process with its libraries, a checkpoint that is read, and what DeepSpeed offloads.

Weights that are read in the checkpoint's own type are pages of its file, which all processes of a node share and which
the kernel takes back: they count nothing. Seen with transformers 5.23 and safetensors 0.8, and held by
`tests/analytical/test_host_memory.py`: 592 MiB of weights in bfloat16 took 3 MiB of a process until they were written
to, and twice as much after they were read as float32.

Not counted: pages of files, NCCL's buffers in shared memory, copies in workers of a data loader, and a data set.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from profiler.analytical.formulas.models.parameters import parameter_count
from profiler.analytical.formulas.models.tensor_groups import TensorGroup
from profiler.analytical.formulas.models.trained import BFLOAT16_BYTES, FLOAT32_BYTES, element_bytes
from profiler.analytical.formulas.sizes.quantities import NOTHING, Count, Term, Terms, smaller
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.formulas.vllm_memory import engine_sleeps, vllm_memory
from profiler.domain.memory import Category
from profiler.domain.text import count_text
from profiler.domain.trials.trial import Dtype, Tuning

LEAST_PROCESS_BYTES = 1_802_903_552
"""Smallest peak of resident memory of 60 trials on one H200, whose models were made on the card: the libraries.

Source: `host_peak_rss_bytes` in the tables of `results/reference/h200`, held by a test.
"""
MOST_PROCESS_BYTES = 3_213_967_360
"""The largest of the same. Trials that generate token by token had 2.3 to 3.2 GB, the others 1.8 to 2.0 GB."""

SUB_GROUP = 1_000_000_000
"""Weights of one buffer of ZeRO-3 (`sub_group_size`)."""


def process() -> Term:
    """Return the smallest process that trains, without anything of its model."""
    return Term(LEAST_PROCESS_BYTES, lambda: "Python with torch, CUDA and trl, on an H200")


def more_of_process() -> Term:
    """Return what another process had more than the smallest."""
    return Term(MOST_PROCESS_BYTES - LEAST_PROCESS_BYTES, lambda: "Python and libraries, at most on an H200")


def read_weights(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return the weights that one process reads in another type than bfloat16, that of most checkpoints; else 0.

    One GPU alone reads each tensor to the card, and so does a process that quantises to 4 bits. By hand, qwen2.5-0.5b
    in float32 by DDP: 494,032,768 x 4 B = 1,976,131,072 B in each process.

    Source: `from_pretrained` and `_load_pretrained_model` of transformers 5.23; trl 1.16 sets `device_map` to None for
    several processes and to "auto" for one (`create_model_from_path`); `update_device_map` of the quantizer.
    """
    if spec.num_processes == 1 or spec.tuning is Tuning.QLORA or spec.dtype is Dtype.BFLOAT16:
        return NOTHING
    element, count = element_bytes(spec).weight, parameter_count(architecture)
    return Term(element * count, lambda: f"{count_text(count)} x {element} B, read from bfloat16")


def pinned_bytes(size: Count) -> int:
    """Return the bytes of a pinned tensor: torch rounds each up to a power of two.

    By hand, 3 x 2**30 + 1 B: 2**32 B. Settings of `PYTORCH_ALLOC_CONF` with `pinned_max_round_threshold_mb` round less.

    Source: `CachingHostAllocatorImpl::allocate` in torch's `aten/src/ATen/core/CachingHostAllocator.h`
    (`llvm::PowerOf2Ceil`).
    """
    return 1 << (int(size) - 1).bit_length() if size > 0 else 0


def sleeping_engine(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return vLLM's weights on the host while it sleeps at level 1; trl since 0.25 uses level 2, which keeps nothing.

    By hand, qwen2.5-0.5b on one GPU: 494,032,768 x 2 B = 988,065,536 B.

    Source: `CuMemAllocator.sleep` in vLLM's `device_allocator/cumem.py`; `self.llm.sleep(level=1)` in trl 0.23 and
    0.24, `level=2` in all later releases up to 1.16.
    """
    size = vllm_memory(spec, architecture).weights if spec.use_vllm else 0
    return Term(size, lambda: "vLLM's weights, asleep, trl 0.23 and 0.24").only_if(engine_sleeps(spec))


@dataclass(frozen=True, kw_only=True)
class HostSide:
    """What one process has on the host by its sharding, beyond libraries."""

    read: Term
    """Weights that it has read, before its GPU has them."""
    saved: Term
    """What the first process of a job has more while it saves weights."""
    saved_at_most: Term = NOTHING
    """What it may have too: states."""
    offloaded: Terms = field(default_factory=dict)
    """What each process keeps while it trains."""
    pinning: Term = NOTHING
    """What pinned memory adds at most."""


@dataclass(frozen=True, kw_only=True)
class OffloadedZero:
    """What DeepSpeed's ZeRO keeps on the host in one process.

    DeepSpeed 0.19 itself had these bytes, to the byte, on a CPU: `tests/analytical/test_host_memory.py`.

    Source: DeepSpeed 0.19, `runtime/zero/stage_1_and_2.py`, `stage3.py` and `partition_parameters.py`.
    """

    stage: int
    own: Count
    """Trained parameters that this process updates."""
    frozen: Count
    """Frozen parameters that this process keeps."""
    kept: Count
    """Trained parameters whose gradients this process keeps up to stage 2: whole tensors."""
    accumulates: bool
    """Whether a step has several micro-batches."""
    trained: Sequence[TensorGroup]
    offloads_states: bool
    offloads_weights: bool

    @property
    def _largest(self) -> int:
        return max((int(group.elements) for group in self.trained if group.copies), default=0)

    @property
    def _accumulated(self) -> Count:
        """Only stage 2 accumulates on the host, tensor by tensor (`accumulated_grads_in_cpu`)."""
        return self.kept if self.stage == 2 and self.accumulates else 0

    @property
    def terms(self) -> Terms:
        """Weights, gradients and states."""
        return {
            Category.WEIGHTS: self.weights,
            Category.GRADIENTS: self.gradients,
            Category.OPTIMIZER_STATE: self.states,
        }

    @property
    def states(self) -> Term:
        """Master weights and both states of DeepSpeed's AdamW, in float32.

        Stages 1 and 2 also have a bfloat16 buffer of the updated weights (`param_buffer_of_bit16_for_cpu_offload`).
        By hand, 1,000 parameters: 4,000 + 8,000 B, and 2,000 B of the buffer.
        """
        if not self.offloads_states:
            return NOTHING
        each = 3 * FLOAT32_BYTES + (BFLOAT16_BYTES if self.stage != 3 else 0)
        return Term(each * self.own, lambda: f"{count_text(self.own)} x {each} B, master weights and states")

    @property
    def gradients(self) -> Term:
        """Gradients in float32, and those that are accumulated in bfloat16.

        Stage 3 always has a buffer of these (`grad_partitions_flat_buffer`); stages 1 and 2 have one for the largest
        tensor (`temp_grad_buffer_for_cpu_offload`), and stage 2 accumulates.
        """
        if not self.offloads_states:
            return NOTHING
        narrow = self.own if self.stage == 3 else self._accumulated + self._largest
        size = FLOAT32_BYTES * self.own + BFLOAT16_BYTES * narrow
        return Term(size, lambda: f"{count_text(self.own)} x {FLOAT32_BYTES} B, {count_text(narrow)} x 2 B")

    @property
    def weights(self) -> Term:
        """Weights in bfloat16: trained ones in one buffer, which is always pinned, and frozen ones.

        Source: `_create_param_groups_fp16_flat_cpu_memory`, and `Init._partition_param`.
        """
        if not self.offloads_weights:
            return NOTHING
        size = pinned_bytes(BFLOAT16_BYTES * self.own) + BFLOAT16_BYTES * self.frozen
        return Term(size, lambda: f"{count_text(self.own + self.frozen)} x {BFLOAT16_BYTES} B, trained ones pinned")

    @property
    def rounding(self) -> Term:
        """What `pin_memory=true` adds, as far as `pinned_bytes` rounds up.

        Stage 3 pins gradients, stages 1 and 2 also master weights and the buffer of updated weights. The tensors that
        are not decayed, in a buffer of their own, are left out: biases and norms.
        """
        if not self.offloads_states:
            return NOTHING
        if self.stage == 3:
            group = smaller(self.own, SUB_GROUP)
            groups, rest = (self.own // group, self.own % group) if group else (0, 0)
            sizes = [BFLOAT16_BYTES * self.own, *[FLOAT32_BYTES * group] * int(groups), FLOAT32_BYTES * rest]
            more = sum(pinned_bytes(size) - size for size in sizes)
        else:
            flat = [FLOAT32_BYTES * self.own, FLOAT32_BYTES * self.own, BFLOAT16_BYTES * self.own]
            flat.append(BFLOAT16_BYTES * self._largest)
            more = sum(pinned_bytes(size) - size for size in flat) + self._rounding_of_tensors()
        return Term(more, lambda: "rounding of buffers, with pin_memory=true")

    def _rounding_of_tensors(self) -> int:
        """Return what rounding adds to the gradients of single tensors, of which this process has a part."""
        every = sum(group.total for group in self.trained)
        if not self._accumulated or not every:
            return 0
        more = sum(
            int(group.copies) * (pinned_bytes(BFLOAT16_BYTES * group.elements) - BFLOAT16_BYTES * int(group.elements))
            for group in self.trained
        )
        return more * int(self.own) // int(every)
