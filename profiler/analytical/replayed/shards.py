"""Requests of DeepSpeed's ZeRO, stage 3: shards of all weights, and the modules that are gathered.

Source: `DeepSpeedZeroOptimizer_Stage3` in DeepSpeed 0.19's `runtime/zero/stage3.py`, `Init` in
`partition_parameters.py`, `DeepSpeedZeRoOffload` in `parameter_offload.py`, and `reduce_scatter_coalesced` in
`runtime/comm/coalesced_collectives.py`.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, fields, replace

from profiler.allocator.model.card_memory import AllocatorStats
from profiler.analytical.formulas.layers.decoder_layer import OUTPUTS
from profiler.analytical.formulas.models.parameters import (
    adapted_projections,
    base_tensors,
    layer_tensors,
    projections,
)
from profiler.analytical.formulas.models.tensor_groups import TensorGroup
from profiler.analytical.formulas.models.trained import BFLOAT16_BYTES, FLOAT32_BYTES, lora_rank, trains_everything
from profiler.analytical.formulas.models.weights import keeps_reference_model
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.optimizers import optimizer_scratch, optimizer_state
from profiler.analytical.replayed.coordinator import Coordinator, Module, Weight
from profiler.analytical.replayed.layers import all_layers
from profiler.analytical.replayed.requests import NO_BLOCKS, Requests, blocks, stages
from profiler.analytical.replayed.zero import Parts
from profiler.analytical.timeline.sharding.zero import NORM_BYTES, SUB_GROUP
from profiler.analytical.timeline.sharding.zero_buckets import BUCKET_BYTES
from profiler.domain.trials.trial import OffloadDevice

_NORM_VALUES = 250_000_000
"""Values whose norm is computed at a time where the host has the gradients (`_constant_buffered_norm2`)."""


@dataclass(eq=False)
class Node:
    """A module and those in it, in the order in which they run."""

    module: Module = field(default_factory=Module)
    inner: "list[Node]" = field(default_factory=list)
    ends: bool = True
    """Whether DeepSpeed sees the end of its backward: not of a module whose inputs are keywords, or need no gradient."""
    is_adapted: bool = False
    """Whether it is a linear layer with an adapter, without which the first module in it runs alone."""


def leaf(weights: Iterable[int], *, is_trained: bool, ends: bool = True) -> Node:
    """Return a module with weights of so many values."""
    return Node(Module([Weight(values, is_trained=is_trained) for values in weights]), ends=ends)


class Model:
    """A model as DeepSpeed has it: its modules, their weights, and what is gathered of them."""

    def __init__(
        self,
        requests: Requests,
        gathers: Requests,
        spec: TrialKeys,
        architecture: DecoderShape,
        *,
        gpus: int,
        is_offloaded: bool,
    ) -> None:
        """Prepare it, with the adapters of the policy if `spec` has any."""
        self._requests = requests
        is_full, table = trains_everything(spec), int(architecture.vocab_size) * int(architecture.hidden_size)
        self.embedding = leaf([table], is_trained=is_full, ends=False)
        self.positions = Node()
        self.layers = [_layer(spec, kind) for kind in all_layers(architecture)]
        self.norm = leaf([int(architecture.hidden_size)], is_trained=is_full)
        self.head = leaf([int(architecture.scores) * int(architecture.hidden_size)], is_trained=True)
        if not architecture.scores:
            self.head = leaf([table], is_trained=is_full)
            if architecture.tie_word_embeddings:
                self.head = Node(Module(self.embedding.module.weights))
        self.outer = [Node(ends=False) for _ in range(2 if is_full else 3)]
        """The model itself, with its decoder as the last of them."""
        nodes = [self.embedding, *self.layers, self.norm, self.head]
        nodes.append(leaf(_idle(spec, architecture, nodes), is_trained=False))
        self.weights = list(dict.fromkeys(weight for node in nodes for weight in weights_of(node)))
        self.coordinator = Coordinator(gathers, self.weights, gpus=gpus, is_offloaded=is_offloaded)
        self.done, self.adapted, self._by_engine = 0, True, False
        """Layers that have run in this forward, whether it has adapters, and whether DeepSpeed's engine runs it."""

    # ---- a forward ---------------------------------------------------------------------------------------------------

    def begin(self, *, adapted: bool, by_engine: bool) -> None:
        """Begin a forward, up to the embedding."""
        self.adapted, self._by_engine = adapted, by_engine
        self.coordinator.begin()
        for node in self.outer:
            self.coordinator.fetch(node.module)
        self.forward(self.embedding)
        self.forward(self.positions)
        self.done = 0

    def run_layers(self, until: int) -> None:
        """Run the layers before `until` that have not run yet."""
        for node in self.layers[self.done : until]:
            self.forward(node)
        self.done = max(until, self.done)

    def end_layers(self) -> None:
        """Run what is left of the decoder."""
        self.run_layers(len(self.layers))
        self.forward(self.norm)
        self.coordinator.release(self.outer[-1].module)

    def end(self) -> None:
        """End a forward."""
        for node in reversed(self.outer[:-1]):
            self.coordinator.release(node.module)

    def forward(self, node: Node, *, recomputes: bool = False) -> None:
        """Run a module."""
        self.coordinator.fetch(node.module, recomputes=recomputes)
        if node.is_adapted and self.adapted and self._by_engine:
            self.find(node, node.inner[2].module.weights[0])
        for each in node.inner if self.adapted or not node.is_adapted else node.inner[:1]:
            self.forward(each, recomputes=recomputes)
        self.coordinator.release(node.module)

    def find(self, node: Node, weight: Weight) -> None:
        """Gather a weight that a module reads without running its module; it is one of its own from then on."""
        self.coordinator.gather_all(self._requests, [weight])
        if weight not in node.module.weights:
            node.module.weights.append(weight)

    # ---- a backward --------------------------------------------------------------------------------------------------

    def begin_backward(self, *, runs_head: bool) -> None:
        """Begin a backward, up to the last layer."""
        for node in self.outer[:-1]:
            self.backward(node)
        if runs_head:
            self.backward(self.head)
        self.backward(self.outer[-1])
        self.backward(self.norm)

    def backward_of_layer(self, number: int, *, checkpoint: str) -> None:
        """Run the backward of a layer; a checkpoint recomputes it whole before, or from its first backward on."""
        node = self.layers[number]
        if checkpoint == "whole":
            self.forward(node, recomputes=True)
        self._recomputed = node if checkpoint == "until saved" else None
        self.backward(node)

    _recomputed: Node | None = None

    def backward(self, node: Node) -> None:
        """Run the backward of a module."""
        self.coordinator.fetch(node.module, backward=True)
        if not node.inner and self._recomputed is not None:
            recomputed, self._recomputed = self._recomputed, None
            self._recompute(recomputed, ends=True)
        for each in reversed(node.inner):
            self.backward(each)
        if node.ends:
            self.coordinator.release(node.module, backward=True)

    def _recompute(self, node: Node, *, ends: bool) -> None:
        """Run a forward whose tensors are saved; it ends within the last module."""
        self.coordinator.fetch(node.module, recomputes=True)
        self.coordinator.save(node.module)
        for each in node.inner:
            self._recompute(each, ends=ends and each is node.inner[-1])
        if not ends:
            self.coordinator.release(node.module)


