"""What is there when a forward or a backward begins: gradients so far, and what earlier rows keep."""

from dataclasses import dataclass, field

from profiler.analytical.formulas.models.trained import all_gradients
from profiler.analytical.formulas.sizes.quantities import Count
from profiler.analytical.formulas.sizes.term import UNNAMED, Term, Terms
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.domain.memory import Category
from profiler.domain.trials.trial import Logprobs


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """The gradients of a backward."""

    every: Term
    """All `.grad`."""
    earlier: Term
    """Those at its start: of the earlier micro-batches, or rows."""

    @classmethod
    def of(cls, spec: TrialKeys, architecture: DecoderShape) -> "Gradients":
        """Return those of the largest backward of a step."""
        backwards = spec.gradient_accumulation_steps
        if spec.logprobs is Logprobs.MINIBATCH:
            backwards = backwards * spec.per_device_train_batch_size
        every = all_gradients(spec, architecture)
        return cls(every=every, earlier=every.only_if(backwards > 1))

    def after_a_row(self) -> "Gradients":
        """Return those of a later row: autograd buffers what the earlier rows made, as large as all `.grad`."""
        every, earlier = self.every, self.earlier

        def words() -> str:
            return f"2 x {every.words()}" if earlier.size else every.words()

        return Gradients(every=every, earlier=Term(earlier.size + every.size, words))


@dataclass(frozen=True, kw_only=True)
class EarlierRows:
    """Rows whose forward is over and whose own backward waits."""

    rows: Count = 0
    saved: Terms = field(default_factory=dict)
    """What they keep."""

    def named(self, text: str, *only: Category) -> Terms:
        """Return what they keep with `text` as its words, or only those of some categories."""
        return {
            category: Term(term.size, (lambda: text) if not only or category in only else UNNAMED)
            for category, term in self.saved.items()
        }


NO_ROWS = EarlierRows()
