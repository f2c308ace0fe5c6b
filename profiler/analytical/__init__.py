"""The closed-form estimate: one formula per function, whole bytes, nothing fitted, nothing simulated.

It imports nothing from the simulation. The peak is the largest of all instants, never the sum of everything. Formulas
take integers or NumPy arrays of them, so that one trial and a table of trials are the same code. A trial under FSDP
or ZeRO has the instants of one GPU, with shards and gathered layers in place of the model. `python -m
maintenance.accuracy` compares it with sampled trials that are simulated.
"""

from profiler.analytical.baselines import rule_of_thumb
from profiler.analytical.estimate import estimate
from profiler.analytical.formulas.models.parameters import (
    lora_parameter_count,
    model_of_recipe,
    parameter_count,
)

__all__ = ["estimate", "lora_parameter_count", "model_of_recipe", "parameter_count", "rule_of_thumb"]
