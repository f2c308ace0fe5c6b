"""A script may have a trl from before its fused LM head: nothing is patched then."""

import pytest

from profiler.simulation.cuda import trl_kernels


@pytest.mark.parametrize("has_head", [True, False])
def test_the_head_is_patched_where_there_is_one(has_head, monkeypatch):
    from trl.kernels import chunked_logprob

    before = chunked_logprob._use_triton
    if not has_head:
        monkeypatch.setattr(trl_kernels, "find_spec", lambda _: None)
    with trl_kernels.triton_path(recorder=None, products=trl_kernels.Products(None, None, None)):
        assert (chunked_logprob._use_triton is not before) is has_head
    assert chunked_logprob._use_triton is before
