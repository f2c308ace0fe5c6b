"""The closed-form estimate: one formula per function, whole bytes, nothing fitted, nothing simulated."""

from profiler.analytical.baselines.rule import rule_of_thumb
from profiler.analytical.estimate import estimate
from profiler.analytical.formulas.parameters import lora_parameter_count, parameter_count

__all__ = ["estimate", "lora_parameter_count", "parameter_count", "rule_of_thumb"]
