"""Python that the autograd engine runs is noticed, with torch's present methods and with those of an older release."""

from typing import Any

import pytest
import torch
from torch.autograd.function import BackwardCFunction

from profiler.simulation.tracing.backward import python_is_running, watched


def noticed_in_backward() -> list[bool]:
    found: list[bool] = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, value: torch.Tensor) -> torch.Tensor:
            return value * 2

        @staticmethod
        def backward(_context: Any, *gradients: Any) -> Any:
            found.append(python_is_running())
            return gradients[0] * 2

    with watched():
        Double.apply(torch.ones(2, requires_grad=True)).sum().backward()
    return [*found, python_is_running()]


def test_the_backward_of_a_function_is_noticed() -> None:
    assert noticed_in_backward() == [True, False]


def test_a_torch_without_boxed_gradients_is_watched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.11 and 2.12 have no `apply_boxed`."""
    monkeypatch.delattr(BackwardCFunction, "apply_boxed")
    assert noticed_in_backward() == [True, False]
    assert not hasattr(BackwardCFunction, "apply_boxed")
