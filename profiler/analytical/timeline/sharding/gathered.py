"""Weights that FSDP 2 gathers, unit by unit, before they compute; sources: `fsdp.py`."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from profiler.analytical.formulas.models.parameters import layer_parameter_count, layer_tensors
from profiler.analytical.formulas.models.tensor_groups import count_of
from profiler.analytical.formulas.models.trained import BFLOAT16_BYTES, all_logits
from profiler.analytical.formulas.models.weights import keeps_reference_model
from profiler.analytical.formulas.sizes.quantities import (
    NOTHING,
    Count,
    Flag,
    Term,
    Terms,
    both,
    chosen,
    either,
    holds,
    larger,
    negated,
    smaller,
    where,
)
from profiler.analytical.formulas.sizes.trial_keys import generated_micro_batch, layer_kinds
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.sharding.sharding import TrialSharding, Units
from profiler.domain.memory import Category, Phase
from profiler.domain.text import count_text
from profiler.domain.trials.trial import Logprobs, Rollout

_WITHOUT_GATHERED = (InstantName.SENDING, InstantName.ENGINE, InstantName.STEP)
_PREFILL = (InstantName.PREFILL_TOWER, InstantName.PREFILL_INPUTS, InstantName.PREFILL)
_LOGITS = (InstantName.LAST_LOGITS, InstantName.SAMPLING)
_REWARDS = (InstantName.REWARD, InstantName.REWARD_MODEL)
_HEADS = (InstantName.SCORE_HEAD, InstantName.FORWARD_HEAD, InstantName.LOGGING)
_LAYERS = ("", "1 layer", "2 layers", "3 layers")


class Gathered(NamedTuple):
    """Gathered parameters."""

    outside: Count
    """Outside of layers."""
    layers: Count

    def term(self, units: Units) -> Term:
        """Return their bytes, in bfloat16."""

        def words() -> str:
            number = int(self.layers // units.layer)
            parts = [f"{count_text(self.outside)} x {BFLOAT16_BYTES} B of the root"] if self.outside else []
            named = "all layers" if self.layers >= units.layers else _LAYERS[number]
            return f"gathered: {', '.join([*parts, *([named] if number else [])])}"

        return Term(BFLOAT16_BYTES * (self.outside + self.layers), words)


@dataclass(frozen=True, kw_only=True)
class UnitWeights:
    """Weights that FSDP gathers, unit by unit.

    What is gathered is first in a buffer, and then copied out to the parameters. In a forward the buffer is freed when
    the next unit has been copied out: two layers are there while one computes, three while it is copied out. In a
    backward the next buffer is made after the last one is freed: two. `kept` says whether an earlier forward, without a
    backward since, has gathered what stays: norm and LM head, or all.

    Source: `wait_for_unshard`, `pre_backward` and `reshard` of torch's `FSDPParamGroup`.
    """

    units: Units
    stay: bool
    """Whether layers and an embedding of its own stay until their backward."""
    head_runs: bool
    """Whether training runs a module of the unit of an LM head of its own, which gathers it."""
    has_fused_head: bool
    """Whether backward begins with the unit of the LM head, which gathers the last layer; else with its outputs."""
    rest: Count
    """What all layers that stay have in their segments beyond themselves, in parameters."""

    @property
    def all_layers(self) -> Count:
        """All layers, where they stay."""
        return self.units.layers + self.rest

    @property
    def is_tied(self) -> Flag:
        """Whether norm and LM head are the unit of the embedding too."""
        return self.units.embedding == 0

    def in_layer(self, *, kept: Flag, ahead: int = 1) -> Gathered:
        """Return what is there in the last layer, with the buffers of `ahead` layers: 1, or 2 while it is copied out.

        By hand, qwen2.5-0.5b: 136,135,552 and 2 or 3 layers of 14,912,384.
        """
        unit = self.units
        if not self.stay:
            return Gathered(where(either(kept, self.is_tied), unit.tail, 0), (1 + ahead) * unit.layer)
        root = where(kept, unit.root, where(self.is_tied, unit.tail, unit.embedding))
        return Gathered(root, self.all_layers + where(kept, 0, ahead * unit.layer))

    def first(self, *, kept: Flag, buffer: Count = 0) -> Gathered:
        """Return the largest that is there until the first layer is copied out, if the embedding's unit is gathered.

        Args:
            kept: See above.
            buffer: The buffer of an earlier unit that the embedding's replaces.
        """
        unit = self.units
        if self.stay:
            table = where(self.is_tied, unit.tail, unit.embedding)
            return Gathered(2 * table, 2 * unit.layer)
        own = larger(2 * unit.embedding + buffer, unit.embedding + 2 * unit.layer) + where(kept, unit.tail, 0)
        tied = where(kept, 1, 2) * unit.tail
        return Gathered(where(self.is_tied, tied, own), where(self.is_tied, 2 * unit.layer, 0))

    def head(self) -> Gathered:
        """Return what is there while an LM head of its own is copied out, next to the buffer of the last layer."""
        unit = self.units
        there = Gathered(unit.embedding, self.all_layers) if self.stay else Gathered(0, 0)
        return Gathered(there.outside + 2 * unit.tail, there.layers + unit.layer)

    def after_layers(self, *, kept: Flag, in_forward: bool) -> Gathered:
        """Return what is there at the LM head, with the buffer of the last unit until the model's forward ends."""
        unit = self.units
        own = False if not self.head_runs else both(negated(kept), negated(self.is_tied))
        layer = where(own, 0, where(kept, 0, unit.layer) if self.stay else unit.layer)
        root = unit.tail + (unit.embedding if self.stay else 0) + where(own if in_forward else False, unit.tail, 0)
        return Gathered(root, (self.all_layers if self.stay else 0) + (layer if in_forward else 0))

    def backward(self, name: InstantName, *, left: Count, embedding: Count) -> Gathered:
        """Return what is there in a backward: a layer and the next one's buffer, or all that have had none.

        Args:
            name: The instant.
            left: The unit of the LM head after its own backward.
            embedding: An embedding of its own in its backward.
        """
        unit = self.units
        layers, own = (self.all_layers, unit.embedding) if self.stay else (unit.layer, 0)
        match name:
            case InstantName.BACKWARD_HEAD:
                return Gathered(unit.tail + own, layers if self.stay or self.has_fused_head else 0)
            case InstantName.BACKWARD_NORM:
                return Gathered(where(self.head_runs, unit.tail, left) + own, layers)
            case InstantName.BACKWARD_FIRST_LAYER:
                return Gathered(left + unit.embedding, unit.layer)
            case InstantName.BACKWARD_END:
                return Gathered(left + embedding, 0)
        return Gathered(left + own, layers if self.stay else 2 * unit.layer)


