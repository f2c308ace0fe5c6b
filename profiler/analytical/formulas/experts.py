"""Activations of a mixture of experts that transformers computes by grouped products, in bfloat16.

S is the number of pairs of a token and one of its experts: T x experts per token. Each pair has its own row in every
tensor, whatever expert computes it. Counted in `grouped_mm_experts_forward` of transformers' `integrations/moe.py` and
in its backward. Left out: the router's tensors, a few numbers per token and expert.
"""

from profiler.analytical.formulas.parameters import expert_weights
from profiler.analytical.formulas.quantities import Count, larger, where
from profiler.analytical.formulas.rounding import block_of
from profiler.analytical.formulas.trained import INT64_BYTES, element_bytes, trains_everything
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys

_INDICES = 4
"""Indices of pairs: by expert, their order, its inverse, and the token of each."""


def experts_saved_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what the experts save for backward: gate and up together, the activated gate, and the result.

    With trained experts also their inputs and the product. By hand, S = 8 pairs, H = 4, I = 2, bfloat16, trained: 8 x
    (2 x 4 + 4 x 2) x 2 B = 256 B, and 4 x 64 B of indices.
    """
    result, inner = _result(spec, architecture, positions), _inner(spec, architecture, positions)
    trained = result + inner if trains_everything(spec) else 0
    return result + 3 * inner + trained + _indices(spec, architecture, positions)


def experts_forward_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return what a forward with gradient needs at the end of the experts in addition to what it saves.

    The weighted results, before and after they are brought back into the order of tokens; the inputs of the experts,
    if these are frozen.
    """
    result = _result(spec, architecture, positions)
    return 2 * result if trains_everything(spec) else 3 * result


def experts_without_gradient_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the peak of the experts without gradient: inputs, results, and the weighted results twice.

    By hand, S = 8 pairs, H = 4, bfloat16: 4 x 8 x 4 x 2 B = 256 B, and 4 x 64 B of indices.
    """
    return 4 * _result(spec, architecture, positions) + _indices(spec, architecture, positions)


def experts_backward_bytes(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the peak of the experts' backward in addition to what they saved.

    The largest of three: at the weights of the router, three gradients as large as the results; at the down projection,
    the gradient of the product, and the new gradient of the weights; at gate and up, their gradients, those of the
    inputs and of the weights, when only the inputs are left of what was saved.
    """
    result, inner = _result(spec, architecture, positions), _inner(spec, architecture, positions)
    if not trains_everything(spec):
        return 3 * result
    weights = block_of(spec)(expert_weights(architecture) * element_bytes(spec).weight)
    # The result has been freed; the gradient of it takes its place.
    at_down = inner + weights
    # Without earlier micro-batches the new gradient of down is kept, and is counted nowhere else at this instant.
    kept = where(spec.gradient_accumulation_steps > 1, 0, weights)
    at_gate_and_up = 2 * weights + kept - 2 * inner
    return larger(3 * result, at_down, at_gate_and_up)


def _result(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the bytes of one tensor [S, H]."""
    pairs = positions * architecture.experts_per_token
    return block_of(spec)(pairs * architecture.hidden_size * element_bytes(spec).compute)


def _inner(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    """Return the bytes of one tensor [S, I]."""
    pairs = positions * architecture.experts_per_token
    return block_of(spec)(pairs * architecture.expert_width * element_bytes(spec).compute)


def _indices(spec: TrialKeys, architecture: DecoderShape, positions: Count) -> Count:
    return _INDICES * block_of(spec)(positions * architecture.experts_per_token * INT64_BYTES)
