"""A sharding: what one of several GPUs keeps, gathers and reduces; a whole model on each is one.

A sharding: what one of several GPUs keeps of a model, gathers at a time, reduces, and holds while it is loaded.

What a GPU computes is the same as alone: the same rows through the same layers. So an instant under a sharding is that
of one GPU alone, with other weights, states, gradients and communication.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from profiler.analytical.formulas.host import HostSide, more_of_process, process, read_weights, sleeping_engine
from profiler.analytical.formulas.models.parameters import parameter_count
from profiler.analytical.formulas.models.tensor_groups import TensorGroup, count_of
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    all_gradients,
    element_bytes,
    trained_element_bytes,
    trained_tensors,
    trains_everything,
)
from profiler.analytical.formulas.sizes.quantities import (
    Count,
    Term,
    Terms,
    both,
    chosen,
    everywhere,
    holds,
    larger,
    negated,
    one_value,
    smaller,
    where,
    whole_units,
)
from profiler.analytical.formulas.sizes.rounding import block_of, exact, has_expandable_segments
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.optimizers import state_of_tensor
from profiler.analytical.timeline.instants import Instant, InstantName, workspace
from profiler.domain.memory import MIB, Category, Phase
from profiler.domain.text import count_text
from profiler.domain.trials.optimizers import Optimizer, OptimizerTraits

_OWN_SEGMENT_BYTES, _SEGMENT_STEP_BYTES, _LARGEST_REST_BYTES = 10 * MIB, 2 * MIB, MIB


class Sharding:
    """How the GPUs of a job share a model; sizes are those of one GPU, in bytes.

    A sharding says what differs from one GPU that trains alone; this one says that nothing does.
    """

    def kept(self, alone: Instant) -> Terms:  # noqa: ARG002  as all arguments that are not read below
        """Return weights, adapters and states that this GPU keeps at an instant.

        Args:
            alone: The instant on one GPU that trains alone.
        """
        return {}

    def reduced(self, alone: Instant) -> Term | None:  # noqa: ARG002
        """Return the gradients: this GPU's part of those that have been reduced, whole ones before."""
        return None

    def gathered(self, alone: Instant) -> Term | None:  # noqa: ARG002
        """Return the weights that are gathered to compute, and the buffers of what is communicated."""
        return None

    def as_alone(self, alone: Instant) -> Terms:  # noqa: ARG002
        """Return other categories that differ from those of one GPU."""
        return {}

    def at_load(self, alone: Instant) -> tuple[Instant, ...]:
        """Return the instants of loading that are in place of one of one GPU."""
        return (alone,)

    def before(self, earlier: tuple[Instant, ...], alone: Instant) -> tuple[Instant, ...]:  # noqa: ARG002
        """Return the instants that only this sharding has, before an instant that one GPU has too.

        Args:
            earlier: All instants before that one, on one GPU alone.
            alone: The instant.
        """
        return ()

    def shared(self, alone: Instant) -> Instant:
        """Return an instant of one GPU alone with what sharding changes."""
        exchanged = {Category.GRADIENTS: self.reduced(alone), Category.COMMUNICATION: self.gathered(alone)}
        terms = {category: term for category, term in exchanged.items() if term is not None}
        return alone.with_terms({**self.as_alone(alone), **self.kept(alone), **terms})

    def instants(self, alone: tuple[Instant, ...]) -> tuple[Instant, ...]:
        """Return the instants of one of the GPUs, in the order of a step.

        Args:
            alone: Those of one GPU that trains alone.
        """
        found: list[Instant] = []
        for place, each in enumerate(alone):
            if each.phase is Phase.LOAD:
                found += self.at_load(each)
            else:
                found += (*self.before(alone[:place], each), self.shared(each))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class HostPart:
    """One category of some processes of a node."""

    category: Category
    term: Term
    """Of one process."""
    processes: int
    may_be: bool
    """Whether it may be added, and is not counted in the least."""

    @property
    def size_bytes(self) -> int:
        """Of all these processes."""
        return self.processes * int(self.term.size)

    @property
    def words(self) -> str:
        """What one process has."""
        return self.term.text


