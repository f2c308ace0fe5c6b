"""A whole model on each GPU: one GPU alone, or several by DDP."""

from dataclasses import dataclass
from functools import cached_property

from profiler.analytical.formulas.models.trained import gradient_bytes, trainable_parameter_count, trained_element_bytes
from profiler.analytical.formulas.sizes.quantities import where
from profiler.analytical.timeline.instants import Instant, Term
from profiler.analytical.timeline.sharding.sharding import TrialSharding
from profiler.domain.text.count_text import count_text


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

        def words() -> str:
            count = count_text(trainable_parameter_count(self.spec, self.architecture))
            return f"DDP's buckets: {count} x {trained_element_bytes(self.spec)} B"

        return Term(where(self.spec.num_processes > 1, gradient_bytes(self.spec, self.architecture), 0), words)
