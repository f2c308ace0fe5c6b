"""Further values and combinations of values, which `make matrix` runs and `make test` leaves out."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def with_further(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Return the cases of a test, of which those that are not kept are further ones."""
    return [case if case in kept else further(case)[0] for case in cases]


def further(*cases: Any) -> list[Any]:
    """Mark cases of a test whose kinds of values other cases of it have, in other combinations."""
    return [pytest.param(case, marks=pytest.mark.matrix) for case in cases]
