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
from functools import cached_property, reduce
from math import prod

from profiler.analytical.formulas.host import HostSide
from profiler.analytical.formulas.models.parameters import base_tensors
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
    Term,
    Terms,
    both,
    chosen,
    larger,
    where,
    whole_units,
)
from profiler.analytical.optimizers import optimizer_scratch, optimizer_state, state_text
from profiler.analytical.timeline.instants import Instant, InstantName, workspace_in_step
from profiler.analytical.timeline.sharding.gathered import UnitSharding
from profiler.analytical.timeline.sharding.sharding import Units, is_before_training
from profiler.domain.memory import Category, Phase
from profiler.domain.text import count_text

_COPIED_OUT = (InstantName.PREFILL, InstantName.DECODING, InstantName.SCORE_HEAD)


@dataclass(frozen=True, kw_only=True)
class UnitGradients:
    """The gradients of a backward with FSDP, which reduces those of a unit at the end of the unit's backward."""

    units: Units
    layers: Count
    """Number of decoder layers."""
    largest_layer: Count
    """Parameters of the largest of them, without adapters."""
    has_kinds: bool
    """Whether layers differ."""
    head: Count
    """Parameters of the LM head alone."""
    trains_everything: bool
    whole_bytes: Count
    """All gradients, in bfloat16."""
    num_processes: Count

    def of(self, count: Count) -> Count:
        """Return the bytes of whole gradients outside of layers; 0 where only adapters are trained."""
        return BFLOAT16_BYTES * count if self.trains_everything else 0

    def shards(self, whole_bytes: Count) -> Count:
        """Return the bytes of this GPU's shards of whole gradients, which are in float32."""
        return whole_bytes * (FLOAT32_BYTES // BFLOAT16_BYTES) // self.num_processes

    def still_reduced(self, name: InstantName) -> Count:
        """Return the input of the last reduction, until the next unit's (torch's `FSDPParamGroup.post_backward`)."""
        head = where(self.units.embedding > 0, self.of(self.units.tail), 0)
        layer = self.of(self.largest_layer)
        last = larger(head, layer) if self.has_kinds else head
        return {InstantName.BACKWARD_LAYER: last, InstantName.BACKWARD_FIRST_LAYER: layer}.get(name, 0)

    def at_once(self, name: InstantName, accumulated: Count, *, summed: Count) -> Count:
        """Return gradients where the only backward of a step reduces them unit by unit.

        In the first layer: shards of the others, and the input of the reduction before it. At the end: shards of all
        layers, the whole gradient of the embedding, which a loop's variable keeps, the input of its reduction, and that
        of the last layer's, or the reduced gradient in bfloat16 and float32. An LM head of its own is reduced after its
        norm.

        By hand, 2 GPUs, a tied head of 100 values that stays gathered, a layer of 10: 2 x 200 B, and 300 B - 200 B.

        Args:
            name: The instant.
            accumulated: What there is of gradients that are reduced later.
            summed: The sum of both gradients of a tied head at the end, where it is a tensor of its own.
        """
        unit = self.units
        layer = (self.whole_bytes - self.of(unit.root)) // self.layers
        all_layers, others = (self.shards(layer * number) for number in (self.layers, self.layers - 1))
        if self.has_kinds and self.trains_everything:
            layer = BFLOAT16_BYTES * unit.layer
        head, waiting, has_own = self.of(unit.tail), self.of(self.head), unit.embedding > 0
        last = 2 * self.of(where(has_own, unit.embedding, unit.tail))
        # Its weights, in bfloat16, are freed before it is reduced.
        made = 3 * self.shards(last // 2) // 2 - where(has_own, 0, last // 2)
        at_end = larger(layer + where(has_own, 0, summed), made)
        return {
            InstantName.BACKWARD_NORM: waiting,
            InstantName.BACKWARD_LAYER: where(has_own, head + self.shards(head), waiting),
            InstantName.BACKWARD_FIRST_LAYER: others + layer + where(has_own, self.shards(head), waiting),
            InstantName.BACKWARD_END: all_layers + last + at_end + where(has_own, self.shards(head), 0),
        }.get(name, accumulated)


@dataclass(frozen=True)
class Fsdp(UnitSharding):
    """FSDP 2."""

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
        return self._sharded(self._parameters, self._element_bytes, "parameters x").plus(
            self._rest_of_shards(self._element_bytes)
        )

    @cached_property
    def reference(self) -> Term:
        """Shards of a reference model, as loaded, or of a copy of adapters, in float32; 0 without one.

        By hand, qwen2.5-0.5b, rank 16 on all linear layers, 4 GPUs: a copy of 8,798,208 x 4 B / 4 = 8,798,208 B.
        """
        if self.spec.ref_adapter:
            return self._sharded(self._copied_adapters, FLOAT32_BYTES, "copied x")
        element = element_bytes(self.spec).weight
        shards = self._sharded(self._parameters, element, "x").plus(self._rest_of_shards(element))
        return shards.only_if(self._has_reference)

    def _rest_of_shards(self, element: Count) -> Term:
        """Return what the shards of the base model have in their segments beyond themselves."""
        groups, gpus = base_tensors(self.architecture), self.spec.num_processes
        shards = (whole_units(group.shape[0], gpus) * prod(group.shape[1:]) * element for group in groups)
        rests = (group.copies * self._unsplit(size) for group, size in zip(groups, shards, strict=True))
        return Term(sum(rests))

    @cached_property
    def adapters(self) -> Term:
        """Shards of the adapters."""
        return self._sharded(self._adapters, FLOAT32_BYTES, "x")

    @cached_property
    def whole_model_bytes(self) -> Count:
        """The model before it is sharded, with trained parameters in float32."""
        adapters = self._adapters + self._copied_adapters
        return self._parameters * self._element_bytes + adapters * FLOAT32_BYTES

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

    def shared(self, alone: Instant) -> Instant:
        """Return an instant of one GPU alone with what sharding changes.

        Before training the policy is on the host, and a reference scores that is freed then, gathered as one unit.
        """
        if not is_before_training(alone):
            return super().shared(alone)
        shards = self._sharded(self._parameters, element_bytes(self.spec).weight, "x")
        gathered = Term(2 * BFLOAT16_BYTES * self._parameters, lambda: "the gathered reference, twice")
        return alone.with_terms(
            {Category.WEIGHTS: NOTHING, Category.REFERENCE: shards, Category.COMMUNICATION: gathered}
        )

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
        shards and those of the units before it. `fsdp_cpu_ram_efficient_loading` sends tensor by tensor instead, and a
        tied LM head at last as a tensor of its own, whose shard is there next to the embedding's until both are tied.

        By hand, qwen2.5-0.5b full on 4 GPUs: shards of 494,032,768 B, and embedding and norm of 136,135,552 x 4 B.
        Sent by tensors: the shards, one more of 136,134,656 B, and the LM head of 136,134,656 x 4 B. Emulated on 2 GPUs
        with LoRA, 1,813,882,880 B where 1,806,315,264 are counted; TinyLlama, with its own head, is equal to the byte.

        Source: `create_model_from_path(device_map=None)` in trl 1.16; `place_model_on_device` of transformers'
        `Trainer`; `_move_states_to_device` in torch's `_fsdp_init.py`; `fsdp2_load_full_state_dict` of accelerate.
        """
        if alone.name is InstantName.ENGINE_START:
            return (replace(alone, terms={Category.ENGINE: alone.terms[Category.ENGINE]}),)
        kept = {Category.WEIGHTS: self.weights, Category.ADAPTERS: self.adapters, Category.REFERENCE: self.reference}
        unit = {Category.COMMUNICATION: Term(self._unit_at_load, lambda: "a whole unit, until it is sharded")}
        if self.spec.fsdp_cpu_ram_efficient_loading:
            unit = {Category.COMMUNICATION: Term(self._tensor_at_load, lambda: "a whole tensor, until it is sharded")}
            kept[Category.WEIGHTS] = self.weights.plus(self._tied_head_at_load)
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
        adapters = self._adapters + self._copied_adapters
        layer = layer + FLOAT32_BYTES * (adapters // self.architecture.num_hidden_layers)
        return larger(last, layer - whole_units(last, self.spec.num_processes))

    @cached_property
    def _head_at_load(self) -> Count:
        """The LM head before it is sharded."""
        return self._element_bytes * self.architecture.vocab_size * self.architecture.hidden_size

    @cached_property
    def _tied_head_at_load(self) -> Term:
        """The shard of a tied LM head, until it is tied again (`fsdp2_load_full_state_dict` of accelerate)."""
        shard = whole_units(self._head_at_load, self.spec.num_processes)
        return Term(shard, lambda: "the tied head once more").only_if(self.architecture.tie_word_embeddings)

    @cached_property
    def _tensor_at_load(self) -> Count:
        """What the largest tensor adds to the shards of all: the LM head, the last one, or one of a layer before it."""
        largest = reduce(larger, (prod(group.shape) for group in base_tensors(self.architecture)))
        shard = whole_units(self._head_at_load, self.spec.num_processes)
        return larger(self._head_at_load, self._element_bytes * largest - shard)

    def before(self, earlier: tuple[Instant, ...], alone: Instant) -> tuple[Instant, ...]:
        """Return the instants at which units are copied out, an inner layer's backward, and the end of the first's."""
        if is_before_training(alone):
            return ()
        if alone.name is InstantName.BACKWARD_FIRST_LAYER:
            shared = self.shared(alone)
            there: Terms = {name: term for name, term in shared.terms.items() if name is not Category.ACTIVATIONS}
            gradients = there[Category.GRADIENTS]
            made = Term(gradients.size + self._through_units.of(self.units.layer), gradients.words)
            once = both(alone.happens, self.spec.gradient_accumulation_steps <= 1)
            end = replace(shared, terms={**there, Category.GRADIENTS: made}, happens=once)
            return end, self._inner_layer(earlier[-1], alone)
        if alone.phase is Phase.FORWARD:
            return self._before_forward(alone)
        if alone.name is InstantName.SCORE_HEAD and not self._in_forward and self._trains_everything:
            return (self._logits_of_reference(alone), *self._before_layers(alone))
        return self._before_layers(alone) if alone.name in _COPIED_OUT else ()

    def _inner_layer(self, last: Instant, first: Instant) -> Instant:
        """Return the backward of the last layer but one, or where nothing is accumulated of the second one.

        From layer to layer activations fall and shards grow by the same. The next layer's gradients are being reduced.
        """
        layers, at_last = self.architecture.num_hidden_layers, self.shared(last)
        once = self.spec.gradient_accumulation_steps <= 1
        at_end, at_begin = (each.terms.get(Category.ACTIVATIONS, NOTHING).size for each in (last, first))
        of_one, layer = (at_end - at_begin) // larger(layers - 1, 1), self._through_units.of(self.units.layer)
        made, gathered = at_last.terms[Category.GRADIENTS], at_last.terms[Category.COMMUNICATION]
        accumulated = made.size - self._through_units.still_reduced(last.name) + layer
        reduced = self.reduced(first).size - self._through_units.shards(layer)
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

    @cached_property
    def _through_units(self) -> UnitGradients:
        """Gradients on their way to shards."""
        return UnitGradients(
            units=self.units,
            layers=self.architecture.num_hidden_layers,
            largest_layer=self._largest_layer,
            has_kinds=bool(self.architecture.first_layers),
            head=self.architecture.vocab_size * self.architecture.hidden_size,
            trains_everything=self._trains_everything,
            whole_bytes=self.whole_gradient_bytes,
            num_processes=self.spec.num_processes,
        )

    def reduced(self, alone: Instant) -> Term:
        """Return gradients: shards where they have been reduced, whole ones before."""
        if alone.name is InstantName.STEP:
            return self.gradient_shards
        size, every = (
            alone.terms.get(Category.GRADIENTS, NOTHING).size,
            all_gradients(self.spec, self.architecture).size,
        )
        accumulated = where(size >= every, size - every + self.whole_gradient_bytes, size)
        accumulated = accumulated + self._through_units.still_reduced(alone.name)
        summed = larger(0, size - every - self._through_units.of(self._through_units.head))
        once = self._through_units.at_once(alone.name, accumulated, summed=summed)
        return chosen(
            self.spec.gradient_accumulation_steps > 1,
            Term(accumulated, lambda: f"{self._count_of_trained()} x {BFLOAT16_BYTES} B, whole until the last one"),
            Term(once, lambda: "shards, and whole ones of a layer or the head"),
        )

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