def _all(node: Node) -> list[Node]:
    return [node, *(each for inner in node.inner for each in _all(inner))]


def weights_of(node: Node) -> list[Weight]:
    """Return the weights of a module and of those in it."""
    return [weight for each in _all(node) for weight in each.module.weights]


def _idle(spec: TrialKeys, architecture: DecoderShape, nodes: Iterable[Node]) -> list[int]:
    """Return the values of the weights that no module here has, as those of towers."""
    found = Counter(int(group.elements) for group in base_tensors(architecture) for _ in range(int(group.copies)))
    found.subtract(weight.values for weight in dict.fromkeys(weight for node in nodes for weight in weights_of(node)))
    return list(found.elements())


def _layer(spec: TrialKeys, kind: DecoderShape) -> Node:
    """Return the modules of a decoder layer: a norm, attention, the other norms, and the MLP."""
    is_full, targets = trains_everything(spec), spec.lora_target_modules or ()
    adapted = set() if is_full else {part.name for part in adapted_projections(kind, targets)}
    attention, mlp, is_after = list[Node](), list[Node](), False
    for part in projections(kind):
        sizes = [int(part.weights), *([int(part.out_features)] if part.has_bias else [])]
        node = leaf(sizes, is_trained=is_full)
        if part.name in adapted:
            rank = int(lora_rank(spec))
            pair = [leaf([rank * int(side)], is_trained=True) for side in (part.in_features, part.out_features)]
            node = Node(inner=[node, Node(), *pair], is_adapted=True)
        group = mlp if is_after else attention
        group.append(node)
        is_after = is_after or part.name in OUTPUTS
        if part.name in ("gate_proj", "gate_up_proj"):
            group.append(Node())
    every = [(group.is_outer, int(group.elements)) for group in layer_tensors(kind) for _ in range(int(group.copies))]
    rest = Counter(size for is_norm, size in every if not is_norm)
    rest.subtract(weight.values for node in (*attention, *mlp) for weight in weights_of(node.inner[0] if node.inner else node))
    if experts := list(rest.elements()):
        mlp.append(leaf(experts, is_trained=is_full))
    first, *others = [leaf([size], is_trained=is_full) for is_norm, size in every if is_norm]
    return Node(inner=[first, Node(inner=attention, ends=False), *others, Node(inner=mlp)])


