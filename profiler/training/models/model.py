"""A model of a given architecture on a given device: random weights, pretrained ones, or 4-bit ones."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BitsAndBytesConfig,
    initialization,
)
from transformers.integrations import replace_with_bnb_linear

from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.trials.trial import Attention, Backend, DistributedType, TrialSpec, Tuning, Weights
from profiler.training.placement import Placement

_INITIAL_STD = 0.02

NO_SUCH_MODEL = "Unrecognized configuration class"
"""Part of the ValueError that transformers raises for a family without this head (`_BaseAutoModelClass`)."""

_NO_SUCH_ATTENTION = "does not support an attention implementation"
"""Part of the ValueError that transformers raises (`PreTrainedModel._sdpa_can_dispatch`)."""


def build_config(values: Mapping[str, Any], *, name: str) -> Any:
    """Return transformers' configuration object from the fields of a `config.json`."""
    fields = {key: value for key, value in values.items() if key not in ("model_type", "dtype", "torch_dtype")}
    config = AutoConfig.for_model(values["model_type"], **fields)
    config._name_or_path = name
    return config


def build_model(spec: TrialSpec, config: Any, placement: Placement) -> Any:
    """Return the model to train, on the trial's device and without adapters.

    Random weights are made where they live; nothing is downloaded or copied. With `weights=pretrained` transformers
    loads `spec.model`, a local folder or a hub id.

    Raises:
        UnsupportedTrialError: transformers does not support this attention, or this head, for this model.
    """
    try:
        return _model(spec, config, placement)
    except ValueError as error:
        if NO_SUCH_MODEL in str(error) and not spec.recipe.facts.has_lm_head:
            problem = f"transformers has no model of type {config.model_type} that scores a row"
            raise UnsupportedTrialError(f"{problem} (sequence classification), which recipe=reward trains") from error
        if _NO_SUCH_ATTENTION not in str(error):
            raise
        raise UnsupportedTrialError(
            f"transformers has no attn_implementation={spec.attn_implementation} for model type {config.model_type}; "
            "attn_implementation=eager runs everywhere"
        ) from error


def _model(spec: TrialSpec, config: Any, placement: Placement) -> Any:
    if spec.weights is Weights.PRETRAINED:
        return _pretrained(spec, config, placement)
    if spec.tuning is Tuning.QLORA:
        return _random_4bit(spec, config, placement)
    return random_model(spec, config, placement)


def random_model(spec: TrialSpec, config: Any, placement: Placement, *, is_trained: bool = True) -> Any:
    """Return a model with random weights, made where trl has them: on the card, or with FSDP on the host.

    Under FSDP trl leaves a model on the host (`device_map` is None in `create_model_from_path`, and
    `place_model_on_device` of transformers' trainer is false), and accelerate shards it from there.

    Args:
        spec: The trial.
        config: transformers' configuration of the model.
        placement: Where the trial runs.
        is_trained: Whether it is the model of the trainer, and no reference.
    """
    if spec.distributed_type is not DistributedType.FSDP:
        with placement.device:
            return _from_config(spec, config)
    if spec.backend is not Backend.EMULATED:
        return _from_config(spec, config)
    return _without_values(spec, config, is_widened=is_trained and spec.bf16 and spec.tuning is Tuning.FULL)


def _without_values(spec: TrialSpec, config: Any, *, is_widened: bool) -> Any:
    """Return a model on the host whose weights have no values: an emulated card reads none, and pages stay unused.

    accelerate widens trained weights on the host before it shards them (`fsdp2_prepare_model`), which would write to
    each page. They are wide from the beginning.
    """
    with initialization.no_init_weights():
        model = _from_config(spec, config)
    model.tie_weights()
    if is_widened:
        for parameter in model.parameters():
            parameter.data = torch.empty_like(parameter.data, dtype=torch.float32)
    return model


def _from_config(spec: TrialSpec, config: Any) -> Any:
    kind, own = _class_of(spec), config
    if not spec.recipe.facts.has_lm_head:
        own = deepcopy(config)
        own.num_labels = 1
    return kind.from_config(own, dtype=getattr(torch, spec.dtype.value), attn_implementation=_attention(spec, config))


