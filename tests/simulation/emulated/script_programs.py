"""Small programs that scripts run and trials do not; what each asks of the allocator is compared.

Functions of trl with Triton kernels, and operations that CUDA composes differently or runs for more types than `meta`.
"""

from collections.abc import Callable

import torch
from torch.nn import functional
from trl.trainer import utils

Program = Callable[[], object]

ROWS, TOKENS, VOCABULARY, WIDTH = 2, 100, 5000, 64
BF16 = torch.bfloat16


def _logits(device: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.empty((ROWS, TOKENS, VOCABULARY), dtype=dtype, device=device, requires_grad=True)
    return logits, torch.zeros((ROWS, TOKENS), dtype=torch.int64, device=device)


def _selected(device: str, *, dtype: torch.dtype = BF16, temperature: float = 1.0, trains: bool = True) -> Program:
    logits, tokens = _logits(device, dtype)

    def run() -> object:
        with torch.set_grad_enabled(trains):
            found = utils.selective_log_softmax(logits, tokens, temperature=temperature)
            if trains:
                found.backward(torch.empty_like(found))
        return found, logits.grad

    return run


def _entropy(device: str, *, dtype: torch.dtype = BF16) -> Program:
    logits, _ = _logits(device, dtype)

    def run() -> object:
        with torch.no_grad():
            return utils.entropy_from_logits(logits)

    return run


def _both(device: str, *, masked: bool) -> Program:
    logits, tokens = _logits(device, BF16)
    mask = torch.ones((ROWS, TOKENS), dtype=torch.int64, device=device) if masked else None

    def run() -> object:
        found, entropy = utils.selective_log_softmax_and_entropy(logits, tokens, row_mask=mask)
        (found.sum() + entropy.sum()).backward()
        return found, entropy, logits.grad

    return run


def _many_per_position(device: str) -> Program:
    """Several tokens per position, for which trl has no kernel."""
    logits, _ = _logits(device, torch.float32)
    tokens = torch.zeros((ROWS, TOKENS, 3), dtype=torch.int64, device=device)

    def run() -> object:
        with torch.no_grad():
            return utils.selective_log_softmax(logits, tokens)

    return run


def _divergence(device: str, *, beta: float, bias: bool = False, dtype: torch.dtype = BF16) -> Program:
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    def of(rows: int, trained: bool) -> torch.Tensor:
        return torch.empty((rows, WIDTH), dtype=dtype, device=device, requires_grad=trained)

    student, teacher = (of(300, True), of(VOCABULARY, True)), (of(300, False), of(VOCABULARY, False))
    offsets = [torch.zeros(VOCABULARY, dtype=dtype, device=device, requires_grad=each) for each in (True, False)]
    biases = offsets if bias else [None, None]

    def run() -> object:
        found, entropy = ChunkedDivergenceFunction.apply(*student, biases[0], *teacher, biases[1], beta)
        found.backward(torch.empty_like(found))
        return found, entropy, [each.grad for each in (*student, *offsets)]

    return run


def _rms_norm(
    device: str, *, dtype: torch.dtype, weight: torch.dtype | None, autocast: bool = False, in_order: bool = True
) -> Program:
    shape = (300, 1000) if in_order else (1000, 300)
    values = torch.empty(shape, dtype=dtype, device=device, requires_grad=True)
    scale = None if weight is None else torch.empty(1000, dtype=weight, device=device, requires_grad=True)

    def run() -> object:
        with torch.autocast("cuda", dtype=BF16, enabled=autocast):
            found = functional.rms_norm(values if in_order else values.t(), (1000,), scale, 1e-6)
        found.backward(torch.empty_like(found))
        return found, values.grad, None if scale is None else scale.grad

    return run


def _grouped(device: str, *, dtype: torch.dtype) -> Program:
    rows = torch.empty((64, 128), dtype=dtype, device=device, requires_grad=True)
    experts = torch.empty((4, 128, 256), dtype=dtype, device=device, requires_grad=True)
    ends = torch.tensor([16, 32, 48, 64], dtype=torch.int32, device=device)

    def run() -> object:
        found = functional.grouped_mm(rows, experts, offs=ends)
        found.backward(torch.empty_like(found))
        return found, rows.grad, experts.grad

    return run


def _logsumexp(device: str, *, dtype: torch.dtype, dim: int) -> Program:
    values = torch.empty((ROWS, TOKENS, VOCABULARY), dtype=dtype, device=device, requires_grad=True)

    def run() -> object:
        found = values.logsumexp(dim)
        found.backward(torch.empty_like(found))
        return found, values.grad

    return run


def _loss(
    device: str,
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    shape: tuple[int, ...] = (64, 1000),
    reduction: str = "mean",
    weighted: bool = False,
    target: torch.dtype | None = None,
) -> Program:
    values = torch.empty(shape, dtype=dtype, device=device, requires_grad=True)
    wanted = torch.empty(shape, dtype=target or dtype, device=device)
    weight = {"pos_weight": torch.empty(shape[-1], dtype=dtype, device=device)} if weighted else {}

    def run() -> object:
        found = getattr(functional, name)(values, wanted, reduction=reduction, **weight)
        found.backward(torch.empty_like(found))
        return found, values.grad

    return run


def _trained(device: str, function: Callable[[torch.Tensor], torch.Tensor]) -> Program:
    values = torch.empty((64, 1000), device=device, requires_grad=True)

    def run() -> object:
        found = function(values)
        found.backward(torch.empty_like(found))
        return found, values.grad

    return run


def _of_values(
    device: str, function: Callable[[torch.Tensor], object], *shape: int, dtype: torch.dtype = torch.float32
) -> Program:
    values = torch.empty(shape, dtype=dtype, device=device)
    return lambda: function(values)


def _of_ids(device: str, function: Callable[[torch.Tensor], object]) -> Program:
    ids = torch.zeros((50, 8), dtype=torch.int64, device=device)
    return lambda: function(ids)


def _sorted(values: torch.Tensor) -> object:
    return values.sort(-1)


def _unit_rows(values: torch.Tensor) -> torch.Tensor:
    return functional.normalize(values, dim=-1)


def _largest(values: torch.Tensor) -> object:
    return values.topk(20, dim=-1)


FLOAT32 = torch.float32

PROGRAMS: dict[str, Callable[[str], Program]] = {
    "selected log-probabilities": _selected,
    "selected log-probabilities, float32": lambda device: _selected(device, dtype=torch.float32),
    "selected log-probabilities, temperature": lambda device: _selected(device, temperature=0.7),
    "selected log-probabilities, float64": lambda device: _selected(device, dtype=torch.float64),
    "selected log-probabilities, not trained": lambda device: _selected(device, trains=False),
    "several tokens per position": _many_per_position,
    "entropy": _entropy,
    "entropy, float32": lambda device: _entropy(device, dtype=torch.float32),
    "log-probabilities and entropy": lambda device: _both(device, masked=False),
    "log-probabilities and entropy, masked": lambda device: _both(device, masked=True),
    "divergence, forward": lambda device: _divergence(device, beta=0.0),
    "divergence, reverse": lambda device: _divergence(device, beta=1.0),
    "divergence, mixture": lambda device: _divergence(device, beta=0.5),
    "divergence, with bias": lambda device: _divergence(device, beta=0.5, bias=True),
    "divergence, float32": lambda device: _divergence(device, beta=0.5, dtype=torch.float32),
    "RMS norm": lambda device: _rms_norm(device, dtype=BF16, weight=BF16),
    "RMS norm, no weight": lambda device: _rms_norm(device, dtype=BF16, weight=None),
    "RMS norm, float32": lambda device: _rms_norm(device, dtype=FLOAT32, weight=FLOAT32),
    "RMS norm, float64": lambda device: _rms_norm(device, dtype=torch.float64, weight=None),
    "RMS norm, weight of another type": lambda device: _rms_norm(device, dtype=BF16, weight=FLOAT32),
    "RMS norm, autocast": lambda device: _rms_norm(device, dtype=BF16, weight=FLOAT32, autocast=True),
    "RMS norm, transposed": lambda device: _rms_norm(device, dtype=BF16, weight=BF16, in_order=False),
    "product per expert, float32": lambda device: _grouped(device, dtype=FLOAT32),
    "product per expert, float16": lambda device: _grouped(device, dtype=torch.float16),
    "logsumexp of float32": lambda device: _logsumexp(device, dtype=FLOAT32, dim=-1),
    "logsumexp of bfloat16": lambda device: _logsumexp(device, dtype=BF16, dim=-1),
    "logsumexp over the first dimension": lambda device: _logsumexp(device, dtype=FLOAT32, dim=0),
    **{
        f"{name}, {reduction}": lambda device, name=name, reduction=reduction: _loss(device, name, reduction=reduction)
        for name in (
            "mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "binary_cross_entropy_with_logits",
            "binary_cross_entropy", "soft_margin_loss",
        )
        for reduction in ("mean", "sum", "none")
    },
    "mse_loss of bfloat16": lambda device: _loss(device, "mse_loss", dtype=BF16),
    "mse_loss of two types": lambda device: _loss(device, "mse_loss", dtype=BF16, target=FLOAT32),
    "mse_loss of many": lambda device: _loss(device, "mse_loss", shape=(3000, 5000)),
    "huber_loss of many": lambda device: _loss(device, "huber_loss", shape=(3000, 5000)),
    "binary_cross_entropy of many": lambda device: _loss(device, "binary_cross_entropy", shape=(3000, 5000)),
    "cross entropy with logits of many": lambda device: _loss(
        device, "binary_cross_entropy_with_logits", shape=(3000, 5000)
    ),
    "cross entropy with logits of two types": lambda device: _loss(
        device, "binary_cross_entropy_with_logits", dtype=BF16, target=FLOAT32
    ),
    "cross entropy with logits, weighted": lambda device: _loss(
        device, "binary_cross_entropy_with_logits", weighted=True
    ),
    "logarithm of a sigmoid": lambda device: _trained(device, functional.logsigmoid),
    "rows of length one": lambda device: _trained(device, _unit_rows),
    "one-hot": lambda device: _of_ids(device, lambda ids: functional.one_hot(ids, 100)),
    "counts": lambda device: _of_ids(device, lambda ids: torch.bincount(ids.flatten(), minlength=128)),
    "product per expert, bfloat16": lambda device: _grouped(device, dtype=BF16),
    "largest of short rows": lambda device: _of_values(device, _largest, 5000, 128),
    "largest of long rows": lambda device: _of_values(device, _largest, 8, 32_000),
    "largest of bfloat16": lambda device: _of_values(device, _largest, 64, 32_000, dtype=BF16),
    "largest of many rows": lambda device: _of_values(device, _largest, 5000, 512),
    "sorted short rows": lambda device: _of_values(device, _sorted, 300, 4000),
    "sorted rows of one": lambda device: _of_values(device, _sorted, 300, 1),
}  # fmt: skip

SORTS: dict[str, Callable[[str], Program]] = {
    "one row": lambda device: _of_values(device, _sorted, 151_936),
    "few rows": lambda device: _of_values(device, _sorted, 64, 32_000),
    "few rows of bfloat16": lambda device: _of_values(device, _sorted, 8, 151_936, dtype=BF16),
    "many rows": lambda device: _of_values(device, _sorted, 300, 5000),
    "few columns": lambda device: _of_values(device, lambda values: values.sort(0), 5000, 20),
    "a million": lambda device: _of_values(device, _sorted, 2, 1_000_000),
}
"""Sorts of long rows, whose tables of CUB the simulation leaves out."""
