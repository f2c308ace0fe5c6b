"""A sharding: what one of several GPUs keeps, gathers and reduces; a whole model on each is one.

A sharding: what one of several GPUs keeps of a model, gathers at a time, reduces, and holds while it is loaded.

What a GPU computes is the same as alone: the same rows through the same layers. So an instant under a sharding is that
of one GPU alone, with other weights, states, gradients and communication.
"""

from dataclasses import dataclass
from functools import cached_property

from profiler.analytical.formulas.models.trained import all_gradients
from profiler.analytical.formulas.sizes.quantities import Term, Terms
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.timeline.instants import Instant, workspace
from profiler.domain.memory import Category, Phase


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


@dataclass(frozen=True)
class TrialSharding(Sharding):
    """How the GPUs of a trial share its model."""

    spec: TrialKeys
    architecture: DecoderShape

    @cached_property
    def workspace(self) -> Term:
        """The workspaces of the libraries, without the scratch of an optimizer's step."""
        return workspace(self.spec.gpu, block_of(self.spec))


@dataclass(frozen=True)
class Replicated(TrialSharding):
    """DDP, whose buckets all instants have that follow loading."""

    def gathered(self, alone: Instant) -> Term:  # noqa: ARG002  the same at every instant
        """Return DDP's buckets."""
        return self.buckets

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