def _attention(spec: TrialSpec, config: Any) -> str | dict[str, str]:
    """Return the attention of the model. A tower for sound has eager alone, which is taken where none is named.

    Source: `_supports_sdpa` of `Gemma4AudioModel` in transformers.
    """
    value = spec.attn_implementation.value
    if getattr(config, "audio_config", None) is None:
        return value
    return {"": value, "audio_config": Attention.EAGER.value}


def _class_of(spec: TrialSpec) -> Any:
    """Return transformers' class of the model: with an LM head, or with a head that scores a row."""
    return AutoModelForCausalLM if spec.recipe.facts.has_lm_head else AutoModelForSequenceClassification


@contextmanager
def reference_from_config(spec: TrialSpec, config: Any, placement: Placement, trainer: Any) -> Iterator[None]:
    """While active, a trainer of trl makes its reference model from the configuration and not from a checkpoint.

    Args:
        spec: The trial.
        config: transformers' configuration of the model.
        placement: Where the model lives.
        trainer: The module of the trainer.
    """
    from_path = trainer.create_model_from_path
    if spec.weights is Weights.RANDOM:
        trainer.create_model_from_path = lambda *_, **__: random_model(spec, config, placement, is_trained=False)
    try:
        yield
    finally:
        trainer.create_model_from_path = from_path


def _pretrained(spec: TrialSpec, config: Any, placement: Placement) -> Any:
    options: dict[str, Any] = {
        "dtype": getattr(torch, spec.dtype.value),
        "attn_implementation": _attention(spec, config),
        "device_map": None if spec.distributed_type is DistributedType.FSDP else {"": placement.device},
    }
    if spec.tuning is Tuning.QLORA:
        options["quantization_config"] = _quantization(spec)
    if not spec.recipe.facts.has_lm_head:
        options["num_labels"] = 1
    return _class_of(spec).from_pretrained(spec.model, **options)


def _quantization(spec: TrialSpec) -> Any:
    """Return nf4, computing in the weights' data type; with double quantisation as the QLoRA paper does."""
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=spec.bnb_4bit_use_double_quant,
        bnb_4bit_compute_dtype=getattr(torch, spec.dtype.value),
    )


def _random_4bit(spec: TrialSpec, config: Any, placement: Placement) -> Any:
    """Return a model with random weights in 4 bits, made one layer at a time, as transformers loads a checkpoint.

    `from_config` refuses a quantisation configuration, so the model is made empty and filled here. Only one layer
    exists unquantised at any time.
    """
    with placement.host_side(), init_empty_weights(include_buffers=False):
        model = _from_config(spec, config)
        # As `get_keys_to_not_convert` of transformers: the head, which of a model of scores is its last module.
        of_scores = None if spec.recipe.facts.has_lm_head else model.score
        heads = (model.get_output_embeddings(), of_scores)
        kept = [name for name, module in model.named_modules() if any(module is head for head in heads)]
        model = replace_with_bnb_linear(model, modules_to_not_convert=kept, quantization_config=_quantization(spec))
    for module in model.modules():
        _fill(module, placement.device, getattr(torch, spec.dtype.value))
    model.tie_weights()
    model.is_loaded_in_4bit = True
    return model


def _fill(module: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Fill one module's own parameters and buffers on `device`."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        values = torch.empty(parameter.shape, dtype=dtype, device=device)
        values = values.fill_(1.0) if parameter.dim() == 1 else values.normal_(std=_INITIAL_STD)
        if hasattr(parameter, "quant_state"):
            filled = type(parameter)(values, **parameter.__dict__)._quantize(device)
        else:
            filled = torch.nn.Parameter(values, requires_grad=False)
        module.register_parameter(name, filled)
    for name, buffer in list(module.named_buffers(recurse=False)):
        persistent = name not in module._non_persistent_buffers_set
        module.register_buffer(name, buffer.to(device), persistent=persistent)
