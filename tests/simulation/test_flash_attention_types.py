"""FlashAttention-2 takes query, key and value of one type, float16 or bfloat16, and so does the simulated kernel."""

from typing import Any

import pytest
from simulating import simulate

from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.trials.trial import Attention, Dtype, Tuning

_FLASH: dict[str, Any] = {
    "attn_implementation": Attention.FLASH_ATTENTION_2,
    "dtype": Dtype.FLOAT16,
    "tuning": Tuning.QLORA,
    "lora_rank": 8,
    "lora_alpha": 16,
    "steps": 1,
}


def test_values_in_float32_beside_queries_in_float16_are_unsupported():
    """A 4-bit `q_proj` leaves float16 queries; under autocast the adapter on `v_proj` adds float32 to its output."""
    with pytest.raises(UnsupportedTrialError, match="as float16, float16, float32; it takes one type"):
        simulate(**_FLASH, bf16=True, lora_target_modules=("v_proj",))


@pytest.mark.parametrize(
    ("targets", "autocast"), [(("q_proj", "k_proj", "v_proj"), True), (("v_proj",), False)], ids=["cast", "one type"]
)
def test_one_type_runs(targets, autocast):
    """Queries in float32 are cast by transformers, with keys and values."""
    assert simulate(**_FLASH, bf16=autocast, lora_target_modules=targets).trace.events
