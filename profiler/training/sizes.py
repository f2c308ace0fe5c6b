"""How many parameters a model has."""

from typing import Any


def parameter_counts(model: Any) -> tuple[int, int]:
    """(all parameters of the base model, trainable ones). Tied ones count once, 4-bit ones as what they stand for.

    Adapters are not parameters of the base model; they are among the trainable ones.
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
