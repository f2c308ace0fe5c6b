"""Estimates of a trial by other tools."""

import json
from collections.abc import Mapping
from functools import cache

from maintenance.samples.sampling import architecture_of, config_of
from profiler.analytical import parameter_count
from profiler.analytical.baselines import (
    REPORT_OVERHEAD_BYTES,
    report_activation_bytes,
    report_models_bytes,
)
from profiler.domain.trials.trial import TrialSpec


def verl_report_bytes(spec: TrialSpec) -> int:
    """Estimate by the public report on verl's GRPO, on one GPU: 4 x weights, the reference, activations, 2 GB.

    Its rule has no adapters and no 8-bit optimizer, so it is the same for every method. Its KV cache is given for three
    models only, so it is left out.
    """
    architecture = architecture_of(spec.model)
    models = report_models_bytes(
        int(parameter_count(architecture)), has_reference=spec.keeps_reference_model, has_critic=False
    )
    activations = report_activation_bytes(
        architecture,
        batch=spec.per_device_train_batch_size,
        tokens=spec.max_prompt_length + spec.max_completion_length,
        checkpointing=spec.gradient_checkpointing,
        offloading=False,
    )
    return models + activations + REPORT_OVERHEAD_BYTES


def accelerate_bytes(spec: TrialSpec) -> int:
    """Estimate by `accelerate estimate-memory`, called as a library: "training using Adam", its largest component.

    It depends on the model and the precision, for full training at batch size 1.
    """
    precision = "float16" if spec.bf16 or spec.dtype != "float32" else "float32"
    return accelerate_training_bytes(config_of(spec.model), precision)


def accelerate_training_bytes(config: Mapping[str, object], precision: str) -> int:
    """Return the same of a model by its `config.json`."""
    from accelerate.commands.estimate import estimate_training_usage

    return int(max(estimate_training_usage(_float32_bytes(json.dumps(config)), precision).values()))


@cache
def _float32_bytes(config_json: str) -> int:
    """Return the size of the model as accelerate computes it: from an empty `AutoModel`, which has no LM head.

    Made on torch's meta device: accelerate's `init_empty_weights` makes each tensor on the host first, and all experts
    of a layer are one.
    """
    import torch
    from accelerate.utils import calculate_maximum_sizes
    from transformers import AutoConfig, AutoModel

    config = json.loads(config_json)
    with torch.device("meta"):
        empty = AutoModel.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
    total, _ = calculate_maximum_sizes(empty)
    return int(total)
