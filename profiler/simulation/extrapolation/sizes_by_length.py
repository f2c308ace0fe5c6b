"""Sizes of blocks as functions of the lengths of micro-batches."""

from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement

import numpy as np
import numpy.typing as npt

from profiler.allocator.settings import MIN_BLOCK_BYTES
from profiler.analytical.formulas.head import TOKEN_CHUNK
from profiler.domain.trials.step_shapes import MicroBatch

Numbers = npt.NDArray[np.int64]

_COMBINED = 20
"""Features of which two are tried together."""

_MULTIPLES = (8, 128)
"""Kernels and masks round lengths up to them."""


def features(batch: MicroBatch, place: int) -> list[int]:
    """Return the numbers of which sizes are linear functions, the simplest first.

    By hand, a prompt of 3 and a completion of 4 tokens, 5 scored in one part, in place 2: 7 in a row, 3, 4, 5 in all,
    5; both again, but not more than a tile of trl's LM head has; 49, 7 x 8, the lengths rounded up to 8 and to
    128, 9, 12, 16; and where the micro-batch begins among the rows of its generation, 14, 6, 8.
    """
    row = sum(batch.widths)
    rounded = [-(-length // multiple) * multiple for multiple in _MULTIPLES for length in (row, *batch.widths)]
    products = [one * other for one, other in combinations_with_replacement(batch.widths, 2)]
    begins = [place * length for length in (row, *batch.widths)]
    scored = [sum(batch.scored), *batch.scored]
    tiles = [min(tokens, TOKEN_CHUNK) for tokens in scored]
    return [row, *batch.widths, *scored, *tiles, row * row, row * rounded[0], *rounded, *products, *begins]


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Values, each a constant and the multiples of two features."""

    constant: Numbers
    feature: Numbers
    """[2, values]: numbers of the features; those that are not needed have 0 of feature 0."""
    factor: Numbers
    """[2, values]."""

    def of(self, found: Numbers) -> Numbers:
        """Return the values for these features."""
        values: Numbers = self.constant + (self.factor * found[self.feature]).sum(axis=0)
        return values


def smallest_blocks(sizes: Numbers) -> Numbers:
    """Return sizes, [occurrences, blocks], of which those that are always of a smallest block have its size.

    They are counts of rows, which only the values of tokens decide.
    """
    is_smallest = (sizes > 0).all(axis=0) & (sizes <= MIN_BLOCK_BYTES).all(axis=0)
    found: Numbers = np.where(is_smallest, MIN_BLOCK_BYTES, sizes)
    return found


def fitted(found: Numbers, values: Numbers) -> Fitted | int:
    """Return integers as functions of the features; or the number of one that is none.

    Args:
        found: [occurrences, features], the likeliest first; the first ones are combined.
        values: [occurrences, values].
    """
    constant, count = values[0].copy(), values.shape[1]
    feature, factor = np.zeros((2, count), dtype=np.int64), np.zeros((2, count), dtype=np.int64)
    left = np.flatnonzero((values != values[0]).any(axis=0))
    for number in range(found.shape[1]):
        if not len(left):
            break
        base, slope = _line(found[:, number], values[:, left])
        fits = (base + slope * found[:, [number]] == values[:, left]).all(axis=0)
        done = left[fits]
        constant[done], feature[0, done], factor[0, done] = base[fits], number, slope[fits]
        left = left[~fits]
    for one, other in combinations(range(min(_COMBINED, found.shape[1])), 2):
        if not len(left):
            break
        fits, solution = _plane(found[:, [one, other]], values[:, left])
        done = left[fits]
        constant[done], factor[0, done], factor[1, done] = solution[:, fits]
        feature[0, done], feature[1, done] = one, other
        left = left[~fits]
    return int(left[0]) if len(left) else Fitted(constant=constant, feature=feature, factor=factor)


def _line(found: Numbers, values: Numbers) -> tuple[Numbers, Numbers]:
    """Return constant and slope of the line through the least and the greatest value of a feature."""
    low, high = int(found.argmin()), int(found.argmax())
    width = max(1, int(found[high] - found[low]))
    slope = (values[high] - values[low]) // width
    return values[low] - slope * found[low], slope


def _plane(found: Numbers, values: Numbers) -> tuple[npt.NDArray[np.bool_], Numbers]:
    """Return which values are a constant and whole multiples of two features, and [constant, multiples] of each."""
    scale = np.maximum(1, np.abs(found).max(axis=0))
    design = np.concatenate([np.ones((len(found), 1)), found / scale], axis=1)
    solution, _, rank, _ = np.linalg.lstsq(design, values.astype(np.float64), rcond=None)
    if rank < design.shape[1]:
        return np.zeros(values.shape[1], dtype=np.bool_), np.zeros((3, values.shape[1]), dtype=np.int64)
    slopes = np.rint(solution[1:] / scale[:, None]).astype(np.int64)
    constant = values[0] - found[0] @ slopes
    return (constant + found @ slopes == values).all(axis=0), np.concatenate([constant[None], slopes])
