"""Requests of DeepSpeed's ZeRO, stages 1 and 2: flat weights, buckets of gradients, and the part of each GPU.

`sharing_of` says how a GPU of a trial has its model.
"""

from collections.abc import Hashable, Sequence

from profiler.analytical.formulas.models.tensor_groups import TensorGroup
from profiler.analytical.formulas.models.trained import BFLOAT16_BYTES, FLOAT32_BYTES, trains_everything
from profiler.analytical.formulas.sizes.quantities import Blocks
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.optimizers import optimizer_scratch, optimizer_state
from profiler.analytical.replayed.flat_tensors import EMBEDDING, OTHERS, Tensor, copied, flat_groups
from profiler.analytical.replayed.layers import all_layers
from profiler.analytical.replayed.requests import NO_BLOCKS, Requests, blocks, counted, stages
from profiler.analytical.replayed.sharing import Alone, Replicas, Units
from profiler.analytical.timeline.sharding.zero import NORM_BYTES
from profiler.analytical.timeline.sharding.zero_buckets import BUCKET, BUCKET_BYTES
from profiler.domain.trials.trial import DistributedType, OffloadDevice


class Parts(Alone):
    """ZeRO of stages 1 and 2, on the first GPU: flat weights, its part in float32, and the bucket of a backward.

    All is on one stream, because DeepSpeed overlaps communication in stage 3 only. Matrices and vectors are two groups
    of parameters. Stage 2 moves each gradient to the bucket as it is made; stage 1 all of them, in the order of the
    groups, after the last backward of a step.

    Source: `DeepSpeedZeroOptimizer` in DeepSpeed 0.19's `runtime/zero/stage_1_and_2.py`, `overlap_comm_valid` in
    `config.py`, and `timeline/sharding/zero.py`, which counts the largest of it.
    """

    is_whole_first = True

    def __init__(self, requests: Requests, spec: TrialKeys, architecture: DecoderShape, *, shared: TrialKeys) -> None:
        """Prepare them; `spec` is itemised and as one GPU computes it, `shared` the trial of all GPUs."""
        super().__init__(requests, spec, architecture)
        self.parts_gradients = shared.zero_stage == 2
        self._is_offloaded = shared.offload_optimizer_device is OffloadDevice.CPU
        self._groups = flat_groups(spec, architecture, int(shared.num_processes))
        self._kept_bytes = BFLOAT16_BYTES * sum(tensor.values for group in self._groups for tensor in group.own)
        self._filled: list[Tensor] = []
        self._reduces, self._last_layer = True, len(all_layers(architecture)) - 1

    # ---- taking the model over ---------------------------------------------------------------------------------------

    def share(self) -> None:
        """Flatten the trained weights group by group, and copy this GPU's part to float32.

        The gradients of the part are made once before the first step.
        """
        requests = self._requests
        for number, group in enumerate(self._groups):
            requests.empty_cache()
            requests.set(("flat", number), {group.values * BFLOAT16_BYTES: 1})
            self._drop_trained()
            requests.set("part", {group.part_values * BFLOAT16_BYTES: 1})
            if not self._is_offloaded:
                requests.set(("master", number), {group.part_values * FLOAT32_BYTES: 1})
            requests.drop("part")
        if self._is_offloaded:
            largest = max(tensor.values for group in self._groups for tensor in group.tensors)
            requests.set("offloaded gradient", {largest * BFLOAT16_BYTES: 1})
            return
        for number, group in enumerate(self._groups):
            requests.set(("gradient of a part", number), {group.part_values * FLOAT32_BYTES: 1})
        requests.drop(*(("gradient of a part", number) for number in range(len(self._groups))))

    def _drop_trained(self) -> None:
        if trains_everything(self._spec):
            self._requests.drop(*(("policy", place) for place in (EMBEDDING, *range(self._last_layer + 1), "rest")))
        else:
            self._requests.drop("wide adapters", "adapters")

    # ---- a backward --------------------------------------------------------------------------------------------------

    def begin_pass(self, *, reduces: bool) -> None:
        """Begin a micro-batch."""
        self._reduces = reduces

    def keep_adapters(self, gradients: Blocks) -> None:
        """Keep the gradients of adapters until the GPUs exchange them."""
        if not self.parts_gradients and not self._reduces:
            super().keep_adapters(gradients)

    def reduce(self, weights: Hashable) -> None:
        """Move the gradients to the bucket, and after those of the embedding end the backward."""
        requests, is_last = self._requests, weights == EMBEDDING
        tensors = [tensor for group in self._groups for tensor in group.places[weights]]
        if tensors or is_last:
            requests.set("bucket", {BUCKET_BYTES: 1})
        if not self.parts_gradients:
            if is_last:
                self._add_tied(tensors)
            if is_last and self._reduces:
                self._reduce_all()
                self._end_backward()
            return
        if weights == self._last_layer:
            tensors += [tensor for group in self._groups for tensor in group.places[OTHERS]]
        for tensor in reversed(tensors):
            requests.set("gradient", {tensor.values * BFLOAT16_BYTES: 1})
            if is_last:
                self._add_tied(tensors)
            self._fill(tensor, "gradient")
            requests.drop("gradient")
        if is_last:
            self._end_backward()

    def _add_tied(self, tables: Sequence[Tensor]) -> None:
        """Add the gradients of an embedding and a tied head: in place, unless the head ran as a module.

        Then the gradient of the head is a view, and the sum a third tensor (`InputBuffer::accumulate` in torch).
        """
        requests = self._requests
        if requests.has("gradient of a tied head") and not self._spec.logprobs.has_fused_head:
            requests.set("sum", counted(table.values * BFLOAT16_BYTES for table in tables))
        requests.drop("gradient of a tied head", "sum")

    def _fill(self, tensor: Tensor, gradient: Hashable) -> None:
        """Move a gradient to the bucket, which is reduced first if it is full; one that is larger is reduced alone."""
        if sum(each.values for each in self._filled) + tensor.values > BUCKET:
            self._reduce_bucket()
        self._filled.append(tensor)
        if tensor.values > BUCKET:
            self._requests.rename(gradient, "too large")

    def _reduce_all(self) -> None:
        """Move all gradients to buckets, group by group."""
        requests = self._requests
        if not trains_everything(self._spec):
            total = sum(tensor.values for group in self._groups for tensor in group.tensors)
            requests.set(("gradients", "adapters"), blocks(total * BFLOAT16_BYTES))
        for group in self._groups:
            for key, tensors in group.places.items():
                for tensor in tensors:
                    self._fill(tensor, ("gradients", key))
                requests.drop(("gradients", key))
        requests.drop(("gradients", "adapters"))

    def _reduce_bucket(self) -> None:
        """Reduce what the bucket has, and keep the gradients of this GPU's part, on the host where states are."""
        requests, tensors = self._requests, self._filled
        self._filled = []
        for values in copied(tensors):
            requests.pass_through("copy", [{values * BFLOAT16_BYTES: 1}, NO_BLOCKS])
        for tensor in tensors:
            if tensor.is_own and not self._is_offloaded:
                requests.set("new kept gradients", {self._kept_bytes: 1})
            elif tensor.is_own and self._reduces:
                copies = ({tensor.own_values * size: 1} for size in (NORM_BYTES, FLOAT32_BYTES))
                requests.pass_through("copy", [*copies, NO_BLOCKS])
        requests.drop("too large")

    def _end_backward(self) -> None:
        """Reduce what is left, let go of the bucket, and add what is kept to that of earlier backwards."""
        requests = self._requests
        self._reduce_bucket()
        requests.drop("bucket")
        if requests.has("kept gradients"):
            requests.drop("new kept gradients")
        requests.rename("new kept gradients", "kept gradients")

    # ---- a step ------------------------------------------------------------------------------------------------------

    def update(self) -> None:
        """Compute the norm in float64, flatten the gradients group by group, and run the optimizer in float32."""
        if self._is_offloaded:
            return
        requests, spec, block = self._requests, self._spec, block_of(self._spec)
        for tensor in (tensor for group in self._groups for tensor in group.own):
            requests.pass_through("copy", [{tensor.own_values * NORM_BYTES: 1}, NO_BLOCKS])
        for number, group in enumerate(self._groups):
            part = group.part_values
            requests.set("copy", {part * BFLOAT16_BYTES: 1} if len(group.own) > 1 else NO_BLOCKS)
            requests.set("gradient of a part", {part * FLOAT32_BYTES: 1})
            requests.drop("copy")
            if group is self._groups[-1]:
                # All gradients that are kept are in one tensor.
                requests.drop("kept gradients")
            flat, matrix = (TensorGroup(shape=shape, copies=1) for shape in ((part,), (1, part)))
            requests.set(("state", number), blocks(optimizer_state(spec.optim, [flat], FLOAT32_BYTES, block).size))
            flat = flat if number else matrix
            scratch = optimizer_scratch(spec.optim, [flat], FLOAT32_BYTES, block, weight_decay=spec.weight_decay)
            requests.pass_through("work", [*stages(scratch.size), NO_BLOCKS])
            requests.drop("gradient of a part")


def sharing_of(requests: Requests, spec: TrialKeys, architecture: DecoderShape, *, shared: TrialKeys) -> Alone:
    """Return how a GPU has its model; `spec` is itemised and as one GPU computes it, `shared` the trial of all GPUs."""
    if spec.distributed_type is DistributedType.DEEPSPEED:
        return Parts(requests, spec, architecture, shared=shared)
    if spec.num_processes == 1:
        return Alone(requests, spec, architecture)
    if spec.distributed_type is DistributedType.FSDP:
        return Units(requests, spec, architecture, shared=shared)
    return Replicas(requests, spec, architecture)