class Shards(Parts):
    """ZeRO of stage 3, on the first GPU.

    Gathered weights are on a stream of their own, those of a reference on another one, and reductions on a third; the
    allocator gives a stream only blocks that it had before. Streams have counters of their own here, which are added.
    """

    def __init__(self, requests: Requests, spec: TrialKeys, architecture: DecoderShape, *, shared: TrialKeys) -> None:
        """Prepare them; `spec` is itemised and as one GPU computes it, `shared` the trial of all GPUs."""
        super().__init__(requests, spec, architecture, shared=shared)
        self.parts_gradients, self._gpus = True, int(shared.num_processes)
        self._gathers, self._of_reference, self._reductions = Requests(), Requests(), Requests()
        self._offloads_weights = shared.offload_param_device is OffloadDevice.CPU
        keys = {"gpus": self._gpus, "is_offloaded": self._offloads_weights}
        self._policy = Model(requests, self._gathers, spec, architecture, **keys)
        self._reference = Model(requests, self._of_reference, spec, architecture, **keys) if keeps_reference_model(shared) else None
        self.gathers_reference = spec.recipe.facts.has_rollout
        self.most_micro_batches = 3
        self.scored_rows = min(int(shared.steps_per_generation), 2) if spec.recipe.facts.has_rollout else 1
        self._runs_head = spec.logprobs.makes_all_logits or bool(architecture.scores)
        self._checkpoint = ("until saved" if trains_everything(spec) else "whole") if spec.gradient_checkpointing else ""
        self._model, self._generates = self._policy, False
        self._by_engine, self._lent = True, list[Weight]()
        self._reserved_bytes = [0]

    # ---- taking the model over ---------------------------------------------------------------------------------------

    def load(self) -> None:
        """Make weight by weight, of which a shard stays; a tied LM head is made too, and adapters are whole."""
        requests = self._requests
        for name, model in (("policy", self._policy), ("reference", self._reference)):
            is_full = trains_everything(self._spec)
            for number, weight in enumerate(model.weights if model else ()):
                if weight.is_trained and not is_full and not self._is_head_of_scores(weight):
                    requests.set(("whole", name, number), {weight.values * BFLOAT16_BYTES: 1})
                else:
                    self._shard((name, number), weight)
            if model and self._architecture.tie_word_embeddings and not self._architecture.scores:
                self._shard("head", model.embedding.module.weights[0])
                requests.drop(("shard", "head"))

    def _is_head_of_scores(self, weight: Weight) -> bool:
        return bool(self._architecture.scores) and weight in self._policy.head.module.weights

    def _shard(self, name: Hashable, weight: Weight) -> None:
        requests = self._requests
        requests.set("whole", {weight.values * BFLOAT16_BYTES: 1})
        if not self._offloads_weights:
            requests.set(("shard", name), {self._part(weight) * BFLOAT16_BYTES: 1})
        requests.drop("whole")

    def _part(self, weight: Weight) -> int:
        return -(-weight.values // self._gpus)

    def share(self) -> None:
        """Put the shards of trained weights into one tensor, and make float32 copies, bucket and gradients."""
        requests = self._requests
        trained = [(number, weight) for number, weight in enumerate(self._policy.weights) if weight.is_trained]
        for number, weight in trained:
            if requests.has(("whole", "policy", number)):
                if not self._offloads_weights:
                    requests.set(("shard", ("policy", number)), {self._part(weight) * BFLOAT16_BYTES: 1})
                requests.drop(("whole", "policy", number))
        part = sum(self._part(weight) for _, weight in trained)
        if not self._offloads_weights:
            requests.drop(*(("shard", ("policy", number)) for number, _ in trained))
            self.empty_cache()
            requests.set("flat", {part * BFLOAT16_BYTES: 1})
        groups = self._sub_groups()
        for number, group in enumerate(groups):
            wide = {sum(group) * FLOAT32_BYTES: 1}
            if not (self._is_offloaded and self._offloads_weights):
                requests.set("converted", wide)
            if not self._is_offloaded:
                requests.set(("master", number), wide)
            requests.drop("converted")
        if not self._is_offloaded:
            requests.pass_through("work", [{max(map(sum, groups)) * FLOAT32_BYTES: 1}, NO_BLOCKS])
        requests.set("bucket", {BUCKET_BYTES: 1})
        if not self._is_offloaded:
            requests.set("kept gradients", {part * BFLOAT16_BYTES: 1})
        for _, weight in trained:
            self._policy.coordinator.gather_all(requests, [weight])
            self._policy.coordinator.drop([weight])

    def _sub_groups(self) -> list[list[int]]:
        """Return this GPU's values of each trained weight, group by group (`_create_fp16_sub_groups`)."""
        found = list[list[int]]()
        for group in self._groups:
            parts = [-(-tensor.values // self._gpus) for tensor in group.tensors]
            found.append([])
            for part in parts:
                if sum(found[-1]) >= SUB_GROUP:
                    found.append([])
                found[-1].append(part)
        return found

    # ---- forwards ----------------------------------------------------------------------------------------------------

    def begin_rollout(self) -> None:
        """Gather all weights."""
        self._generates = True
        self._policy.coordinator.gather_all(self._requests, self._policy.weights)

    def end_rollout(self) -> None:
        """Free them; trl adds the hooks anew, which begins another order of modules."""
        self._generates = False
        for weight in self._policy.weights:
            weight.users.clear()
        self._policy.coordinator.drop(self._policy.weights)
        self._policy.coordinator.forget()

    def begin(self, *, adapted: bool = True, trains: bool = False) -> None:
        """Begin a forward of the policy, or of a reference of its own."""
        is_policy = adapted or self._reference is None
        self._model = self._policy if is_policy else self._reference
        # trl scores completions with the model itself, and not by its engine.
        self._by_engine = trains or not is_policy or not self._spec.recipe.facts.has_rollout
        if not self._generates:
            self._model.begin(adapted=adapted, by_engine=self._by_engine)

    def enter(self, number: int) -> None:
        """Gather a layer, and those before it that are not replayed."""
        if not self._generates:
            self._model.run_layers(number + 1)

    def enter_head(self) -> None:
        """Gather norm and LM head; the weight of a fused head, which does not run, is one of the model's then."""
        if self._generates:
            return
        model = self._model
        model.end_layers()
        if self._runs_head:
            model.forward(model.head)
            return
        weight = model.head.module.weights[0]
        if self._by_engine:
            model.find(model.outer[-2], weight)
        elif weight.is_absent:
            model.coordinator.gather_all(self._requests, [weight])
            self._lent = [weight]

    def end(self) -> None:
        """End a forward."""
        if not self._generates:
            self._model.coordinator.drop(self._lent)
            self._lent = []
            self._model.end()

    # ---- a backward --------------------------------------------------------------------------------------------------

    def enter_backward(self, number: int) -> None:
        """Gather a layer again."""
        model = self._policy
        if number == self._last_layer:
            model.begin_backward(runs_head=self._runs_head)
        model.backward_of_layer(number, checkpoint=self._checkpoint)

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
            self._reductions.drop("part")
        self._reductions.drop("copy")
        self._requests.drop("too large")

    def _end_backward(self) -> None:
        """Gather the embedding again, reduce what is left, and free what no module has freed."""
        if trains_everything(self._spec) or self._spec.gradient_checkpointing:
            self._policy.backward(self._policy.embedding)
        self._reduce_bucket()
        self._policy.coordinator.end_backward()

    # ---- a step ------------------------------------------------------------------------------------------------------

    def update(self) -> None:
        """Free what is gathered, compute the norm, run the optimizer group by group, and gather small weights."""
        requests, spec, block = self._requests, self._spec, block_of(self._spec)
        coordinator = self._policy.coordinator
        coordinator.reset()
        for number, group in enumerate(() if self._is_offloaded else self._sub_groups()):
            for part in group:
                requests.pass_through("copy", [{part * NORM_BYTES: 1}, NO_BLOCKS])
        for number, group in enumerate(() if self._is_offloaded else self._sub_groups()):
            part = sum(group)
            requests.set("copy", {part * BFLOAT16_BYTES: 1} if len(group) > 1 else NO_BLOCKS)
            requests.set("gradient of a part", {part * FLOAT32_BYTES: 1})
            requests.drop("copy")
            flat, matrix = (TensorGroup(shape=shape, copies=1) for shape in ((part,), (1, part)))
            requests.set(("state", number), blocks(optimizer_state(spec.optim, [flat], FLOAT32_BYTES, block).size))
            flat = flat if number == len(self._sub_groups()) - 1 else matrix
            scratch = optimizer_scratch(spec.optim, [flat], FLOAT32_BYTES, block, weight_decay=spec.weight_decay)
            requests.pass_through("work", [*stages(scratch.size), NO_BLOCKS])
            requests.drop("gradient of a part")
        coordinator.gather_all(requests, [weight for weight in coordinator.weights if weight.persists])

    # ---- counters ----------------------------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        """Give back those of all streams. Until then their segments only grow in number, so that they are at once."""
        self._reserved_bytes.append(self._summed(str(self._spec.alloc_conf)).reserved_bytes)
        for each in self._streams:
            each.empty_cache()

    @property
    def _streams(self) -> tuple[Requests, ...]:
        return self._requests, self._gathers, self._of_reference, self._reductions

    def counters(self, alloc_conf: str) -> AllocatorStats:
        """Return the sums of the counters of all streams; reserved memory is the largest sum at one instant."""
        found = self._summed(alloc_conf)
        return replace(found, peak_reserved_bytes=max(*self._reserved_bytes, found.reserved_bytes))

    def _summed(self, alloc_conf: str) -> AllocatorStats:
        parts = [each.counters(alloc_conf) for each in self._streams]
        names = (each.name for each in fields(AllocatorStats))
        return AllocatorStats(**{name: sum(getattr(part, name) for part in parts) for name in names})
