"""Replacing a registered name and restoring it."""

import pytest
import torch
from trl.kernels import chunked_logprob

from profiler.seams.patching import UnregisteredSeamError, patched

HEAD = chunked_logprob.ChunkedLogProbFunction


def test_a_name_is_replaced_and_restored() -> None:
    original = torch.tensor
    with patched([(torch, "tensor", "replacement")]):
        assert torch.tensor == "replacement"
    assert torch.tensor is original


def test_a_static_method_is_restored_as_one() -> None:
    original = vars(HEAD)["forward"]
    with patched([(HEAD, "forward", staticmethod(len))]):
        assert HEAD.forward is len
    assert vars(HEAD)["forward"] is original
    assert isinstance(original, staticmethod)


def test_a_name_that_did_not_exist_is_removed() -> None:
    if hasattr(torch._C, "_cuda_getCurrentRawStream"):
        pytest.skip("this build of torch has it")
    with patched([(torch._C, "_cuda_getCurrentRawStream", None)]):
        assert torch._C._cuda_getCurrentRawStream is None
    assert not hasattr(torch._C, "_cuda_getCurrentRawStream")


def test_names_are_restored_after_an_error() -> None:
    original = torch.tensor
    with pytest.raises(ZeroDivisionError), patched([(torch, "tensor", None)]):
        raise ZeroDivisionError
    assert torch.tensor is original


def test_an_unregistered_name_is_refused_and_the_others_restored() -> None:
    original, unregistered = torch.tensor, torch.relu
    with (
        pytest.raises(UnregisteredSeamError, match=r"torch\.relu is replaced but not registered"),
        patched([(torch, "tensor", None), (torch, "relu", None)]),
    ):
        pytest.fail("the block must not run")
    assert torch.tensor is original
    assert torch.relu is unregistered
