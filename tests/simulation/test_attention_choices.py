"""The choice of the attention kernel, compared with torch's CUDA build (emulated/README.md)."""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated.attention_requests import BLOCKS, arguments, points
from hypothesis import given
from hypothesis import strategies as some

from profiler.simulation.cuda.fused_attention.attention import Kernel, Mask, Request, choose_kernel, request_of

TABLE = Path(__file__).parent / "emulated" / "attention_choices.json.gz"
CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


@cache
def recorded() -> Mapping[str, Any]:
    return json.loads(gzip.decompress(TABLE.read_bytes()))


def requests(capability: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Each point with the kernel that torch takes and the one that is chosen here, by their first letters."""
    for axes, letters in zip(recorded()["axes"], recorded()["answers"][capability], strict=True):
        for point, letter in zip(points(axes), letters, strict=True):
            (query, key, value, mask, dropout, is_causal), named = arguments(point, "meta")
            request = request_of(
                (query, key, value),
                mask,
                compute_capability=tuple(map(int, capability.split("."))),
                dropout=dropout,
                is_causal=is_causal,
                **named,
            )
            yield point, letter, choose_kernel(request).value[0]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_kernel_is_the_one_that_torch_takes(capability: str) -> None:
    differing = [found for found in requests(capability) if found[1] != found[2]]
    assert not differing, f"{len(differing)} requests; the first: {differing[:10]}"


def test_the_table_asks_for_thousands_of_requests_on_every_capability() -> None:
    assert [list(axes.items()) for axes in recorded()["axes"]] == [list(axes.items()) for axes in BLOCKS]
    assert set(recorded()["answers"]) == set(CAPABILITIES)
    counts = {capability: sum(map(len, blocks)) for capability, blocks in recorded()["answers"].items()}
    assert set(counts.values()) == {16_128}


def test_the_table_is_of_the_installed_torch() -> None:
    assert recorded()["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]


def a_request(draw: some.DrawFn) -> Request:
    rows, heads, queries, keys = (draw(some.integers(1, 130)) for _ in range(4))
    width, value_width = (draw(some.sampled_from((8, 20, 64, 128, 192, 256, 264))) for _ in range(2))
    return Request(
        query=torch.Size((rows, heads, queries, width)),
        key=torch.Size((rows, heads, keys, width)),
        value=torch.Size((rows, heads, keys, value_width)),
        dtype=draw(some.sampled_from((torch.bfloat16, torch.float16, torch.float32))),
        compute_capability=draw(some.sampled_from(((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)))),
        mask=draw(some.sampled_from((None, Mask(shape=torch.Size((rows, 1, queries, keys)))))),
        is_causal=draw(some.booleans()),
        dropout=draw(some.sampled_from((0.0, 0.1, 0.125))),
        wants_gradient=draw(some.booleans()),
    )


@given(some.composite(a_request)())
def test_inputs_that_each_kernel_never_accepts(request: Request) -> None:
    kernel = choose_kernel(request)
    if request.dtype is torch.float32:
        assert kernel in (Kernel.EFFICIENT, Kernel.MATH)
    if request.compute_capability not in ((9, 0), (10, 0)):
        assert kernel is not Kernel.CUDNN
    if request.mask is not None:
        assert kernel is not Kernel.FLASH
    if kernel is Kernel.FLASH:
        assert request.query[-1] == request.value[-1]


@given(some.composite(a_request)())
def test_a_kernel_that_trains_runs_without_gradient_or_a_faster_one_does(request: Request) -> None:
    order = list(Kernel)
    with_gradient = choose_kernel(replace(request, wants_gradient=True))
    without = choose_kernel(replace(request, wants_gradient=False))
    assert order.index(without) <= order.index(with_gradient)


@given(some.composite(a_request)(), some.integers(1, 4))
def test_more_rows_never_change_the_kernel(request: Request, more: int) -> None:
    def repeated(shape: torch.Size) -> torch.Size:
        return torch.Size((shape[0] * more, *shape[1:]))

    mask = None if request.mask is None else Mask(shape=repeated(request.mask.shape))
    bigger = replace(
        request, query=repeated(request.query), key=repeated(request.key), value=repeated(request.value), mask=mask
    )
    assert choose_kernel(bigger) is choose_kernel(request)
