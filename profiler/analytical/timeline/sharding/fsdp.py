"""FSDP 2 by accelerate: shards of weights, gradients and optimizer states, and what is gathered for a layer.

Each decoder layer is a unit. The final norm and the LM head are one, which stays gathered until its backward, and has a
tied embedding; an embedding of its own is another unit. accelerate keeps trained parameters in float32 and computes in
bfloat16, so a shard of a trained parameter has 4 bytes per value and a gathered one 2. Gradients of all micro-batches
but the last are accumulated whole, because accelerate does not reduce them before (`no_sync`). By hand, qwen2.5-0.5b
full on 4 GPUs: 494,032,768 x 4 B / 4 = 494,032,768 B of shards.

Source: `fsdp2_prepare_model` in accelerate's `utils/fsdp_utils.py`; `_fsdp_param_group.py`, `_fsdp_collectives.py` and
`_fsdp_state.py` in torch's `distributed/fsdp/_fully_shard`.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from profiler.analytical.formulas.host import HostSide
from profiler.analytical.formulas.models.parameters import layer_parameter_count
from profiler.analytical.formulas.models.tensor_groups import TensorGroup, count_of
from profiler.analytical.formulas.models.trained import (
    BFLOAT16_BYTES,
    FLOAT32_BYTES,
    all_gradients,
    element_bytes,
)
from profiler.analytical.formulas.sizes.quantities import (
    NOTHING,
    Count,
    Flag,
    Term,
    Terms,
    both,
    chosen,
    either,
    larger,
    negated,
    where,
    whole_units,
)
from profiler.analytical.formulas.sizes.trial_keys import layer_kinds
from profiler.analytical.optimizers import optimizer_scratch, optimizer_state, state_text
from profiler.analytical.timeline.instants import Instant, InstantName, workspace_in_step
from profiler.analytical.timeline.sharding.sharding import TrialSharding, Units
from profiler.domain.memory import Category, Phase
from profiler.domain.text import count_text

_SCORING = (InstantName.SCORE_LAYER, InstantName.SCORE_HEAD)
_DECODING = (InstantName.GROWTH, InstantName.DECODING, InstantName.LAST_LOGITS, InstantName.SAMPLING)
_AFTER_THE_LAYERS = (InstantName.REWARD, InstantName.FORWARD_HEAD, InstantName.LOGGING)
_BEFORE_THE_LAYERS = (InstantName.BACKWARD_HEAD, InstantName.BACKWARD_NORM)
_LAYERS = ("", "1 layer", "2 layers")
_OTHER_LAYERS_ARE_FREED = (InstantName.BACKWARD_FIRST_LAYER, InstantName.BACKWARD_END)


@dataclass(frozen=True)
class Fsdp(TrialSharding):
    """FSDP 2."""

    @cached_property
    def units(self) -> Units:
        """The parameters of each unit.

        By hand, qwen2.5-0.5b: norm and tied head have 151,936 x 896 + 896 = 136,135,552, and a layer 14,912,384.

        Source: `fsdp2_prepare_model` in accelerate 1.15.
        """
        layers, kinds = self.architecture.num_hidden_layers, layer_kinds(self.architecture)
        in_layers = sum(kind.num_hidden_layers * layer_parameter_count(kind) for kind in kinds)
        adapters = self._adapters // layers
        table = self.architecture.vocab_size * self.architecture.hidden_size
        embedding = where(self.architecture.tie_word_embeddings, 0, table)
        return Units(
            embedding=embedding,
            tail=self._parameters - in_layers - embedding,
            layer=self._largest_layer + adapters,
            layers=in_layers + layers * adapters,
        )

    @cached_property
    def _largest_layer(self) -> Count:
        """Parameters of the largest decoder layer, without adapters."""
        return larger(0, *(layer_parameter_count(kind) for kind in layer_kinds(self.architecture)))

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
        return self._sharded(self._parameters, self._element_bytes, "parameters x")

    @cached_property
    def reference(self) -> Term:
        """Shards of a reference model, as loaded; 0 without one, as with adapters."""
        return self._sharded(self._parameters, element_bytes(self.spec).weight, "x").only_if(self._has_reference)

    @property
    def _has_reference(self) -> Flag:
        return self.spec.beta != 0.0 if self._trains_everything else False

    @cached_property
    def adapters(self) -> Term:
        """Shards of the adapters."""
        return self._sharded(self._adapters, FLOAT32_BYTES, "x")

    @cached_property
    def whole_model_bytes(self) -> Count:
        """The model before it is sharded, with trained parameters in float32."""
        return self._parameters * self._element_bytes + self._adapters * FLOAT32_BYTES

    @property
    def _element_bytes(self) -> Count:
        """Bytes of a parameter of the base model: float32 where it is trained, else as loaded."""
        return FLOAT32_BYTES if self._trains_everything else element_bytes(self.spec).weight

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
        scratch = optimizer_scratch(self.spec.optim, self.tensors, FLOAT32_BYTES, weight_decay=self.spec.weight_decay)
        return {Category.WORKSPACE: workspace_in_step(self.workspace, scratch)}

    def at_load(self, alone: Instant) -> tuple[Instant, ...]:
        """Return the instants at which a model that the host has read is sharded onto this GPU.

        trl loads models to the host, and transformers leaves them there. vLLM starts before any of them is moved. Then
        the reference is moved as one unit, and at last the model, unit by unit: a whole unit is there with its own
        shards and those of the units before it. `fsdp_cpu_ram_efficient_loading` moves tensor by tensor instead, which
        is as large where the embedding is the largest.

        By hand, qwen2.5-0.5b full on 4 GPUs: shards of 494,032,768 B, and embedding and norm of 136,135,552 x 4 B.

        Source: `create_model_from_path(device_map=None)` in trl 1.16; `place_model_on_device` of transformers'
        `Trainer`; `_move_states_to_device` in torch's `_fsdp_init.py`; `fsdp2_load_full_state_dict` of accelerate.
        """
        if alone.name is InstantName.ENGINE_START:
            return (replace(alone, terms={Category.ENGINE: alone.terms[Category.ENGINE]}),)
        kept = {Category.WEIGHTS: self.weights, Category.ADAPTERS: self.adapters, Category.REFERENCE: self.reference}
        unit = {Category.COMMUNICATION: Term(self._unit_at_load, lambda: "a whole unit, until it is sharded")}
        if alone.name is not InstantName.LOADED:
            return (alone.with_terms({**kept, **unit}),)
        size = self._parameters * element_bytes(self.spec).weight
        whole = {Category.COMMUNICATION: Term(size, lambda: "the whole reference, until it is sharded")}
        sharding = Instant(phase=Phase.LOAD, name=InstantName.SHARDING, terms={})
        return (
            replace(sharding, terms={Category.REFERENCE: self.reference, **whole}, happens=self._has_reference),
            replace(sharding, terms={**kept, **unit}),
        )

    @cached_property
    def _unit_at_load(self) -> Count:
        """What the largest unit adds to the shards of all: norm and LM head, the last one, or a layer before it.

        accelerate's function also keeps an embedding of its own whole until it returns (`input_weight`).
        """
        last = self._element_bytes * self.units.root
        layer = self._element_bytes * self._largest_layer
        layer = layer + FLOAT32_BYTES * (self._adapters // self.architecture.num_hidden_layers)
        return larger(last, layer - whole_units(last, self.spec.num_processes))

    def gathered(self, alone: Instant) -> Term:
        """Return gathered weights: of a layer, the buffer of the next gather, and of norm and LM head.

        These stay from their first forward until their next backward. An embedding of its own is gathered for its own
        forward and backward, ahead of the latter.

        By hand, qwen2.5-0.5b: 2 x (136,135,552 + 2 x 14,912,384) B; without `fsdp_reshard_after_forward` 25 layers.
        """
        name, unit = alone.name, self.units
        if name is InstantName.STEP:
            return NOTHING
        stay = not self.spec.fsdp_reshard_after_forward and name not in _OTHER_LAYERS_ARE_FREED
        layers, root = self._layers_there(name, stay=stay), unit.tail + (unit.embedding if stay else 0)
        has_own, generates = unit.embedding > 0, self.spec.recipe.facts.has_rollout
        # accelerate finds no final norm in a model of peft. The LM head alone is the unit then. Generating gathers it,
        # and keeps the buffer; in training no module of it runs whose backward frees it.
        stays = generates and not self._trains_everything
        if name in _DECODING:
            # Each token gathers an embedding of its own, and its buffer, while those of no layer are there.
            own = (3 if stays else 2) * unit.embedding
            layers, root = where(own > layers, 0, layers), where(own > layers, unit.tail + own, root)
            # With adapters a tied one is too, and its buffer is there until that of the first layer is.
            is_larger = both(negated(has_own), unit.tail > unit.layer) if stays else False
            layers, root = where(is_larger, unit.layer, layers), where(is_larger, 2 * unit.tail, root)
        elif name is InstantName.PREFILL or (name is InstantName.FORWARD_LAYER and not generates):
            root = where(has_own, root - unit.tail, root)
        elif name in _AFTER_THE_LAYERS and self._trains_everything and not generates:
            root = where(has_own, root + unit.tail, root)
        elif name is InstantName.BACKWARD_LAYER and not stays:
            root = where(has_own, root - unit.tail, root)
        elif name in _OTHER_LAYERS_ARE_FREED:
            root = where(has_own, unit.embedding + (unit.tail if stays else 0), root)
            layers = where(has_own, unit.layer if name is InstantName.BACKWARD_FIRST_LAYER else 0, layers)
        found = self._gathered(root, layers)
        if name in _SCORING and self._trains_everything:
            return chosen(self.spec.beta != 0.0, self._gathered_reference(), found)
        return found

    def before(self, earlier: tuple[Instant, ...], alone: Instant) -> tuple[Instant, ...]:
        """Return a tied head's gathering for a forward, an inner layer's backward, and the end of the first one's."""
        shared, unit = self.shared(alone), self.units
        there: Terms = {name: term for name, term in shared.terms.items() if name is not Category.ACTIVATIONS}
        if alone.name is InstantName.BACKWARD_FIRST_LAYER:
            made = Term(there[Category.GRADIENTS].size + self._gradient(unit.layer), there[Category.GRADIENTS].words)
            once = both(alone.happens, self.spec.gradient_accumulation_steps <= 1)
            end = replace(shared, terms={**there, Category.GRADIENTS: made}, happens=once)
            return end, self._inner_layer(earlier[-1], alone)
        if alone.name is not InstantName.FORWARD_LAYER:
            return ()
        gathered: Terms = {Category.COMMUNICATION: self._gathered(2 * unit.tail, unit.layer)}
        again = either(self.spec.gradient_accumulation_steps > 1, not self.spec.recipe.facts.has_rollout)
        happens = both(both(alone.happens, again), unit.embedding == 0)
        return (Instant(phase=Phase.FORWARD, name=InstantName.GATHERING, terms={**there, **gathered}, happens=happens),)

    def _inner_layer(self, last: Instant, first: Instant) -> Instant:
        """Return the backward of the last layer but one, or where nothing is accumulated of the second one.

        From layer to layer activations fall and shards grow by the same. The next layer's gradients are being reduced.
        """
        layers, at_last = self.architecture.num_hidden_layers, self.shared(last)
        once = self.spec.gradient_accumulation_steps <= 1
        at_end, at_begin = (each.terms.get(Category.ACTIVATIONS, NOTHING).size for each in (last, first))
        of_one, layer = (at_end - at_begin) // larger(layers - 1, 1), self._gradient(self.units.layer)
        made, gathered = at_last.terms[Category.GRADIENTS], at_last.terms[Category.COMMUNICATION]
        accumulated = made.size - self._still_reduced(last.name) + layer
        reduced = self.reduced(first).size - self._reduced(layer)
        freed = 0 if self.spec.fsdp_reshard_after_forward else BFLOAT16_BYTES * self.units.layer
        kept = where(once, at_begin + of_one, at_end - of_one)
        terms: Terms = {
            Category.ACTIVATIONS: Term(kept, lambda: "its own, and of the layers before it"),
            Category.GRADIENTS: Term(where(once, reduced, accumulated), made.words),
            Category.COMMUNICATION: Term(gathered.size - where(once, layers - 2, 1) * freed, gathered.words),
        }
        happens = both(last.happens, False if self.architecture.first_layers else layers > 1)
        return replace(
            at_last, name=InstantName.BACKWARD_INNER_LAYER, terms={**at_last.terms, **terms}, happens=happens
        )

    def _layers_there(self, name: InstantName, *, stay: bool) -> Count:
        """Return the parameters of gathered layers, with the buffer of the next one.

        After the forward of the last layer none comes, and the backward of the head has only this buffer.
        """
        unit = self.units
        if name in _AFTER_THE_LAYERS:
            return unit.layers if stay else 0
        if name in _BEFORE_THE_LAYERS:
            return unit.layers if stay else unit.layer
        everything = unit.layers if name is InstantName.BACKWARD_LAYER else unit.layers + unit.layer
        return everything if stay else 2 * unit.layer

    def _gathered(self, root: Count, layers: Count) -> Term:
        """Return what is gathered outside of layers, the root, and of layers."""

        def words() -> str:
            number = int(layers // self.units.layer)
            parts = [f"{count_text(root)} x {BFLOAT16_BYTES} B of the root"] if root else []
            named = "all layers" if layers >= self.units.layers else _LAYERS[number]
            return f"gathered: {', '.join([*parts, *([named] if number else [])])}"

        return Term(BFLOAT16_BYTES * (root + layers), words)

    def _gathered_reference(self) -> Term:
        """Return the LM head and the reference: trl makes it one unit, so it is there whole, and its buffer too.

        By hand, the reference of qwen2.5-0.5b: 2 x 494,032,768 x 2 B = 1,976,131,072 B.

        Source: `prepare_fsdp` in trl's `models/utils.py`, which calls `fully_shard` once.
        """
        size = BFLOAT16_BYTES * self.units.tail + 2 * BFLOAT16_BYTES * self._parameters
        return Term(size, lambda: "the gathered reference, twice, and the root")

    def reduced(self, alone: Instant) -> Term:
        """Return gradients: shards where they have been reduced, whole ones before."""
        if alone.name is InstantName.STEP:
            return self.gradient_shards
        size, every = alone.terms.get(Category.GRADIENTS, NOTHING).size, self._gradients_alone_bytes
        accumulated = where(size >= every, size - every + self.whole_gradient_bytes, size)
        accumulated = accumulated + self._still_reduced(alone.name)
        return chosen(
            self.spec.gradient_accumulation_steps > 1,
            Term(accumulated, lambda: f"{self._count_of_trained()} x {BFLOAT16_BYTES} B, whole until the last one"),
            Term(
                self._reduced_at_once(alone.name, accumulated), lambda: "shards, and whole ones of a layer or the head"
            ),
        )

    def _still_reduced(self, name: InstantName) -> Count:
        """Return the input of the last reduction, until the next unit's (torch's `FSDPParamGroup.post_backward`)."""
        head = where(self.units.embedding > 0, self._gradient(self.units.tail), 0)
        layer = self._gradient(self._largest_layer)
        last = larger(head, layer) if self.architecture.first_layers else head
        return {InstantName.BACKWARD_LAYER: last, InstantName.BACKWARD_FIRST_LAYER: layer}.get(name, 0)

    def _reduced_at_once(self, name: InstantName, accumulated: Count) -> Count:
        """Return gradients where the only backward of a step reduces them unit by unit.

        In the first layer: shards of the others, and the input of the reduction before it. At the end: shards of all
        layers, the whole gradient of the embedding with the input of its reduction, and the last layer's. An LM head of
        its own is reduced after its norm.
        """
        unit, layers = self.units, self.architecture.num_hidden_layers
        layer = (self.whole_gradient_bytes - self._gradient(unit.root)) // layers
        shards, others = (self._reduced(layer * number) for number in (layers, layers - 1))
        if self.architecture.first_layers and self._trains_everything:
            layer = BFLOAT16_BYTES * unit.layer
        head, has_own = self._gradient(unit.tail), unit.embedding > 0
        last = 2 * self._gradient(where(has_own, unit.embedding, unit.tail))
        return {
            InstantName.BACKWARD_NORM: self._waiting,
            InstantName.BACKWARD_LAYER: where(has_own, head + self._reduced(head), self._waiting),
            InstantName.BACKWARD_FIRST_LAYER: others + layer + where(has_own, self._reduced(head), self._waiting),
            InstantName.BACKWARD_END: shards + last + layer + where(has_own, self._reduced(head), 0),
        }.get(name, accumulated)

    def _gradient(self, count: Count) -> Count:
        """Return the bytes of whole gradients outside of layers; 0 where only adapters are trained."""
        return BFLOAT16_BYTES * count if self._trains_everything else 0

    def _reduced(self, whole_bytes: Count) -> Count:
        """Return the bytes of this GPU's shards of whole gradients."""
        return whole_bytes * (FLOAT32_BYTES // BFLOAT16_BYTES) // self.spec.num_processes

    @cached_property
    def _gradients_alone_bytes(self) -> Count:
        return all_gradients(self.spec, self.architecture).size

    @property
    def _waiting(self) -> Count:
        """The gradient of the LM head, until the backward of its unit ends."""
        return self._gradient(self.architecture.vocab_size * self.architecture.hidden_size)

    @cached_property
    def _states(self) -> Term:
        def words() -> str:
            whole = state_text(self.spec.optim, self._values_of_trained, FLOAT32_BYTES)
            return f"({whole}) / {self.spec.num_processes} GPUs"

        return Term(optimizer_state(self.spec.optim, self.tensors, FLOAT32_BYTES).size, words)

    @cached_property
    def _values_of_trained(self) -> Count:
        return count_of(self._trained)

    def _count_of_trained(self) -> str:
        return count_text(self._values_of_trained)

    @cached_property
    def _adapters(self) -> Count:
        return 0 if self._trains_everything else self._values_of_trained
