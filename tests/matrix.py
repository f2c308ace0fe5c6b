"""Further values and combinations of values, which `make matrix` runs and `make test` leaves out."""

from typing import Any

import pytest


def further(*cases: Any) -> list[Any]:
    """Mark cases of a test whose kinds of values other cases of it have, in other combinations."""
    return [pytest.param(case, marks=pytest.mark.matrix) for case in cases]
