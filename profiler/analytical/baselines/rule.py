"""A published rule of thumb, as a baseline."""

from profiler.analytical.formulas.models.parameters import parameter_count
from profiler.analytical.formulas.models.trained import trainable_parameter_count
from profiler.analytical.formulas.models.weights import keeps_reference_model
from profiler.analytical.formulas.sizes.quantities import Count, looked_up, where
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.domain.trials.optimizers import Optimizer, State

_PARAMETER_BYTES = 2
_REFERENCE_BYTES = 2
_GRADIENT_BYTES = 2
_OPTIMIZER_BYTES = 8
_8BIT_OPTIMIZER_BYTES = 4


def rule_of_thumb(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes by the rule of the blog "GRPO VRAM requirements for the GPU poor" (Oxen.ai, 2025).

    Per parameter 2 B for the model and 2 B for a reference model; per trained parameter 2 B of gradients and 8 B of
    optimizer state, 4 B for an 8-bit optimizer. No activations, no logits, no rollout.

    Where the blog gives no rule, we assume: the reference counts if trl keeps one; adapters count as trained parameters
    only; 4-bit weights still count 2 B; an optimizer without figures (Adafactor, SGD) counts 8 B.

    By hand, qwen2.5-0.5b full without reference, AdamW: 494,032,768 x 12 B = 5,928,393,216 B.
    """
    parameters, trained = parameter_count(architecture), trainable_parameter_count(spec, architecture)
    reference = where(keeps_reference_model(spec), _REFERENCE_BYTES, 0)
    optimizer = looked_up(spec.optim, _optimizer_bytes)
    return parameters * (_PARAMETER_BYTES + reference) + trained * (_GRADIENT_BYTES + optimizer)


def _optimizer_bytes(optim: Optimizer) -> int:
    return _8BIT_OPTIMIZER_BYTES if optim.traits.state is State.EIGHT_BIT_STATES else _OPTIMIZER_BYTES
