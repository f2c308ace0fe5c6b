"""A row of the table of formulas by hand, and its arguments at other sizes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from profiler.analytical.formulas.models.tensor_groups import TensorGroup
from profiler.analytical.formulas.sizes.trial_keys import Batch, with_keys
from profiler.domain.trials.trial import TrialSpec


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of a formula, worked out by hand."""

    formula: Callable[..., Any]
    arguments: tuple[Any, ...]
    keys: Mapping[str, Any] = field(default_factory=dict)
    size: int
    working: str = ""
    """The number in words, or what the case is about."""
    part: str = ""
    """The part of the result, where it has several."""
    can_fall: bool = False
    """Whether more rows or tokens may need less: what is freed in the same moment is subtracted."""

    of_arrays: bool = True
    """Whether the formula also computes arrays of configurations; those of verl compute one job."""

    def bytes_of(self, arguments: tuple[Any, ...], keys: Mapping[str, Any]) -> Any:
        """Return the number for arguments of the same form."""
        found = self.formula(*arguments, **keys)
        found = getattr(found, self.part) if self.part else found
        return found.size if hasattr(found, "words") else found

    def growing(self) -> list[str]:
        """Return what can grow in the arguments."""
        every = (*self.arguments, *self.keys.values())
        found = []
        if any(isinstance(each, Batch) for each in every):
            found += ["rows", "tokens"]
        if any(isinstance(each, TrialSpec) for each in every):
            found += ["lengths"]
        if any(isinstance(each, list) for each in every):
            found += ["tensors"]
        counts = [each for each in self.arguments if type(each) is int]
        if counts or {"sequences", "tokens"} & set(self.keys):
            found += ["counts"]
        return found

    def scaled(self, what: str, factor: Any) -> Any:
        """Return the number with arguments `factor` times as large; an array of factors gives an array of numbers."""
        arguments = tuple(_scaled(each, what, factor) for each in self.arguments)
        keys = {
            key: _scaled(value, what, factor) if key in ("sequences", "tokens") or type(value) is not int else value
            for key, value in self.keys.items()
        }
        return self.bytes_of(arguments, keys)


def _scaled(value: Any, what: str, factor: Any) -> Any:
    if isinstance(value, Batch) and what == "rows":
        return replace(value, rows=value.rows * factor, scored_tokens=value.scored_tokens * factor)
    if isinstance(value, Batch) and what == "tokens":
        grown = value.completion_tokens * factor
        return replace(
            value,
            prompt_tokens=value.prompt_tokens * factor,
            completion_tokens=grown,
            scored_tokens=value.scored_tokens * factor,
        )
    if isinstance(value, TrialSpec) and what == "lengths":
        rows = value.per_device_train_batch_size * factor
        return with_keys(
            value,
            per_device_train_batch_size=rows,
            generation_batch_size=rows * value.steps_per_generation,
            max_completion_length=value.max_completion_length * factor,
        )
    if isinstance(value, list) and what == "tensors":
        return [replace(each, shape=(each.shape[0] * factor, *each.shape[1:])) for each in value]
    if type(value) is int and what == "counts":
        return value * factor
    return value


def row(formula, *arguments, is_=0, why="", part="", can_fall=False, of_arrays=True, **keys):
    """Return a row whose arguments are written as in a call."""
    return Row(
        formula=formula,
        arguments=arguments,
        keys=keys,
        size=is_,
        working=why,
        part=part,
        can_fall=can_fall,
        of_arrays=of_arrays,
    )


def as_array(factors: list[int]) -> Any:
    """Return factors as the numbers of many configurations."""
    return np.array(factors, dtype=np.int64)


def group(*shape: int, copies: int = 1) -> TensorGroup:
    """Return parameters of one shape."""
    return TensorGroup(shape=shape, copies=copies)
