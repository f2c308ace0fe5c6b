"""What is known of a model without a closed form: its parameters and linear layers, counted on torch's meta device."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelCount:
    """The parameters and linear layers of a model."""

    parameters: int
    """Tied ones count once."""
    in_towers: int
    """Of them, those of the parts for images or sound."""
    linear_layers: int
    """Those that peft adapts by `all-linear`: without the LM head, with those of the towers."""
    lora_per_rank: int
    """Parameters that adapters of rank 1 on all of them have: inputs and outputs of each."""
    linear_names: tuple[str, ...]
    """Their names, each once, as `target_modules` takes them; without those that only have a number."""
