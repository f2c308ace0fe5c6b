import pytest
from toy_models import HALF_BILLION, TOY

from profiler.domain.architectures.architecture import Architecture


@pytest.fixture(scope="session")
def half_billion() -> Architecture:
    return HALF_BILLION


@pytest.fixture(scope="session")
def toy() -> Architecture:
    """A model small enough to compute by hand: 2 query heads and 1 key head of 4."""
    return TOY
