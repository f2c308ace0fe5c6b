"""The configuration of a model that a script names: built in, in a local folder, or from the hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiler.domain.models.builtin_models import find_builtin


def builtin_config(name: str) -> dict[str, Any] | None:
    """Return the `config.json` of a built-in model, with its class and the data type of its checkpoint; else None.

    A local folder of the same name counts as one.
    """
    if Path(name).exists():
        return None
    model = find_builtin(name)
    if model is None:
        return None
    return {
        **model.config,
        "architectures": [_class_name(str(model.config["model_type"]))],
        "dtype": model.checkpoint_dtype,
        "torch_dtype": model.checkpoint_dtype,
    }


def _class_name(model_type: str) -> str:
    """Return the name of transformers' class of a model that generates text, of text alone or of images too."""
    # Importing it takes seconds, and the script may need nothing of it.
    from transformers.models.auto import modeling_auto

    of_text: Mapping[str, str] = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    of_images: Mapping[str, str] = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return of_text[model_type] if model_type in of_text else of_images[model_type]
