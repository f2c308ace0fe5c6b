"""Requests of DeepSpeed's ZeRO: flat weights, buckets of gradients, the part of each GPU, and gathered modules.

`sharing_of` says how a GPU of a trial has its model.
"""

from collections.abc import Hashable, Sequence

from profiler.analytical.formulas.models.tensor_groups import TensorGroup
from profiler.analytical.formulas.models.trained import BFLOAT16_BYTES, FLOAT32_BYTES, trains_everything
from profiler.analytical.formulas.models.weights import keeps_reference_model
from profiler.analytical.formulas.sizes.quantities import Blocks
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.optimizers import optimizer_scratch, optimizer_state
from profiler.analytical.replayed.flat_tensors import EMBEDDING, OTHERS, Modules, Tensor, copied, flat_groups
from profiler.analytical.replayed.gathering import Coordinator, Streams, Weight
from profiler.analytical.replayed.layers import all_layers
from profiler.analytical.replayed.requests import NO_BLOCKS, Requests, blocks, counted, stages
from profiler.analytical.replayed.sharing import Alone, Replicas, Units
from profiler.analytical.timeline.sharding.zero import NORM_BYTES, SUB_GROUP
from profiler.analytical.timeline.sharding.zero_buckets import BUCKET, BUCKET_BYTES
from profiler.domain.trials.trial import ZERO_OF_WEIGHTS, DistributedType, OffloadDevice

_NORM_VALUES = 250_000_000
"""Values whose norm is computed at a time where the host has the gradients (`_constant_buffered_norm2`)."""


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
        requests = self._requests
        for tensor in (tensor for group in self._groups for tensor in group.own):
            requests.pass_through("copy", [{tensor.own_values * NORM_BYTES: 1}, NO_BLOCKS])
        for number, group in enumerate(self._groups):
            # All gradients that are kept are in one tensor.
            last = ("kept gradients",) if group is self._groups[-1] else ()
            self._update_group(number, group.part_values, last, is_copied=len(group.own) > 1, is_vector=number > 0)

    def _update_group(
        self, number: int, part: int, gone: Sequence[Hashable] = (), *, is_copied: bool, is_vector: bool
    ) -> None:
        """Flatten the gradients of a group's part, after which some go, and run the optimizer."""
        requests, spec, block = self._requests, self._spec, block_of(self._spec)
        requests.set("copy", {part * BFLOAT16_BYTES: 1} if is_copied else NO_BLOCKS)
        requests.set("gradient of a part", {part * FLOAT32_BYTES: 1})
        requests.drop("copy", *gone)
        flat, matrix = (TensorGroup(shape=shape, copies=1) for shape in ((part,), (1, part)))
        requests.set(("state", number), blocks(optimizer_state(spec.optim, [flat], FLOAT32_BYTES, block).size))
        flat = flat if is_vector else matrix
        scratch = optimizer_scratch(spec.optim, [flat], FLOAT32_BYTES, block, weight_decay=spec.weight_decay)
        requests.pass_through("work", [*stages(scratch.size), NO_BLOCKS])
        requests.drop("gradient of a part")