@dataclass(frozen=True, kw_only=True)
class HostInstant:
    """Memory of the processes of one node at one instant: what is counted, and what may be added to it."""

    phase: Phase
    name: InstantName
    processes: int
    each: Terms
    """Of each process."""
    first: Terms = field(default_factory=dict)
    """What only the first process has."""
    more_of_each: Terms = field(default_factory=dict)
    """What each process has at most, beyond that: it depends on keys and versions that the trial does not say."""
    more_of_first: Terms = field(default_factory=dict)

    @property
    def parts(self) -> tuple["HostPart", ...]:
        """What the processes of the node have, by category; what may be added last."""
        return tuple(
            HostPart(category=category, term=term, processes=processes, may_be=may_be)
            for terms, processes, may_be in (
                (self.each, self.processes, False),
                (self.first, 1, False),
                (self.more_of_each, self.processes, True),
                (self.more_of_first, 1, True),
            )
            for category, term in terms.items()
            if term.size
        )

    @property
    def process_bytes(self) -> int:
        """The least of the first process, which has the most."""
        return _sum_of(self.each) + _sum_of(self.first)

    @property
    def least_bytes(self) -> int:
        """What is counted, of all processes of the node."""
        return self.processes * _sum_of(self.each) + _sum_of(self.first)

    @property
    def most_bytes(self) -> int:
        """The same with all that may be added."""
        return self.least_bytes + self.processes * _sum_of(self.more_of_each) + _sum_of(self.more_of_first)


def _sum_of(terms: Terms) -> int:
    return int(_sum(terms))


def _sum(terms: Terms) -> Count:
    return sum(term.size for term in terms.values())


@dataclass(frozen=True, kw_only=True)
class Units:
    """Parameters of each unit of FSDP."""

    embedding: Count
    """An embedding that is not the LM head; else 0."""
    tail: Count
    """The final norm and the LM head."""
    layer: Count
    """The largest decoder layer, with its adapters."""
    layers: Count
    """All of them."""

    @property
    def root(self) -> Count:
        """Everything outside of layers."""
        return self.embedding + self.tail


def managed_states(optim: Optimizer, tensors: Sequence[TensorGroup]) -> Term:
    """Return the states in managed memory, of which the driver moves to the host what the card has no room for.

    By hand, one tensor of 102,400 values: 2 x 102,400 B in 8 bits, 2 x 102,400 x 4 B in float32.
    """
    traits = optim.traits
    if not traits.is_paged:
        return Term(0)
    unpaged = replace(traits, is_paged=False)

    def states(of: OptimizerTraits, group: TensorGroup) -> Count:
        return group.copies * state_of_tensor(of, group, FLOAT32_BYTES, exact)

    size = sum(states(unpaged, group) - states(traits, group) for group in tensors)
    return Term(size, lambda: "paged states, where the card has no room")


def is_before_training(alone: Instant) -> bool:
    """Return whether a reference scores before training, which alone has no optimizer yet."""
    return alone.phase is Phase.SCORE and Category.OPTIMIZER_STATE not in alone.terms


@dataclass(frozen=True)
class TrialSharding(Sharding):
    """How the GPUs of a trial share its model."""

    spec: TrialKeys
    architecture: DecoderShape

    @cached_property
    def workspace(self) -> Term:
        """The workspaces of the libraries, without the scratch of an optimizer's step."""
        return workspace(self.spec.gpu, block_of(self.spec))

    @property
    def _trains_everything(self) -> bool:
        return trains_everything(self.spec)

    @cached_property
    def _trained(self) -> tuple[TensorGroup, ...]:
        return trained_tensors(self.spec, self.architecture)

    def _sharded(self, count: Count, element: Count, times: str) -> Term:
        """Return `count` values over all GPUs."""
        gpus = self.spec.num_processes
        return Term(
            whole_units(count * element, gpus), lambda: f"{count_text(count)} {times} {element} B / {gpus} GPUs"
        )

    def _unsplit(self, size: Count) -> Count:
        """Return the rest of the segment of a tensor that stays, if it is too small to be split off: at most 1 MiB.

        A tensor of 10 MiB or more has a segment of its own, in steps of 2 MiB, where no free block is large enough. The
        allocator counts the rest as allocated. Expandable segments are split at any size.

        By hand, 25 MiB in a segment of 26: 1 MiB. 24.5 MiB: the other 1.5 MiB are split off, so 0.

        Source: `get_allocation_size` and `should_split` in `c10/cuda/CUDACachingAllocator.cpp`.
        """
        rest = -size % _SEGMENT_STEP_BYTES
        stays = both(size >= _OWN_SEGMENT_BYTES, rest <= _LARGEST_REST_BYTES)
        expands = holds(self.spec.alloc_conf, has_expandable_segments)
        return where(both(stays, negated(expands)), rest, 0)

    @cached_property
    def _parameters(self) -> Count:
        return parameter_count(self.architecture)

    def host(self) -> HostSide:
        """Return what a process has on the host.

        It copies what is trained to the host to save it: `_to_ndarray` of safetensors 0.8 does so with each tensor of a
        file, and `max_shard_size` of transformers 5.23 is 50 GB; peft saves adapters only.
        """
        element, count = trained_element_bytes(self.spec), count_of(self._trained)
        return HostSide(
            read=read_weights(self.spec, self.architecture),
            saved=Term(element * count, lambda: f"{count_text(count)} x {element} B, copied to be written"),
        )

    def on_host(self, processes: int) -> tuple[HostInstant, ...]:
        """Return the instants of the processes of one node.

        Args:
            processes: Those of the node.
        """
        side, spec = self.host(), self.spec
        common, libraries = {Category.OTHER: process()}, {Category.OTHER: more_of_process()}
        trains = {**common, **side.offloaded}
        may_move = {
            **libraries,
            Category.OPTIMIZER_STATE: managed_states(one_value(spec.optim), self._trained),
            Category.GRADIENTS: side.pinning,
            Category.ENGINE: sleeping_engine(spec, self.architecture),
        }
        reading = {**common, Category.WEIGHTS: side.read}
        of_node = partial(HostInstant, processes=processes)
        return (
            of_node(phase=Phase.LOAD, name=InstantName.READING, each=reading, more_of_each=libraries),
            of_node(phase=Phase.OPTIMIZER, name=InstantName.STEP, each=trains, more_of_each=may_move),
            of_node(
                phase=Phase.CHECKPOINT,
                name=InstantName.SAVING,
                each=trains,
                first={Category.WEIGHTS: side.saved},
                more_of_each=may_move,
                more_of_first={Category.OPTIMIZER_STATE: side.saved_at_most},
            ),
        )


