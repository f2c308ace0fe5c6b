"""Estimates of many trials, and limits of cards over two keys, between and around the trials that ran."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from profiler.analysis.compared.axes import Surface
from profiler.analysis.compared.cells import KeyValue, Number
from profiler.analysis.findings.answers import LIMIT_CARDS, EstimatedLimit
from profiler.analytical.formulas.sizes.rounding import unreleasable_bytes
from profiler.analytical.many import EstimateTable, estimate_table, fits_in_arrays, product_table
from profiler.config.models.architecture import read_architecture
from profiler.config.trials.demand import grows
from profiler.config.trials.identity import spec_from_mapping
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.card import outside_torch_bytes
from profiler.domain.cards.gpu import Gpu
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.trials.keys import Kind
from profiler.domain.trials.trial import SPEC_KEYS, TrialSpec, key_named

if TYPE_CHECKING:
    from profiler.analytical.formulas.sizes.quantities import Array

POINTS = 100_000
"""Estimated trials of all limits of a surface together."""
_MICRO_BATCHES = ("gradient_accumulation_steps", "steps_per_generation")
"""Between values of which one divides the other, memory is not between theirs."""


def estimated_limits(surface: Surface) -> tuple[EstimatedLimit, ...]:
    """Return the free memory of each card of `LIMIT_CARDS` over the keys of a surface, from `POINTS` estimates at most.

    Rules between keys are not checked: a limit passes between the values that they allow. There is none if memory does
    not grow with both keys, if another key varies in a way that does not follow one of them, if the model is not built
    in or has no closed form, and if a size would exceed 64 bits.
    """
    architecture = _architecture(surface.model)
    factors = _factors(surface)
    base = _largest(surface)
    if architecture is None or factors is None or not _grow(surface.keys, base):
        return ()
    if not fits_in_arrays(base):
        return ()
    axes, known = _sampled(surface), {base.model: architecture}
    tied = {key: (axis, [factor * value for value in axes[axis]]) for key, (axis, factor) in factors.items()}
    return tuple(
        _limit(
            gpu,
            base.num_processes,
            axes,
            estimate_table(product_table(replace(base, gpu=gpu.name), axes, known, tied=tied)),
        )
        for gpu in LIMIT_CARDS
    )


def _limit(gpu: Gpu, gpus: int, axes: Mapping[str, Sequence[Number]], estimates: EstimateTable) -> EstimatedLimit:
    allocated, reserved = (
        cast("Array", peaks) for peaks in (estimates.peak_allocated_bytes, estimates.peak_reserved_bytes)
    )
    needed = unreleasable_bytes(allocated, reserved)
    left = gpu.memory_bytes - outside_torch_bytes(gpu.compute_capability, gpus) - needed
    one, other = (np.array(values) for values in axes.values())
    return EstimatedLimit(gpu=gpu, values=(one, other), left_bytes=left.reshape(len(one), len(other)))


def _architecture(model: str) -> Architecture | None:
    """Return the architecture of a built-in model for which there is a closed form."""
    known = find_builtin(model)
    if known is None:
        return None
    architecture = read_architecture(known.config, model=model)
    return architecture if architecture.has_closed_form else None


def _grow(keys: Sequence[str], base: TrialSpec) -> bool:
    return all(grows(key_named(key), base) and key not in _MICRO_BATCHES for key in keys)


def _largest(surface: Surface) -> TrialSpec:
    """Return the specification of the trial with the largest values of both keys."""
    keys = surface.cells[max(surface.cells)].keys
    return spec_from_mapping({key: keys[key] for key in SPEC_KEYS})


def _factors(surface: Surface) -> Mapping[str, tuple[str, int]] | None:
    """Return the keys that vary as multiples of a key of the surface, with that key and the factor.

    None if a key varies in another way.
    """
    cells = surface.cells.values()
    varying = [key for key in SPEC_KEYS if key not in surface.keys and len({cell.keys[key] for cell in cells}) > 1]
    found = {key: _followed(key, surface) for key in varying}
    known = {key: followed for key, followed in found.items() if followed is not None}
    return known if len(known) == len(found) else None


def _followed(key: str, surface: Surface) -> tuple[str, int] | None:
    for axis in surface.keys:
        ratios = {_ratio(cell.keys[key], cell.keys[axis]) for cell in surface.cells.values()}
        if len(ratios) == 1 and (ratio := ratios.pop()) is not None:
            return axis, ratio
    return None


def _ratio(value: KeyValue, of: KeyValue) -> int | None:
    """Return `value / of` if both are counts and the quotient is whole."""
    if isinstance(value, int) and isinstance(of, int) and of > 0 and value % of == 0:
        return value // of
    return None


def _sampled(surface: Surface) -> dict[str, Sequence[Number]]:
    """Return values of each key from its smallest to its largest, as many of each as `POINTS` allows."""
    each = POINTS // len(LIMIT_CARDS)
    wide, narrow = sorted(zip(surface.keys, surface.values, strict=True), key=_distinct, reverse=True)
    sampled = {narrow[0]: _between(*narrow, most=math.isqrt(each))}
    sampled[wide[0]] = _between(*wide, most=each // len(sampled[narrow[0]]))
    return {key: sampled[key] for key in surface.keys}


def _distinct(axis: tuple[str, Sequence[Number]]) -> Number:
    """Return how many values a key can have between the ends of its axis."""
    key, values = axis
    return values[-1] - values[0] if key_named(key).kind is Kind.COUNT else POINTS


def _between(key: str, values: Sequence[Number], *, most: int) -> Sequence[Number]:
    """Return at most `most` values between the ends, at equal ratios, as figures of growth place them."""
    low, high = values[0], values[-1]
    spaced = np.geomspace(low, high, most) if low > 0 else np.linspace(low, high, most)
    if key_named(key).kind is not Kind.COUNT:
        return tuple(spaced.tolist())
    return tuple(np.unique(np.rint(spaced).astype(np.int64)).tolist())