class Shards(Parts):
    """ZeRO of stage 3, on the first GPU: shards of all weights, and the modules that are gathered.

    What is gathered of the policy and of a reference, and what is reduced, is on streams of their own.

    Source: `DeepSpeedZeroOptimizer_Stage3` in DeepSpeed 0.19's `runtime/zero/stage3.py`, `Init` in
    `partition_parameters.py`, and `reduce_scatter_coalesced` in `runtime/comm/coalesced_collectives.py`.
    """

    most_micro_batches = 3

    def __init__(self, requests: Requests, spec: TrialKeys, architecture: DecoderShape, *, shared: TrialKeys) -> None:
        """Prepare them; `spec` is itemised and as one GPU computes it, `shared` the trial of all GPUs."""
        super().__init__(requests, spec, architecture, shared=shared)
        has_rollout, self._gpus = spec.recipe.facts.has_rollout, int(shared.num_processes)
        self.parts_gradients, self.gathers_reference = True, has_rollout
        self.scored_batches = min(int(shared.steps_per_generation), 2) if has_rollout else 1
        self._offloads_weights = shared.offload_param_device is OffloadDevice.CPU
        self._runs_head = spec.logprobs.makes_all_logits or bool(architecture.scores)
        gathers, self._reductions = [Requests() for _ in range(1 + bool(keeps_reference_model(shared)))], Requests()
        self._streams = Streams(requests, *gathers, self._reductions)
        self._models = [Modules(spec, architecture) for _ in gathers]
        """The policy, and a reference if there is one."""
        self._gathered = [
            Coordinator(each, model.weights, gpus=self._gpus, is_offloaded=self._offloads_weights)
            for each, model in zip(gathers, self._models, strict=True)
        ]
        self._running, self._adapted, self._by_engine, self._generates = 0, True, True, False
        """The model of a forward, whether it has adapters, and whether DeepSpeed's engine or a rollout runs it."""
        self._done, self._lent = 0, list[Weight]()
        """Layers that have run in a forward, and the weight of a head that is gathered for it alone."""

    def load(self) -> None:
        """Make weight by weight, of which a shard stays; a tied LM head is made too, and adapters are whole."""
        is_tied = self._architecture.tie_word_embeddings and not self._architecture.scores
        for place, model in enumerate(self._models):
            heads = model.embedding.weights if is_tied else []
            for number, weight in enumerate((*model.weights, *heads)):
                whole = {weight.values * BFLOAT16_BYTES: 1}
                if weight.is_trained and not trains_everything(self._spec) and weight not in model.head.weights:
                    self._requests.set(("whole", number), whole)
                    continue
                self._requests.set("whole", whole)
                self._requests.set(("shard", place, number), self._shard_of(weight))
                self._requests.drop("whole")
            self._requests.drop(("shard", place, len(model.weights)))

    def _shard_of(self, weight: Weight) -> Blocks:
        return NO_BLOCKS if self._offloads_weights else {self._gathered[0].part(weight) * BFLOAT16_BYTES: 1}

    def share(self) -> None:
        """Put the shards of trained weights into one tensor, and make float32 copies, bucket and gradients.

        For the hooks of its gradient each of these weights is gathered once.
        """
        requests, policy = self._requests, self._gathered[0]
        trained = [(number, weight) for number, weight in enumerate(policy.weights) if weight.is_trained]
        for number, weight in trained:
            requests.set(("shard", 0, number), self._shard_of(weight))
            requests.drop(("whole", number))
        part = sum(policy.part(weight) for _, weight in trained)
        if not self._offloads_weights:
            requests.drop(*(("shard", 0, number) for number, _ in trained))
            self.empty_cache()
            requests.set("flat", {part * BFLOAT16_BYTES: 1})
        groups = self._sub_groups()
        for number, group in enumerate(groups):
            wide = {sum(group) * FLOAT32_BYTES: 1}
            requests.set("converted", NO_BLOCKS if self._is_offloaded and self._offloads_weights else wide)
            requests.set(("master", number), NO_BLOCKS if self._is_offloaded else wide)
            requests.drop("converted")
        if not self._is_offloaded:
            requests.pass_through("work", [{max(map(sum, groups)) * FLOAT32_BYTES: 1}, NO_BLOCKS])
        requests.set("bucket", {BUCKET_BYTES: 1})
        requests.set("kept gradients", NO_BLOCKS if self._is_offloaded else {part * BFLOAT16_BYTES: 1})
        for _, weight in trained:
            policy.gather_all(requests, [weight])
            policy.drop([weight])

    def _sub_groups(self) -> list[list[int]]:
        """Return this GPU's values of each trained weight, group by group (`_create_fp16_sub_groups`)."""
        found = list[list[int]]()
        for group in self._groups:
            found.append([])
            for tensor in group.tensors:
                if sum(found[-1]) >= SUB_GROUP:
                    found.append([])
                found[-1].append(-(-tensor.values // self._gpus))
        return found

    def generate(self, *, begins: bool) -> None:
        """Gather all weights for a rollout, or free them."""
        self._generates, policy = begins, self._gathered[0]
        if begins:
            policy.gather_all(self._requests, policy.weights)
        else:
            policy.drop_all()

    def begin(self, *, adapted: bool = True, trains: bool = False) -> None:
        """Begin a forward, up to the embedding. trl scores completions by the policy itself, not by its engine."""
        self._running, self._adapted, self._done = 0 if adapted else len(self._models) - 1, adapted, 0
        self._by_engine = trains or bool(self._running) or not self._spec.recipe.facts.has_rollout
        if self._generates:
            return
        model, gathered = self._models[self._running], self._gathered[self._running]
        gathered.begin()
        for module in model.outer:
            gathered.fetch(module)
        gathered.forward(model.embedding)
        gathered.forward(model.positions)

    def enter(self, number: int) -> None:
        """Gather a layer, and those before it that are not replayed."""
        if self._generates:
            return
        read = self._requests if self._by_engine else None
        for layer in self._models[self._running].layers[self._done : number + 1]:
            self._gathered[self._running].forward(layer, adapted=self._adapted, read=read)
        self._done = max(self._done, number + 1)

    def enter_head(self) -> None:
        """Gather norm and LM head; a fused head does not run."""
        if self._generates:
            return
        self.enter(self._last_layer)
        model, gathered = self._models[self._running], self._gathered[self._running]
        gathered.forward(model.norm)
        gathered.release(model.outer[-1])
        weight = model.head.weights[0]
        if self._runs_head:
            gathered.forward(model.head)
        elif self._by_engine:
            gathered.find(self._requests, model.outer[-2], weight)
        elif weight.is_absent:
            gathered.gather_all(self._requests, [weight])
            self._lent = [weight]

    def end(self) -> None:
        """End a forward."""
        if not self._generates:
            self._gathered[self._running].drop(self._lent)
            self._lent = []
            for module in reversed(self._models[self._running].outer[:-1]):
                self._gathered[self._running].release(module)

    def enter_backward(self, number: int) -> None:
        """Gather a layer; a checkpoint runs it before, or where all is trained from its first backward on."""
        model, gathered = self._models[0], self._gathered[0]
        if number == self._last_layer:
            head = [model.head] if self._runs_head else []
            for module in (*model.outer[:-1], *head, model.outer[-1], model.norm):
                gathered.backward(module)
        layer, is_whole = model.layers[number], not trains_everything(self._spec) and self.gathers_reference
        if self._spec.gradient_checkpointing and is_whole:
            gathered.run_again(layer)
        gathered.backward(layer, layer if self._spec.gradient_checkpointing and not is_whole else None)

    def _reduce_bucket(self) -> None:
        """Reduce what the bucket has, next to a copy of it unless it is one tensor of equal parts."""
        tensors, self._filled = self._filled, []
        parts = [-(-tensor.values // self._gpus) for tensor in tensors]
        is_copied = len(tensors) > 1 or any(tensor.values % self._gpus for tensor in tensors)
        self._reductions.set("copy", {sum(parts) * self._gpus * BFLOAT16_BYTES: 1} if is_copied else NO_BLOCKS)
        for part in parts if self._is_offloaded else ():
            self._reductions.set("part", {part * BFLOAT16_BYTES: 1})
            if self._reduces:
                wide = ({min(part, _NORM_VALUES) * NORM_BYTES: 1}, {part * FLOAT32_BYTES: 1}, NO_BLOCKS)
                self._reductions.pass_through("wide", wide)
        self._reductions.drop("part", "copy")
        self._requests.drop("too large")

    def _end_backward(self) -> None:
        """Gather the embedding again, reduce what is left, and free what no module has freed."""
        if trains_everything(self._spec) or self._spec.gradient_checkpointing:
            self._gathered[0].backward(self._models[0].embedding)
        self._reduce_bucket()
        self._gathered[0].end_backward()

    def update(self) -> None:
        """Free what is gathered, compute the norm, run the optimizer group by group, and gather small weights."""
        policy, groups = self._gathered[0], [] if self._is_offloaded else self._sub_groups()
        policy.reset()
        for part in (part for group in groups for part in group):
            self._requests.pass_through("copy", [{part * NORM_BYTES: 1}, NO_BLOCKS])
        for number, group in enumerate(groups):
            self._update_group(number, sum(group), is_copied=len(group) > 1, is_vector=0 < number == len(groups) - 1)
        policy.gather_all(self._requests, [weight for weight in policy.weights if weight.persists])


def sharing_of(requests: Requests, spec: TrialKeys, architecture: DecoderShape, *, shared: TrialKeys) -> Alone:
    """Return how a GPU has its model; `spec` is itemised and as one GPU computes it, `shared` the trial of all GPUs."""
    if spec.distributed_type is DistributedType.DEEPSPEED:
        kind = Shards if spec.zero_stage == ZERO_OF_WEIGHTS else Parts
        return kind(requests, spec, architecture, shared=shared)
    if spec.num_processes == 1:
        return Alone(requests, spec, architecture)
    if spec.distributed_type is DistributedType.FSDP:
        return Units(requests, spec, architecture, shared=shared)
    return Replicas(requests, spec, architecture)