BROADCAST_BYTES = 250 * MIB
"""DDP sends the model of the first process in tensors of 250 MiB, and up to a parameter more, two at a time.

They are copies of the parameters of one type, in their order; the tensors are sent in the order of their first
parameters, so that adapters of another type come second. One that fills a tensor by itself is not copied.

Source: `broadcast_bucket_size` of `DistributedDataParallel`, `broadcast_coalesced` in torch's
`csrc/distributed/c10d/comm.cpp`, and `flatten_dense_tensors` of ATen.
"""


@dataclass(frozen=True)
class Replicated(TrialSharding):
    """DDP, whose buckets all instants have that follow loading."""

    def gathered(self, alone: Instant) -> Term:  # noqa: ARG002  the same at every instant
        """Return DDP's buckets."""
        return self.buckets

    def at_load(self, alone: Instant) -> tuple[Instant, ...]:
        """Return loading, and the instant at which DDP has all models: what it sends, or then its buckets.

        An LM head of its own is in the last of the tensors. The embedding comes first, and is sent as it is if it is
        large enough. By hand, qwen2.5-0.5b in float32 by LoRA: 2 x 250 MiB are more than the buckets of 8,798,208
        values; in bfloat16 adapters come between 250 MiB and the rest, of which 432.6 MiB are the second and the third
        tensor; qwen2.5-7b: 250 MiB and a head of 152,064 x 3,584 x 2 B. qwen2.5-0.5b by QLoRA: 457,187,808 B of weights
        without the embedding's 272,269,312 B, and the adapters.
        """
        if alone.name is InstantName.ENGINE_START or everywhere(self.spec.num_processes == 1):
            return (alone,)
        models: Terms = {name: term for name, term in alone.terms.items() if name is not Category.WORKSPACE}
        shape, element = self.architecture, element_bytes(self.spec)
        table = element.weight * shape.vocab_size * shape.hidden_size
        head = 0 if shape.scores else where(shape.tie_word_embeddings, 0, table)
        at_once = BROADCAST_BYTES + larger(head, BROADCAST_BYTES)
        copied = _sum(models) - where(table >= BROADCAST_BYTES, table, 0)
        adapters = models[Category.ADAPTERS].size
        others = copied - adapters
        come_second = both(both(adapters > 0, element.weight != element.adapter), head == 0)
        parted = larger(others - BROADCAST_BYTES, smaller(others, BROADCAST_BYTES) + adapters)
        size = smaller(copied, where(come_second, smaller(at_once, parted), at_once))
        sent = Term(size, lambda: "what DDP sends of the model at a time")
        more: Terms = {Category.COMMUNICATION: chosen(sent.size >= self.buckets.size, sent, self.buckets)}
        has_several = self.spec.num_processes > 1
        return (alone, replace(alone, name=InstantName.REPLICATED, terms={**models, **more}, happens=has_several))

    @cached_property
    def buckets(self) -> Term:
        """DDP's buckets: one value per trained parameter; 0 for a single process.

        They exist alongside the gradients, because accelerate leaves `gradient_as_bucket_view` off.

        By hand, qwen2.5-0.5b full in bfloat16 on 2 GPUs: 494,032,768 x 2 B = 988,065,536 B.

        Source: `Reducer::initialize_buckets` in torch's `csrc/distributed/c10d/reducer.cpp`.
        """
        gradients = all_gradients(self.spec, self.architecture)
        buckets = Term(gradients.size, lambda: f"DDP's buckets: {gradients.words()}")
        return buckets.only_if(self.spec.num_processes > 1)
