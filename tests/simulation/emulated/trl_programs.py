"""Small programs by functions of trl that have Triton kernels; what each asks of the allocator is compared."""

from collections.abc import Callable

import torch
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
}
