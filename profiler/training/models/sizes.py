"""Number of parameters of a model."""

from typing import Any


def parameter_counts(model: Any) -> tuple[int, int]:
    """Return the parameters of the base model and the trainable parameters.

    Tied parameters count once, 4-bit ones by their unquantised shape. Adapters are no part of the base model; they
    count as trainable.
    """
    base = trainable = 0
    for name, parameter in model.named_parameters():
        count = _logical_count(parameter)
        if "lora_" not in name:
            base += count
        if parameter.requires_grad:
            trainable += count
    return base, trainable


def _logical_count(parameter: Any) -> int:
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return int(parameter.numel())
    rows, columns = state.shape
    return int(rows) * int(columns)
