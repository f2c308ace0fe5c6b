"""What an adapter is asked, and what it says. Standard library only: it runs in other packages' environments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIB, MIB = 1 << 30, 1 << 20


class NotCoveredError(Exception):
    """The predictor does not cover the job; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One row's job."""

    row_id: str
    job: Mapping[str, Any]
    """Keys of a trial, complete."""
    config: Mapping[str, Any]
    """The model's `config.json`."""
    parameters: int
    card: str
    card_bytes: int

    def needs(self, key: str, *allowed: object) -> None:
        """Refuse a job whose key has another value.

        Raises:
            NotCoveredError: It has.
        """
        if self.job[key] not in allowed:
            raise NotCoveredError(f"{key}={self.job[key]}")

    @property
    def length(self) -> int:
        """Tokens of the longest row of a forward pass."""
        if self.job["recipe"] == "sft":
            return int(self.job["max_length"])
        return int(self.job["max_prompt_length"]) + int(self.job["max_completion_length"])

    @property
    def heads(self) -> tuple[int, int, int]:
        """Attention heads, those of keys and values, and values per head."""
        heads = int(self.config["num_attention_heads"])
        size = self.config.get("head_dim") or self.config["hidden_size"] // heads
        return heads, int(self.config.get("num_key_value_heads") or heads), int(size)

    @property
    def targets(self) -> list[str]:
        """Names of the adapted modules."""
        every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        named = list(self.job["lora_target_modules"] or ())
        return every if named == ["all-linear"] else named

    @property
    def half_type(self) -> str:
        """Name of the type of products: `bf16`, `fp16` or `fp32`."""
        if self.job["tuning"] == "qlora" and self.job["dtype"] == "float32":
            return "bf16" if self.job["bf16"] else "fp16"
        return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[self.job["dtype"]]


Said = Mapping[str, int]
"""Bytes by metric: allocated, reserved or device."""
