"""How verl's workers share a model: by FSDP, or by Megatron with its distributed optimizer.

Counted in the source of torch's FSDP, Megatron's distributed optimizer and verl's workers; no figure was compared with
a run. NCCL's memory (1 to 20 GB were reported) and the CUDA context are not included.
"""

from dataclasses import dataclass

from profiler.analytical.formulas.models.parameters import (
    expert_weights,
    is_mixture,
    layer_parameter_count,
    parameter_count,
)
from profiler.analytical.formulas.models.trained import BFLOAT16_BYTES, FLOAT32_BYTES
from profiler.analytical.formulas.sizes.quantities import NOTHING, Term, Terms, whole_units
from profiler.analytical.formulas.sizes.trial_keys import layer_kinds
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.sharding.sharding import Sharding
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.memory import Category, Phase
from profiler.domain.text import count_text
from profiler.domain.verl import Strategy, TrainedModel, VerlJob

_ADAM_STATES = 2


@dataclass(frozen=True, kw_only=True)
class VerlSharding(Sharding):
    """How the GPUs of a job share one of its models. This one is of FSDP.

    `fsdp_size=1` is a whole copy on each GPU, as with DDP. ZeRO-2 shards gradients as ZeRO-3 does.
    """

    job: VerlJob
    architecture: Architecture
    model: TrainedModel
    values: int
    """Values of the model."""
    trained: int
    """Those that are trained; 0 of a reference."""

    @property
    def weights(self) -> Term:
        """The weights that a GPU keeps. By hand, 7 x 10^9 in float32 over 8: 3.5 x 10^9 B.

        Source: `ActorRolloutRefWorker._build_model_optimizer` in verl: float32 for what is trained, bfloat16 for a
        reference.
        """
        return _divided(self.values, self.job.fsdp_size, self.model.weight_bytes)

    @property
    def gradients(self) -> Term:
        """Gradients that have been reduced, in the type of the weights.

        Source: FSDP's `FlatParamHandle.prepare_gradient_for_optim` casts reduced gradients to the type of the
        parameter.
        """
        return _divided(self.trained, self.job.fsdp_size, self.model.weight_bytes)

    @property
    def states(self) -> Term:
        """AdamW's two states, in the type of the weights. By hand, 7 x 10^9 in float32 over 8: 7 x 10^9 B."""
        return _divided(self.trained, self.job.fsdp_size, _ADAM_STATES * self.model.weight_bytes)

    @property
    def step_scratch(self) -> Term:
        """The denominators of AdamW's step, of all shards at once. By hand, 7 x 10^9 in float32 over 8: 3.5 x 10^9 B.

        Source: `_multi_tensor_adamw` in `torch/optim/adam.py` (`foreach`, the default for shards on a GPU).
        """
        if self.model.offload_policy:
            return NOTHING
        return _divided(self.trained, self.job.fsdp_size, self.model.weight_bytes)

    def kept(self, alone: Instant) -> Terms:  # noqa: ARG002  the same at every instant
        """Return weights and states; which of them wait on the host, the phase decides."""
        return {Category.WEIGHTS: self.weights, Category.OPTIMIZER_STATE: self.states}

    def gathered(self, alone: Instant) -> Term:
        """Return the weights that FSDP has gathered at one time, in bfloat16.

        ZeRO-3: the parameters outside layers (embedding, LM head, final norm), with the current decoder layer and the
        next in an update. Without gradient FSDP 1 gathers a layer when it begins and frees it when it ends, so that
        one is there, and none at the head; FSDP 2 keeps the buffer of its last gathering as well. ZeRO-2 in training:
        all weights. None is left when those outside layers are reduced.

        By hand, qwen2.5-0.5b, ZeRO-3, in an update: (2 x 14,912,384 + 136,135,552) values x 2 B = 331,920,640 B; while
        FSDP 1 scores 302,095,872 B in a layer, and 272,271,104 B at the head.

        Source: `_post_backward_hook` in `torch/distributed/fsdp/_runtime_utils.py` frees a unit before it is reduced,
        `_post_forward_reshard` after its forward, but for the root; `forward_prefetch` is false in verl. FSDP 2:
        `FSDPParamGroup.wait_for_unshard`.
        """
        if alone.phase is Phase.OPTIMIZER or alone.name is InstantName.BACKWARD_END:
            return NOTHING
        is_last = alone.name is InstantName.BACKWARD_TIED
        if alone.phase is Phase.BACKWARD and not self.job.reshard_after_forward and not is_last:
            return Term(int(parameter_count(self.architecture)) * BFLOAT16_BYTES, lambda: "all weights, in bfloat16")
        layers, outside = self._layers_gathered(alone), outside_parameters(self.architecture)
        whole = (layers * self._layer + outside) * BFLOAT16_BYTES
        if alone.name is InstantName.GATHERING:
            # A whole copy on each GPU is gathered by making it.
            copied = self.copied_bytes(outside) + (whole if self.job.fsdp_size > 1 else 0)
            return Term(copied, lambda: "all outside, in bfloat16, and its shards from the host")
        return Term(whole, lambda: f"{layers or 'no'} layer{'' if layers == 1 else 's'} and all outside, in bfloat16")

    def _layers_gathered(self, alone: Instant) -> int:
        """Return how many decoder layers FSDP has gathered."""
        if alone.name is InstantName.BACKWARD_TIED:
            return 0
        if alone.phase is not Phase.SCORE:
            return 2
        computes = alone.name is InstantName.SCORE_LAYER
        return computes + (self.job.strategy is Strategy.FSDP2)

    def copied_bytes(self, values: int) -> int:
        """Return what FSDP 1 copies from the host before it gathers `values` weights of a reference; 0 of other models.

        Their shard, and it in bfloat16, unless that is its type. It does so before each forward, although it keeps what
        is outside of layers gathered. By hand, 1,000 values in float32 over 2: 500 x (4 + 2) = 3,000 B.

        Source: `FlatParamHandle.pre_unshard` and `_use_low_precision_shard` in `torch/distributed/fsdp/_flat_param.py`.
        """
        element = 0 if self.trained else self.job.workers.copied_reference_bytes
        if not element:
            return 0
        casts = BFLOAT16_BYTES if element != BFLOAT16_BYTES else 0
        return int(_divided(values, self.job.fsdp_size, element + casts).size)

    def reduced(self, alone: Instant) -> Term:
        """Return the gradients of a backward, with those of earlier micro-batches, or of a step; 0 outside of them.

        At the head, its new gradient; in the last layer, whose gradients are reduced, that of the head waits; in the
        first layer are the reduced gradients of the others; and at the end the gradients of the parameters outside
        layers are reduced, before which autograd adds those of a tied embedding and of its LM head to a third. A shard
        that arrives is added to that of earlier micro-batches (`_accumulate_sharded_grad`), and until then both are
        there; with `offload_policy` it arrives on the GPU, too. By hand, tied, V = 100, H = 10: 3 x 2,000 B are added.
        """
        if alone.phase is Phase.OPTIMIZER:
            return NOTHING if self.model.offload_policy else self.gradients
        if alone.phase is not Phase.BACKWARD:
            return NOTHING
        reduced = 0 if self.model.offload_policy else self.gradients.size
        earlier = reduced if self.model.accumulates else 0
        outside = outside_parameters(self.architecture)
        waiting = self.unreduced_bytes(outside, reducing=False)
        layer = self.unreduced_bytes(self._layer, reducing=True)
        added = 3 * self.unreduced_bytes(self.architecture.vocab_size * self.architecture.hidden_size, reducing=False)
        sizes = {
            InstantName.BACKWARD_HEAD: earlier + waiting,
            InstantName.BACKWARD_LAYER: earlier + waiting + layer + self._shard_bytes(self._layer),
            InstantName.BACKWARD_FIRST_LAYER: reduced + waiting + layer + self._arriving_bytes(self._layer),
            InstantName.BACKWARD_TIED: max(earlier, reduced - self._shard_bytes(outside)) + added,
            InstantName.BACKWARD_END: reduced
            + self.unreduced_bytes(outside, reducing=True)
            + self._arriving_bytes(outside),
        }
        return Term(sizes[alone.name], lambda: "shards, and whole ones of a layer or outside")

    def unreduced_bytes(self, values: int, *, reducing: bool) -> int:
        """Return the bytes of unsharded gradients of `values` weights before FSDP reduces them.

        They are bfloat16, and also float32 while they are reduced. 0 for LoRA, where they are small. By hand, 1,000
        values: 2,000 B, and 6,000 B while they are reduced.

        Source: FSDP's `reduce_dtype`, float32 in verl.
        """
        return 0 if self.job.lora_rank else values * (BFLOAT16_BYTES + (FLOAT32_BYTES if reducing else 0))

    def _shard_bytes(self, values: int) -> int:
        """Return the bytes of one GPU's part of the reduced gradients of `values` weights; 0 for LoRA."""
        size = 0 if self.job.lora_rank else _divided(values, self.job.fsdp_size, self.model.weight_bytes).size
        return int(size)

    def _arriving_bytes(self, values: int) -> int:
        """Return the bytes of such a part while another one is there already, or none is kept; 0 of whole copies."""
        is_apart = self.model.accumulates or self.model.offload_policy
        return self._shard_bytes(values) if is_apart and self.job.fsdp_size > 1 else 0

    @property
    def _layer(self) -> int:
        return int(layer_parameter_count(self.architecture))


