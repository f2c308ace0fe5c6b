"""The configuration of a model that a script names: built in, in a local folder, or from the hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiler.domain.builtin_models import find_builtin


def builtin_config(name: str) -> dict[str, Any] | None:
    """Return the `config.json` of a built-in model, with its class and the data type of its checkpoint; else None.

    A local folder of the same name counts as one.
    """
    if Path(name).exists():
        return None
    model = find_builtin(name)
    if model is None:
        return None
    # Importing it takes seconds, and the script may need nothing of it.
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names: Mapping[str, str] = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return {
        **model.config,
        "architectures": [names[str(model.config["model_type"])]],
        "dtype": model.checkpoint_dtype,
        "torch_dtype": model.checkpoint_dtype,
    }
