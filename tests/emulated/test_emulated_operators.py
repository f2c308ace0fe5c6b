"""The benchmark of one operator: without an environment it says why there is none."""

import os

import pytest

from maintenance.benchmarks import emulated_operators
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import Fault, UsageError

H100 = KNOWN_GPUS["h100-80gb"]


def test_without_an_environment_the_reason_is_returned(monkeypatch):
    def none():
        raise UsageError([Fault(key="python", found="none", problem="no environment was found")])

    monkeypatch.setattr(emulated_operators, "emulated_python", none)
    assert "no environment was found" in emulated_operators.operator_seconds(H100)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("EMULATION_PYTHON"), reason="EMULATION_PYTHON names no Python")
def test_an_operator_is_timed_with_values_and_without():
    found = emulated_operators.operator_seconds(H100)
    assert set(found) == {"64 integers", "1,000,000 floats"}
    assert all(0 < seconds < 0.01 for pair in found.values() for seconds in pair)
