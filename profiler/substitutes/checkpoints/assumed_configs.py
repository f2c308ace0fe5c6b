"""The configuration of a model that nobody here knows: the defaults of its class in transformers, named as assumed.

A name that states a number of parameters, such as ``opt-2.7b``, gets them only if the defaults have about as many.
"""

import re
from typing import Any

import torch

_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([mb])(?![a-z0-9])")
_UNITS = {"m": 10**6, "b": 10**9}
_TOLERANCE = 0.1
"""By how much the parameters may differ from the number in a name: ``7b`` has 6.7 to 7.7 billion."""


def assumed_config(config_class: Any, name: str) -> tuple[dict[str, Any], str] | None:
    """Return a configuration with the defaults of a class, and the name of the class; None if there is no such class.

    Args:
        config_class: The class whose configuration is asked for; that of all classes leaves it to the name.
        name: Name of the model.
    """
    from transformers import CONFIG_MAPPING

    model_type = getattr(config_class, "model_type", "") or _type_in(name, CONFIG_MAPPING.keys())
    if not model_type:
        return None
    known = dict(CONFIG_MAPPING.items()).get(model_type, config_class)
    if not _has_size(known, name):
        return None
    return {"model_type": model_type, "architectures": _architectures(model_type)}, known.__name__


def _type_in(name: str, types: Any) -> str:
    """Return the longest type of a model that the name begins with, or has between hyphens; empty if none."""
    tail = _hyphened(name.rpartition("/")[2])
    found = [each for each in types if f"-{_hyphened(each)}-" in f"-{tail}-"]
    return max(found, key=len, default="")


def _hyphened(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())


def _has_size(config_class: Any, name: str) -> bool:
    """Return whether the defaults have the number of parameters that the name states; true if it states none."""
    stated = _SIZE.findall(name.rpartition("/")[2].lower())
    if not stated:
        return True
    number, unit = stated[0]
    parameters = _parameters(config_class)
    return parameters is not None and abs(parameters / (float(number) * _UNITS[unit]) - 1) <= _TOLERANCE


def _parameters(config_class: Any) -> int | None:
    """Return the parameters of a model with the defaults of a class; None if there is no such model."""
    from transformers import AutoModel

    try:
        with torch.device("meta"):
            model = AutoModel.from_config(config_class())
    except (ValueError, TypeError, AttributeError):
        return None
    return sum(parameter.numel() for parameter in model.parameters())


def _architectures(model_type: str) -> list[str]:
    """Return the class of language models of this type, or else its plain class."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

    names: list[Any] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type), MODEL_MAPPING_NAMES.get(model_type)]
    return [name for name in names if isinstance(name, str)][:1]
