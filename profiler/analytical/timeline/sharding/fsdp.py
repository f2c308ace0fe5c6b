"""FSDP 2 by accelerate: shards of weights, gradients and optimizer states, and what is gathered for a layer.

Each decoder layer is a unit, and everything else (embedding, final norm, LM head) is the unit of the root. accelerate
keeps trained parameters in float32 and computes in bfloat16, so a shard of a trained parameter has 4 bytes per value
and a gathered one 2. Gradients of all micro-batches but the last are accumulated whole, because accelerate does not
reduce them before (`no_sync`). By hand, qwen2.5-0.5b full on 4 GPUs: 494,032,768 x 4 B / 4 = 494,032,768 B of shards.

Source: `fsdp2_prepare_model` in accelerate's `utils/fsdp_utils.py`; `_fsdp_param_group.py`, `_fsdp_collectives.py` and
`_fsdp_state.py` in torch's `distributed/fsdp/_fully_shard`.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from profiler.analytical.formulas.host import HostSide
from profiler.analytical.formulas.models.parameters import layer_kinds, layer_parameter_count, parameter_count
from profiler.analytical.formulas.models.tensor_groups import TensorGroup, count_of
from profiler.analytical.formulas.models.trained import (
    BFLOAT16_BYTES,
    FLOAT32_BYTES,
    all_gradients,
    element_bytes,
    trained_tensors,
    trains_everything,
)
from profiler.analytical.formulas.sizes.quantities import (
    NOTHING,
    Count,
    Term,
    Terms,
    chosen,
    larger,
    where,
    whole_units,
)
from profiler.analytical.optimizers import optimizer_scratch, optimizer_state, state_text
from profiler.analytical.timeline.instants import Instant, InstantName, workspace_in_step
from profiler.analytical.timeline.sharding.sharding import TrialSharding
from profiler.domain.memory import Category, Phase
from profiler.domain.text import count_text

_SCORING = (InstantName.SCORE_LAYER, InstantName.SCORE_HEAD)
_AFTER_THE_LAYERS = (InstantName.REWARD, InstantName.FORWARD_HEAD)
_OTHER_LAYERS_ARE_FREED = (InstantName.BACKWARD_FIRST_LAYER, InstantName.BACKWARD_END)


@dataclass(frozen=True, kw_only=True)
class Units:
    """Parameters of the root, and of decoder layers with their adapters."""

    root: Count
    layer: Count
    """The largest one."""
    layers: Count
    """All of them."""


@dataclass(frozen=True)
class Fsdp(TrialSharding):
    """FSDP 2."""

    @cached_property
    def units(self) -> Units:
        """The parameters of each unit.

        By hand, qwen2.5-0.5b: the root has 151,936 x 896 + 896 = 136,135,552, and a layer 14,912,384.
        """
        layers, kinds = self.architecture.num_hidden_layers, layer_kinds(self.architecture)
        counts = [layer_parameter_count(kind) for kind in kinds]
        in_layers = sum(kind.num_hidden_layers * count for kind, count in zip(kinds, counts, strict=True))
        adapters = self._adapters // layers
        return Units(
            root=self._parameters - in_layers,
            layer=larger(0, *counts) + adapters,
            layers=in_layers + layers * adapters,
        )

    @cached_property
    def tensors(self) -> tuple[TensorGroup, ...]:
        """The shards that the optimizer of this GPU updates: each parameter is split along its first dimension."""
        gpus = self.spec.num_processes
        return tuple(
            replace(group, shape=(whole_units(group.shape[0], gpus), *group.shape[1:])) for group in self._trained
        )

    @cached_property
    def weights(self) -> Term:
        """Shards of the base model: float32 where it is trained, else as loaded."""
        element = FLOAT32_BYTES if self._trains_everything else element_bytes(self.spec).weight
        return self._sharded(self._parameters, element, "parameters x")

    @cached_property
    def reference(self) -> Term:
        """Shards of a reference model, as loaded; 0 without one, as with adapters."""
        shards = self._sharded(self._parameters, element_bytes(self.spec).weight, "x")
        has_one = self.spec.beta != 0.0 if self._trains_everything else False
        return shards.only_if(has_one)

    @cached_property
    def adapters(self) -> Term:
        """Shards of the adapters."""
        return self._sharded(self._adapters, FLOAT32_BYTES, "x")

    @cached_property
    def whole_model_bytes(self) -> Count:
        """The model before it is sharded: on each GPU, with trained parameters in float32."""
        element = FLOAT32_BYTES if self._trains_everything else element_bytes(self.spec).weight
        return self._parameters * element + self._adapters * FLOAT32_BYTES

    def host(self) -> HostSide:
        """Return what each process reads, trained weights in float32, and what the first one gathers to save.

        accelerate widens trained weights before it shards them. Every process reads the checkpoint, also with
        `fsdp_cpu_ram_efficient_loading`: transformers 5.23 then leaves out buffers alone
        (`_move_missing_keys_from_meta_to_device`), as processes of both ranks showed. With transformers 4 only the
        first process of a node has values. States are gathered with `fsdp_state_dict_type: FULL_STATE_DICT`.

        By hand, qwen2.5-0.5b full: each reads 494,032,768 x 4 B = 1,976,131,072 B.

        Source: `fsdp2_prepare_model` and `save_fsdp_optimizer` in accelerate's `utils/fsdp_utils.py`, and its
        `Accelerator.get_state_dict`.
        """
        count, states = self._parameters, optimizer_state(self.spec.optim, self._trained, FLOAT32_BYTES).size
        found = replace(
            super().host(),
            saved=Term(self.whole_model_bytes, lambda: f"{count_text(count)} parameters, gathered"),
            saved_at_most=Term(states, lambda: "states of all GPUs, with FULL_STATE_DICT"),
        )
        if not self._trains_everything:
            return found
        return replace(found, read=Term(FLOAT32_BYTES * count, lambda: f"{count_text(count)} x {FLOAT32_BYTES} B"))

    @cached_property
    def gradient_shards(self) -> Term:
        """Shards of the gradients, in float32."""
        size = FLOAT32_BYTES * count_of(self.tensors)
        return Term(size, lambda: f"{self._count_of_trained()} x {FLOAT32_BYTES} B / {self.spec.num_processes} GPUs")

    @cached_property
    def whole_gradient_bytes(self) -> Count:
        """The gradients that are accumulated before they are reduced: whole, in bfloat16."""
        return BFLOAT16_BYTES * self._values_of_trained

    def gathered_bytes(self, *, layers_stay: bool) -> Count:
        """Return the bytes of gathered weights while a layer runs: root, layer, and the buffer of the next gather.

        Args:
            layers_stay: Whether earlier layers are still gathered, as without `fsdp_reshard_after_forward`.
        """
        layers = self.units.layers if layers_stay else self.units.layer
        return BFLOAT16_BYTES * (self.units.root + layers + self.units.layer)

    def kept(self, alone: Instant) -> Terms:
        """Return the shards; of states where a GPU alone has some."""
        has_states = alone.terms.get(Category.OPTIMIZER_STATE, NOTHING).size != 0
        return {
            Category.WEIGHTS: self.weights,
            Category.ADAPTERS: self.adapters,
            Category.REFERENCE: self.reference,
            Category.OPTIMIZER_STATE: self._states.only_if(has_states),
        }

    def as_alone(self, alone: Instant) -> Terms:
        """Return the scratch of the optimizer's step, which updates shards."""
        if alone.name is not InstantName.STEP:
            return {}
        scratch = optimizer_scratch(self.spec.optim, self.tensors, FLOAT32_BYTES)
        return {Category.WORKSPACE: workspace_in_step(self.workspace, scratch)}

    def at_load(self, alone: Instant) -> tuple[Instant, ...]:
        """Return loading as on one GPU, and then sharding: all shards exist, and the whole model still does."""
        if alone.name is not InstantName.LOADED:
            return (self.shared(alone),)
        terms = {
            Category.WEIGHTS: self.weights,
            Category.ADAPTERS: self.adapters,
            Category.REFERENCE: self.reference,
            Category.COMMUNICATION: Term(self.whole_model_bytes, lambda: "the whole model, until it is sharded"),
        }
        return (alone, Instant(phase=Phase.LOAD, name=InstantName.SHARDING, terms=terms))

    def gathered(self, alone: Instant) -> Term:
        """Return gathered weights. Those of the root stay from the first forward until the next backward."""
        name = alone.name
        if name is InstantName.STEP:
            return NOTHING
        stay = not self.spec.fsdp_reshard_after_forward and name not in _OTHER_LAYERS_ARE_FREED
        whole, unit = "all layers" if stay else "2 layers", self.units
        if name in _AFTER_THE_LAYERS:
            # After the forward of the last layer there is no next one to gather.
            layers = unit.layers if stay else 0
            return self._gathered(BFLOAT16_BYTES * (unit.root + layers), whole if stay else "")
        found = self._gathered(self.gathered_bytes(layers_stay=stay), whole)
        if name in _SCORING and self._trains_everything:
            return chosen(self.spec.beta != 0.0, self._gathered_reference(), found)
        return found

    def _gathered(self, size: Count, layers: str) -> Term:
        more = f", {layers}" if layers else ""
        return Term(size, lambda: f"gathered: {count_text(self.units.root)} x {BFLOAT16_BYTES} B of the root{more}")

    def _gathered_reference(self) -> Term:
        """Return the root and the reference model: trl makes it one unit, so it is there whole, and its buffer too.

        By hand, the reference of qwen2.5-0.5b: 2 x 494,032,768 x 2 B = 1,976,131,072 B.

        Source: `prepare_fsdp` in trl's `models/utils.py`, which calls `fully_shard` once.
        """
        size = BFLOAT16_BYTES * self.units.root + 2 * BFLOAT16_BYTES * self._parameters
        return Term(size, lambda: "the gathered reference, twice, and the root")

    def reduced(self, alone: Instant) -> Term:
        """Return gradients: shards where they have been reduced, whole ones before."""
        if alone.name is InstantName.STEP:
            return self.gradient_shards
        size, every = alone.terms.get(Category.GRADIENTS, NOTHING).size, self._gradients_alone_bytes
        accumulated = where(size >= every, size - every + self.whole_gradient_bytes, size)
        return chosen(
            self.spec.gradient_accumulation_steps > 1,
            Term(accumulated, lambda: f"{self._count_of_trained()} x {BFLOAT16_BYTES} B, whole until the last one"),
            Term(
                self._reduced_at_once(alone.name, accumulated), lambda: "shards, and whole ones of a layer or the root"
            ),
        )

    def _reduced_at_once(self, name: InstantName, accumulated: Count) -> Count:
        """Return gradients where the only backward of a step reduces them unit by unit.

        In the first layer: shards of the others, its own whole with the input of its reduction. At the end: shards of
        all layers, the whole gradient of the root with the input of its reduction, and the last layer's.
        """
        layer = (self.whole_gradient_bytes - self._root_gradient) // self.architecture.num_hidden_layers
        shards = layer * self.architecture.num_hidden_layers * (FLOAT32_BYTES // BFLOAT16_BYTES)
        if self.architecture.first_layers and self._trains_everything:
            layer = BFLOAT16_BYTES * self.units.layer
        shards = shards // self.spec.num_processes
        match name:
            case InstantName.BACKWARD_NORM | InstantName.BACKWARD_LAYER:
                return self._waiting
            case InstantName.BACKWARD_FIRST_LAYER:
                return shards + 2 * layer + self._waiting
            case InstantName.BACKWARD_END:
                return shards + 2 * self._root_gradient + layer
        return accumulated

    @cached_property
    def _gradients_alone_bytes(self) -> Count:
        return all_gradients(self.spec, self.architecture).size

    @property
    def _waiting(self) -> Count:
        """The gradient of the LM head, tied or not, until the backward of the root ends."""
        embedding = BFLOAT16_BYTES * self.architecture.vocab_size * self.architecture.hidden_size
        return embedding if self._trains_everything else 0

    @property
    def _root_gradient(self) -> Count:
        return BFLOAT16_BYTES * self.units.root if self._trains_everything else 0

    def _sharded(self, count: Count, element: Count, times: str) -> Term:
        """Return `count` values over all GPUs."""
        gpus = self.spec.num_processes
        return Term(
            whole_units(count * element, gpus), lambda: f"{count_text(count)} {times} {element} B / {gpus} GPUs"
        )

    @cached_property
    def _states(self) -> Term:
        def words() -> str:
            whole = state_text(self.spec.optim, self._values_of_trained, FLOAT32_BYTES)
            return f"({whole}) / {self.spec.num_processes} GPUs"

        return Term(optimizer_state(self.spec.optim, self.tensors, FLOAT32_BYTES).size, words)

    @property
    def _trains_everything(self) -> bool:
        return trains_everything(self.spec)

    @cached_property
    def _trained(self) -> tuple[TensorGroup, ...]:
        return trained_tensors(self.spec, self.architecture)

    @cached_property
    def _values_of_trained(self) -> Count:
        return count_of(self._trained)

    def _count_of_trained(self) -> str:
        return count_text(self._values_of_trained)

    @cached_property
    def _parameters(self) -> Count:
        return parameter_count(self.architecture)

    @cached_property
    def _adapters(self) -> Count:
        return 0 if self._trains_everything else self._values_of_trained