@dataclass(frozen=True)
class UnitSharding(TrialSharding):
    """GPUs that share a model by units, and gather the weights of one to compute it."""

    @cached_property
    def units(self) -> Units:
        """The parameters of each unit.

        By hand, qwen2.5-0.5b: norm and tied head have 151,936 x 896 + 896 = 136,135,552, and a layer 14,912,384.

        Source: `fsdp2_prepare_model` in accelerate 1.15.
        """
        layers, kinds = self.architecture.num_hidden_layers, layer_kinds(self.architecture)
        in_layers = sum(kind.num_hidden_layers * layer_parameter_count(kind) for kind in kinds)
        adapters = (self._adapters + self._copied_adapters) // layers
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

    @property
    def _has_reference(self) -> Flag:
        return keeps_reference_model(self.spec)

    @cached_property
    def _adapters(self) -> Count:
        return 0 if self._trains_everything else count_of(self._trained)

    @property
    def _copied_adapters(self) -> Count:
        """A frozen copy of them: trl makes it before the model is sharded, so each unit has its part of it."""
        return self._adapters if self.spec.ref_adapter else 0

    @cached_property
    def gathering(self) -> UnitWeights:
        """The weights that are gathered.

        accelerate finds no final norm in a model of peft. The LM head alone is the unit then, of which trl's fused loss
        runs no module: it gathers one of its own by a call that keeps no buffer, and no backward frees it.
        """
        is_fused = not self.spec.logprobs.makes_all_logits
        return UnitWeights(
            units=self.units,
            stay=not self.spec.fsdp_reshard_after_forward,
            head_runs=self._trains_everything or not is_fused,
            has_fused_head=is_fused,
            rest=self._rest_of_layers // BFLOAT16_BYTES,
        )

    @property
    def _rest_of_layers(self) -> Count:
        """What gathered layers have in their segments beyond themselves, tensor by tensor."""
        kinds = layer_kinds(self.architecture)
        groups = ((kind.num_hidden_layers * group.copies, group) for kind in kinds for group in layer_tensors(kind))
        return sum(copies * self._unsplit(BFLOAT16_BYTES * group.elements) for copies, group in groups)

    @property
    def _generates(self) -> bool:
        """Whether the model that is trained generates, which gathers what stays until a backward."""
        return self.spec.recipe.facts.has_rollout and not self.spec.use_vllm

    @property
    def _kept_in_scores(self) -> bool:
        """Whether a forward comes before that of scores: of a rollout, or of the loss that compares them."""
        return self._generates or not (self.spec.recipe.facts.has_rollout or self.spec.precompute_ref_log_probs)

    @property
    def _begins_anew(self) -> Flag:
        """Whether some forward of training does not come right after a rollout, but after a backward."""
        micro_batches = self.spec.steps * self.spec.gradient_accumulation_steps
        return smaller(self.spec.steps_per_generation, micro_batches) > 1 if self._generates else True

    def gathered(self, alone: Instant) -> Term:
        """Return gathered weights: of layers, with their buffers, and of norm and LM head.

        These stay from their first forward until their next backward. An embedding of its own is gathered for its own
        forward and backward, ahead of the latter.

        By hand, qwen2.5-0.5b: 2 x (136,135,552 + 2 x 14,912,384) B; without `fsdp_reshard_after_forward` 25 layers.
        """
        if alone.name in _WITHOUT_GATHERED:
            return self._next_to_reference(NOTHING)
        kept = self._kept_in_scores if alone.phase is not Phase.FORWARD else negated(self._begins_anew)
        found = self._next_to_reference(self._there(alone, kept=kept).term(self.units))
        if alone.phase is Phase.SCORE and self._trains_everything:
            ends = alone.name is InstantName.SCORE_HEAD and not self._in_forward
            return chosen(self._has_reference, self._gathered_reference(alone, is_there=not ends), found)
        return found

    def _there(self, alone: Instant, *, kept: Flag) -> Gathered:
        """Return what is gathered at an instant; see `UnitWeights` for `kept`."""
        name, weights, unit = alone.name, self.gathering, self.units
        is_frozen = self._generates and not self._trains_everything
        if name in _LOGITS:
            # `generate` of a model of peft is one forward for FSDP, at whose end alone the last buffer is freed.
            return weights.after_layers(kept=True, in_forward=is_frozen or name is InstantName.LAST_LOGITS)
        if alone.phase is Phase.ROLLOUT:
            return weights.in_layer(kept=name not in _PREFILL)
        if name in _REWARDS:
            return weights.after_layers(kept=True, in_forward=False)
        if name in _HEADS:
            in_forward = self._in_forward and name is not InstantName.LOGGING
            return weights.after_layers(kept=kept, in_forward=in_forward)
        if alone.phase is not Phase.BACKWARD:
            return weights.in_layer(kept=kept, ahead=2 if name is InstantName.GATHERING else 1)
        # No backward of adapters frees an LM head of its own that a rollout has gathered.
        left = where(weights.is_tied, unit.tail, unit.tail if is_frozen else 0)
        return weights.backward(name, left=left, embedding=self._embedding_at_the_end)

    @property
    def _in_forward(self) -> bool:
        """Whether log-probabilities are made in the model's forward, and not of its outputs."""
        return self.spec.logprobs is not Logprobs.FULL and self.spec.logprobs.selection is None

    @property
    def _embedding_at_the_end(self) -> Count:
        """An embedding of its own at the end of a backward.

        A gradient that is reduced at once is copied after the weights are freed. The backward of a frozen one ends when
        it has been copied out; without checkpointing nothing needs it, and there is the buffer alone.
        """
        embedding = self.units.embedding
        if self._trains_everything:
            return where(self.spec.gradient_accumulation_steps > 1, embedding, 0)
        return embedding if self.gathering.stay or not self.spec.gradient_checkpointing else 2 * embedding

    def _before_layers(self, alone: Instant) -> tuple[Instant, ...]:
        """Return the instants at which units are copied out for a prefill, a token, or scores."""
        weights, unit, name = self.gathering, self.units, alone.name
        is_prefill = name is InstantName.PREFILL
        kept = False if is_prefill else name is InstantName.DECODING or self._kept_in_scores
        if kept and weights.stay:
            return ()
        # The first token ends with the LM head, and others with a layer, whose buffer adapters keep to the next token.
        synthetic = holds(self.spec.rollout, lambda rollout: rollout is Rollout.SYNTHETIC)
        last = where(synthetic, unit.tail, unit.layer)
        buffer = last if name is InstantName.DECODING and not self._trains_everything else 0
        shared = self.shared(alone)
        if name is InstantName.SCORE_HEAD:
            shared = replace(shared, happens=both(shared.happens, negated(self._has_reference)))
        at_begin = {Category.KV_CACHE: NOTHING} if is_prefill else {}
        first = self._copied_out(shared.with_terms(at_begin), weights.first(kept=kept, buffer=buffer))
        layer = self._copied_out(shared, weights.in_layer(kept=kept, ahead=2))
        head = self._copied_out(shared, weights.head(), happens=negated(weights.is_tied) if is_prefill else False)
        return first, layer, head

    def _logits_of_reference(self, alone: Instant) -> Instant:
        """Return the end of a reference's forward, if its logits are scored after it."""
        made = all_logits(self.spec, self.architecture, generated_micro_batch(self.spec))
        logits = Term(made.whole + made.converted, alone.terms[Category.LOGITS].words)
        gathered = self._gathered_reference(alone, is_there=True)
        found = self.shared(alone).with_terms({Category.LOGITS: logits, Category.COMMUNICATION: gathered})
        return replace(found, happens=both(alone.happens, self._has_reference))

    def _before_forward(self, alone: Instant) -> tuple[Instant, ...]:
        """Return the forward right after a rollout, where others begin anew, and the instants of units copied out.

        Gradients of earlier micro-batches are not there after a rollout, if each generation is for whole steps.
        """
        weights, spec, anew = self.gathering, self.spec, self._begins_anew
        own, shared = negated(weights.is_tied), self.shared(alone)
        unfinished = spec.steps_per_generation % spec.gradient_accumulation_steps != 0
        gathered = self._next_to_reference(self._there(alone, kept=True).term(self.units))
        earlier = shared.terms.get(Category.GRADIENTS, NOTHING).only_if(unfinished)
        right_after = shared.with_terms({Category.GRADIENTS: earlier, Category.COMMUNICATION: gathered})
        after = replace(right_after, happens=both(alone.happens, self._generates))
        if alone.name is InstantName.FORWARD_HEAD:
            runs = both(own, anew) if weights.head_runs else False
            return self._copied_out(shared, weights.head(), Category.LOGITS, happens=runs), after
        if alone.name is not InstantName.FORWARD_LAYER:
            return (after,)
        again = False if weights.stay else own
        first = self._copied_out(shared, weights.first(kept=False), happens=anew)
        return first, self._copied_out(after, weights.first(kept=True), happens=again), after

    def _copied_out(
        self, at: Instant, gathered: Gathered, empty: Category = Category.ACTIVATIONS, *, happens: Flag = True
    ) -> Instant:
        """Return an instant with what is gathered while a unit is copied out, before it computes.

        Args:
            at: The instant at which the unit computes.
            gathered: What is gathered.
            empty: What the unit has not made yet.
            happens: Whether there is such an instant.
        """
        term = self._next_to_reference(gathered.term(self.units))
        there: Terms = {name: each for name, each in at.terms.items() if name not in (empty, Category.LOGITS)}
        terms: Terms = {**there, Category.COMMUNICATION: term}
        return replace(at, name=InstantName.GATHERING, terms=terms, happens=both(at.happens, happens))

    def _gathered_reference(self, alone: Instant, *, is_there: bool) -> Term:
        """Return what is gathered while the reference scores: trl makes it one unit, so it is there whole.

        Its buffer is there too until its forward ends, and the LM head of the policy. Without
        `fsdp_reshard_after_forward` the policy is whole after the rollout, and the reference is gathered in the first
        step alone, in which there are no states yet.

        By hand, the reference of qwen2.5-0.5b: 2 x 494,032,768 x 2 B = 1,976,131,072 B.

        Args:
            alone: The instant.
            is_there: Whether it is in the reference's forward.

        Source: `prepare_fsdp` in trl's `models/utils.py`, which calls `fully_shard` once.
        """
        reference, policy = BFLOAT16_BYTES * self._parameters, BFLOAT16_BYTES * self.units.tail
        if self.gathering.stay:
            buffer = larger(0, reference - self.kept(alone)[Category.OPTIMIZER_STATE].size) if is_there else 0
            return Term(2 * reference + buffer, lambda: "policy and reference, twice in the first step")
        there = 2 * reference if is_there else 0
        return Term(policy + there, lambda: "the gathered reference, twice, and the root" if is_there else "the root")

    def _next_to_reference(self, gathered: Term) -> Term:
        """Return what is gathered with the whole reference, where it stays: it has no backward, which alone frees it.

        By hand, that of qwen2.5-0.5b: 494,032,768 x 2 B = 988,065,536 B, on each GPU and to the end of the run.

        Source: `FSDPParamGroup.post_forward` in torch's `_fsdp_param_group.py`, and `prepare_fsdp` in trl.
        """
        stays = self._has_reference if self.gathering.stay else False
        whole = BFLOAT16_BYTES * self._parameters
        return chosen(stays, Term(gathered.size + whole, lambda: "the reference, and gathered weights"), gathered)
