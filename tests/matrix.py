"""Further values and combinations of values, which `make matrix` runs and `make test` leaves out."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def with_further(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Return the cases of a test, of which those that are not kept are further ones.

    Raises:
        ValueError: What is kept is none of the cases, or nothing is.
    """
    found = list(cases)
    if not kept or not all(case in found for case in kept):
        raise ValueError(f"{list(kept)} are not all among the cases")
    return [case if case in kept else further(case)[0] for case in found]


def further(*cases: Any) -> list[Any]:
    """Mark cases of a test whose kinds of values other cases of it have, in other combinations."""
    return [pytest.param(case, marks=pytest.mark.matrix) for case in cases]
