"""What is known of a built-in model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ConfigValue = int | float | bool | str | None | Sequence[int] | Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class BuiltinModel:
    """One built-in model."""

    name: str
    hub_ids: tuple[str, ...]
    parameters: int
    """Tied parameters counted once."""
    config: Mapping[str, ConfigValue]
    """Fields of `config.json`, by transformers' names."""
    checkpoint_dtype: str = "bfloat16"
    """Data type of the published weights, as its `config.json` says."""
