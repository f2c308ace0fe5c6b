"""The parameters of a model that is there; and of one without memory for it.

The latter is `python -m profiler.training.models.parameter_count`. Its `config.json` is read from standard input, and
the model is made on torch's meta device from that alone. Nothing is downloaded, and no code of others runs.
"""

import json
import sys
from dataclasses import asdict
from typing import Any

from profiler.config.models.architecture import has_other_senses
from profiler.domain.architectures.architecture import ModelCount

_MOST_BYTES = 10 * 2**20


def count_model(config: dict[str, Any]) -> ModelCount:
    """Return the counts of the model that transformers makes of a `config.json`.

    Raises:
        ValueError: transformers has no model of this type that generates text.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
    from transformers.pytorch_utils import Conv1D

    values = {
        key: value for key, value in config.items() if key not in ("model_type", "auto_map", "quantization_config")
    }
    with torch.device("meta"):
        made = AutoConfig.for_model(str(config["model_type"]), **values)
        is_language_only = type(made) in MODEL_FOR_CAUSAL_LM_MAPPING and not has_other_senses(config)
        model = (AutoModelForCausalLM if is_language_only else AutoModelForImageTextToText).from_config(made)
    parameters = dict(model.named_parameters())
    head = model.get_output_embeddings()
    adapted = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear | Conv1D) and layer is not head  # peft adapts both
    }
    return ModelCount(
        parameters=sum(each.numel() for each in parameters.values()),
        in_towers=0 if is_language_only else sum(n.numel() for name, n in parameters.items() if _is_of_tower(name)),
        linear_layers=len(adapted),
        lora_per_rank=sum(sum(layer.weight.shape) for layer in adapted.values()),
        linear_names=tuple(dict.fromkeys(last for name in adapted if not (last := name.rpartition(".")[2]).isdigit())),
        names_experts=_names_experts(made.get_text_config()),
        has_base_model=model.base_model is not model,
        has_sdpa=bool(getattr(model, "_supports_sdpa", False)),
    )


def _names_experts(config: Any) -> bool:
    """Return whether trl finds what it computes the loss of a router with (`_fused_forward` in trl 1.16)."""
    has_loss = hasattr(config, "output_router_logits") and getattr(config, "router_aux_loss_coef", 0.0) != 0.0
    return not has_loss or (hasattr(config, "num_experts") and hasattr(config, "num_experts_per_tok"))


def _is_of_tower(name: str) -> bool:
    """Whether a parameter is in neither the language model nor its head, as transformers names them."""
    return not {"language_model", "lm_head"} & set(name.split("."))


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


def main() -> int:
    """Print the counts for the configuration on standard input, and return the exit code."""
    config = json.loads(sys.stdin.read(_MOST_BYTES))
    sys.stdout.write(json.dumps(asdict(count_model(config))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
