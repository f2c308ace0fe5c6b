"""Small programs that run on a CUDA device and on the simulated one; what each asks of the allocator is compared."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Program = Callable[[], Any]
BF16 = torch.bfloat16


def _attention(
    device: str,
    *,
    heads: int = 4,
    key_heads: int = 4,
    tokens: int = 100,
    keys: int = 100,
    width: int = 64,
    dtype: torch.dtype = BF16,
    mask: str = "none",
    trains: bool = True,
    keeps_inputs: bool = True,
) -> Program:
    shapes = ((tokens, heads), (keys, key_heads), (keys, key_heads))
    states = [
        torch.empty((2, count, number, width), dtype=dtype, device=device).transpose(1, 2).requires_grad_(trains)
        for count, number in shapes
    ]
    gradient = torch.empty((2, tokens, heads, width), dtype=dtype, device=device).transpose(1, 2)
    blocked = {
        "none": None,
        "bool": torch.ones((2, 1, tokens, keys), dtype=torch.bool, device=device),
        "additive": torch.empty((2, 1, tokens, keys), dtype=dtype, device=device),
    }[mask]

    def run() -> Any:
        # Products in front, so that the kernel's inputs are held by its node alone if they are not kept.
        made = [part * 1 for part in states] if not keeps_inputs else states
        output = functional.scaled_dot_product_attention(
            *made, attn_mask=blocked, is_causal=mask == "none" and tokens == keys, enable_gqa=heads != key_heads
        )
        del made
        if trains:
            output.backward(gradient)
        return output, [part.grad for part in states]

    return run


def _checkpointed_attention(device: str, *, masked: bool) -> Program:
    """What was saved is made again in backward, and nothing but the kernel's node holds it then."""
    states = torch.empty((2, 100, 4, 64), dtype=BF16, device=device).transpose(1, 2).requires_grad_()
    gradient = torch.empty((2, 100, 4, 64), dtype=BF16, device=device).transpose(1, 2)
    mask = torch.ones((2, 1, 100, 100), dtype=torch.bool, device=device) if masked else None

    def attend(hidden: torch.Tensor) -> torch.Tensor:
        # Of three sizes, so that the order shows.
        query, key, value = hidden * 1, (hidden * 1)[:, :2] * 1, (hidden * 1)[:, 2:] * 1
        if masked:
            key, value = (part.repeat(1, 2, 1, 1) for part in (key, value))
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=not masked)

    def run() -> Any:
        output = checkpoint(attend, states, use_reentrant=False, preserve_rng_state=False, determinism_check="none")
        output.backward(gradient)
        return output, states.grad

    return run


def _embedding(device: str, *, tokens: int, rows: int = 512, width: int = 64, dtype: torch.dtype = BF16) -> Program:
    weight = torch.empty((rows, width), dtype=dtype, device=device).requires_grad_()
    ids = torch.zeros((1, tokens), dtype=torch.int64, device=device)
    gradient = torch.empty((1, tokens, width), dtype=dtype, device=device)

    def run() -> Any:
        functional.embedding(ids, weight).backward(gradient)
        return weight.grad

    return run


def _convolution(device: str, *, contiguous: bool, dtype: torch.dtype = BF16) -> Program:
    """The convolution of linear attention: each channel by itself, over tokens that are the last dimension or not."""
    shape = (2, 96, 100) if contiguous else (2, 100, 96)
    made = torch.empty(shape, dtype=dtype, device=device)
    states = (made if contiguous else made.transpose(1, 2)).requires_grad_()
    weight = torch.empty((96, 1, 4), dtype=dtype, device=device).requires_grad_()
    gradient = torch.empty((2, 100, 96), dtype=dtype, device=device).transpose(1, 2)

    def run() -> Any:
        result = functional.conv1d(states, weight, None, padding=3, groups=96)[:, :, :100]
        result.backward(gradient)
        return result, states.grad, weight.grad

    return run


def _solved(device: str, *, batch: int) -> Program:
    """The triangular systems of a chunked delta rule, which share their matrix."""
    shapes = ((batch, 3, 64, 64), (batch, 3, 64, 32))
    system, right = (torch.empty(shape, device=device).requires_grad_() for shape in shapes)
    gradient = torch.empty(shapes[1], device=device)

    def run() -> Any:
        result = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        result.backward(gradient)
        return result, system.grad, right.grad

    return run


