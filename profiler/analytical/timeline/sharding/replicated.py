"""A whole model on each GPU: one GPU alone, or several by DDP."""

from dataclasses import dataclass
from functools import cached_property

from profiler.analytical.formulas.models.trained import all_gradients
from profiler.analytical.formulas.sizes.term import Term
from profiler.analytical.timeline.instants import Instant
from profiler.analytical.timeline.sharding.sharding import TrialSharding


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