@dataclass(frozen=True, kw_only=True)
class Megatron(VerlSharding):
    """Megatron: layers are split by tensor and pipeline parallelism, states over all GPUs; nothing is gathered."""

    @property
    def weights(self) -> Term:
        """The bfloat16 weights of computation. The float32 masters count as optimizer state."""
        return self._shared(self.values, BFLOAT16_BYTES)

    @property
    def gradients(self) -> Term:
        """The buffers of all gradients (`grad_reduce_in_fp32`), of which experts have their own."""
        return self._shared(self.trained, FLOAT32_BYTES)

    @property
    def states(self) -> Term:
        """AdamW's two states and the masters, in float32. By hand, 7 x 10^9 on 8 GPUs: x 12 / 8 = 10.5 x 10^9 B."""
        return _divided(self.trained, self.job.n_gpus, (_ADAM_STATES + 1) * FLOAT32_BYTES)

    @property
    def step_scratch(self) -> Term:
        """Return 0: the fused Adam of Apex or Transformer Engine, which Megatron takes, has no temporaries."""
        return NOTHING

    def gathered(self, alone: Instant) -> Term:  # noqa: ARG002  the same at every instant
        """Return 0: Megatron gathers no weights."""
        return NOTHING

    def reduced(self, alone: Instant) -> Term:
        """Return the buffer of all gradients, which is there from the start."""
        is_on_host = self.model.offload_policy and alone.phase in (Phase.BACKWARD, Phase.OPTIMIZER)
        return NOTHING if is_on_host else self.gradients

    def _shared(self, values: int, element: int) -> Term:
        """Return what a GPU has of `values` of the model: experts are shared by expert parallelism as well.

        By hand, 7 x 10^9 values, of them 6 x 10^9 of experts, tensor 2, pipeline 2, expert 4 of tensor size 1, in
        bfloat16: 10^9 / 4 + 6 x 10^9 / 8 = 10^9 values, 2 x 10^9 B.

        Source: Megatron-Core's `DistributedDataParallel`, whose parameters with `allreduce` false are the experts'.
        """
        pipeline, workers = self.job.pipeline_model_parallel_size, self.job.workers
        of_experts = self._experts if values == self.values else 0
        parts = self.job.tensor_model_parallel_size * pipeline
        dense = _divided(values - of_experts, parts, element)
        if not of_experts:
            return dense
        shared = workers.expert_model_parallel_size * workers.expert_tensor_parallel_size * pipeline
        return dense.plus(_divided(of_experts, shared, element))

    @property
    def _experts(self) -> int:
        """Values of the experts of all layers."""
        if not is_mixture(self.architecture):
            return 0
        return 3 * int(expert_weights(self.architecture)) * self.architecture.num_hidden_layers


def outside_parameters(architecture: Architecture) -> int:
    """Return the number of parameters outside decoder layers: embedding, LM head, final norm.

    By hand, qwen2.5-0.5b: 136,135,552.
    """
    in_layers = sum(kind.num_hidden_layers * layer_parameter_count(kind) for kind in layer_kinds(architecture))
    return int(parameter_count(architecture) - in_layers)


SHARDINGS: dict[Strategy, type[VerlSharding]] = {
    Strategy.FSDP: VerlSharding,
    Strategy.FSDP2: VerlSharding,
    Strategy.MEGATRON: Megatron,
}


def _divided(count: int, gpus: int, element: int) -> Term:
    """Return `count` values over GPUs, rounded up."""
    shared = f" / {gpus} GPUs" if gpus > 1 else ""
    return Term(int(whole_units(count, gpus)) * element, lambda: f"{count_text(count)} x {element} B{shared}")