def _cumulative(device: str, *, contiguous: bool) -> Program:
    """Sums along the last dimension, as the decay of linear attention."""
    made = torch.empty((2, 4, 3, 64) if contiguous else (2, 3, 64, 4), device=device)
    states = (made if contiguous else made.permute(0, 3, 1, 2)).requires_grad_()
    gradient = torch.empty((2, 4, 3, 64), device=device)

    def run() -> Any:
        result = states.cumsum(dim=3)
        result.backward(gradient)
        return result, states.grad

    return run


def _softmax(device: str, *, dtype: torch.dtype, to: torch.dtype | None = None, log: bool = False) -> Program:
    scores = torch.empty((4, 100, 500), dtype=dtype, device=device).requires_grad_()
    gradient = torch.empty((4, 100, 500), dtype=to or dtype, device=device)

    def run() -> Any:
        function = functional.log_softmax if log else functional.softmax
        result = function(scores, dim=-1, dtype=to)
        result.backward(gradient)
        return result, scores.grad

    return run


def _linear(device: str, *, bias: bool, first: bool = True, dtype: torch.dtype = BF16) -> Program:
    inputs = torch.empty((64, 128), dtype=dtype, device=device).requires_grad_()
    weight = torch.empty((256, 128), dtype=dtype, device=device).requires_grad_()
    offset = torch.empty((256,), dtype=dtype, device=device).requires_grad_() if bias else None
    gradient = torch.empty((64, 256), dtype=dtype, device=device)

    def run() -> Any:
        result = functional.linear(inputs, weight, offset)
        result.backward(gradient)
        return result, inputs.grad, weight.grad, None if offset is None else offset.grad

    if not first:
        run()
    return run


def _autocast(device: str, *, bias: bool, trained: bool) -> Program:
    # Warm: the thread's workspace is there.
    warm = torch.empty((8, 8), device=device)
    warm @ warm
    inputs = torch.empty((60, 128), device=device)
    weight = torch.empty((256, 128), device=device).requires_grad_(trained)
    offset = torch.empty((256,), device=device).requires_grad_(trained) if bias else None

    def run() -> Any:
        with torch.autocast(device, dtype=BF16):
            return functional.linear(inputs, weight, offset)

    return run


def _norm_under_autocast(device: str) -> Program:
    inputs = torch.empty((60, 128), dtype=BF16, device=device)
    weight = torch.empty((128,), dtype=BF16, device=device)
    offset = torch.empty((128,), dtype=BF16, device=device)

    def run() -> Any:
        with torch.autocast(device, dtype=BF16):
            return functional.layer_norm(inputs, (128,), weight, offset)

    return run


def _gathered(device: str) -> Program:
    logits = torch.empty((8, 1000), device=device).requires_grad_()
    places = torch.zeros((8, 1), dtype=torch.int64, device=device)

    def run() -> Any:
        result = logits.gather(1, places)
        result.backward(torch.empty_like(result))
        return logits.grad

    return run


def _used_twice(device: str) -> Program:
    values = torch.empty((64, 96), device=device).requires_grad_()

    def run() -> Any:
        inner = values * 2
        result = inner.sin() * inner.cos()
        result.backward(torch.empty_like(result))
        return values.grad

    return run


def _clipped(device: str) -> Program:
    gradients = [torch.empty(size, dtype=BF16, device=device) for size in (200_000, 64, 64)]
    return lambda: torch._foreach_norm(gradients)


