"""Linear layers and parameters, as the formulas count them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from profiler.analytical.formulas.sizes.quantities import Count, Flag


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A linear layer of each decoder layer."""

    name: str
    in_features: Count
    out_features: Count
    has_bias: Flag = False

    @property
    def weights(self) -> Count:
        """Elements of the weight matrix."""
        return self.in_features * self.out_features


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Parameters of the same shape."""

    shape: tuple[Count, ...]
    copies: Count
    """Number of tensors; 0 if the model has none."""
    is_embedding: bool = False
    """Whether it is the weight of an `nn.Embedding` (a tied LM head is the same parameter)."""

    @property
    def elements(self) -> Count:
        """Elements of one tensor."""
        return prod(self.shape)

    @property
    def total(self) -> Count:
        """Elements of all tensors."""
        return self.elements * self.copies


def count_of(groups: Sequence[TensorGroup]) -> Count:
    """Return the elements of all `groups`."""
    return sum(group.total for group in groups)