ATTENTION: dict[str, Callable[[str], Program]] = {
    "attention": lambda device: _attention(device),
    "attention, inputs given up": lambda device: _attention(device, keeps_inputs=False),
    "attention, grouped": lambda device: _attention(device, key_heads=2, keeps_inputs=False),
    "attention, masked": lambda device: _attention(device, mask="bool", keeps_inputs=False),
    "attention, additive mask": lambda device: _attention(device, mask="additive", keeps_inputs=False),
    "attention, aligned mask": lambda device: _attention(device, mask="additive", keys=128, tokens=128),
    "attention, masked, grouped": lambda device: _attention(device, mask="bool", key_heads=2, keeps_inputs=False),
    "attention, float32": lambda device: _attention(device, dtype=torch.float32, keeps_inputs=False),
    "attention, float32, masked": lambda device: _attention(device, dtype=torch.float32, mask="bool"),
    "attention, width 20": lambda device: _attention(device, width=20, keeps_inputs=False),
    "attention, width 192": lambda device: _attention(device, width=192, keeps_inputs=False),
    "attention, width 256": lambda device: _attention(device, width=256, keeps_inputs=False),
    "attention, width 256, masked": lambda device: _attention(device, width=256, mask="bool", keeps_inputs=False),
    "attention, width 264": lambda device: _attention(device, width=264, keeps_inputs=False),
    "attention, checkpointed": lambda device: _checkpointed_attention(device, masked=False),
    "attention, checkpointed, masked": lambda device: _checkpointed_attention(device, masked=True),
    "attention, one token": lambda device: _attention(device, tokens=1, keys=300, width=128, trains=False),
    "attention, one token, grouped": lambda device: _attention(
        device, tokens=1, keys=300, width=128, key_heads=2, trains=False
    ),
    "attention, one token, masked": lambda device: _attention(device, tokens=1, keys=300, mask="bool", trains=False),
    "attention, untrained": lambda device: _attention(device, trains=False),
    "attention, untrained, masked, grouped": lambda device: _attention(device, mask="bool", key_heads=2, trains=False),
}

KERNELS: dict[str, Callable[[str], Program]] = {
    "embedding of 3,072 tokens": lambda device: _embedding(device, tokens=3072),
    "embedding of 4,000 tokens": lambda device: _embedding(device, tokens=4000),
    "embedding of 4,000 tokens, many rows": lambda device: _embedding(device, tokens=4000, rows=9000),
    "embedding of 4,000 tokens, float32": lambda device: _embedding(device, tokens=4000, dtype=torch.float32),
    "softmax of float32": lambda device: _softmax(device, dtype=torch.float32),
    "softmax of bfloat16": lambda device: _softmax(device, dtype=BF16),
    "softmax of bfloat16 to float32": lambda device: _softmax(device, dtype=BF16, to=torch.float32),
    "softmax of float16 to float32": lambda device: _softmax(device, dtype=torch.float16, to=torch.float32),
    "log_softmax of bfloat16": lambda device: _softmax(device, dtype=BF16, log=True),
    "log_softmax of float16 to float32": lambda device: _softmax(
        device, dtype=torch.float16, to=torch.float32, log=True
    ),
    "gather": _gathered,
    "used twice": _used_twice,
    "gradient clipping": _clipped,
    "convolution by channel": lambda device: _convolution(device, contiguous=True),
    "convolution by channel, transposed": lambda device: _convolution(device, contiguous=False),
    "convolution by channel, float32": lambda device: _convolution(device, contiguous=False, dtype=torch.float32),
    "triangular systems": lambda device: _solved(device, batch=4),
    "triangular systems, few": lambda device: _solved(device, batch=1),
    "cumulative sums": lambda device: _cumulative(device, contiguous=True),
    "cumulative sums, transposed": lambda device: _cumulative(device, contiguous=False),
}

PRODUCTS: dict[str, Callable[[str], Program]] = {
    "linear": lambda device: _linear(device, bias=False),
    "linear with bias": lambda device: _linear(device, bias=True),
    "linear again": lambda device: _linear(device, bias=False, first=False),
    "linear with bias again": lambda device: _linear(device, bias=True, first=False),
    "linear of float32": lambda device: _linear(device, bias=True, dtype=torch.float32),
}
"""Each in a process of its own: workspaces stay."""

AUTOCAST: dict[str, Callable[[str], Program]] = {
    "autocast, linear": lambda device: _autocast(device, bias=False, trained=False),
    "autocast, linear with bias": lambda device: _autocast(device, bias=True, trained=False),
    "autocast, trained linear": lambda device: _autocast(device, bias=False, trained=True),
    "autocast, norm": _norm_under_autocast,
}
