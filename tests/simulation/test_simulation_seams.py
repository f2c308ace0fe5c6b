"""Private names of other libraries that the simulation replaces: told here when they move."""

import inspect

import bitsandbytes.functional as bnb_functional
import pytest
from accelerate import PartialState
from accelerate.state import AcceleratorState
from transformers import PreTrainedModel, modeling_utils
from transformers import modeling_flash_attention_utils as hf_flash
from trl.kernels import chunked_logprob
from trl.trainer import utils as trl_utils

from profiler.simulation.tracing.kv_cache import CACHE_LAYERS


@pytest.mark.parametrize("name", ["_use_triton", "_forward_kernel", "_backward_kernel", "_addmm_fp32"])
def test_trl_kernels(name: str) -> None:
    assert hasattr(chunked_logprob, name)


def test_trl_chooses_the_path_by_a_name_of_its_own() -> None:
    assert "_use_triton(hidden_states.device)" in inspect.getsource(trl_utils.add_fused_lm_head)
    assert list(inspect.signature(chunked_logprob._addmm_fp32).parameters) == ["acc", "a", "b"]


@pytest.mark.parametrize(
    "name", ["get_paged", "fill", "prefetch_tensor", "optimizer_update_8bit_blockwise", "optimizer_update_32bit"]
)
def test_bitsandbytes(name: str) -> None:
    assert callable(getattr(bnb_functional, name))


def test_flash_attention_is_looked_for_by_these_names() -> None:
    assert callable(PreTrainedModel._flash_attn_can_dispatch)
    assert callable(modeling_utils.lazy_import_flash_attention)
    assert "lazy_import_flash_attention(attn_implementation)" in inspect.getsource(hf_flash._flash_attention_forward)
    assert next(iter(inspect.signature(hf_flash._lazy_define_process_function).parameters)) == "flash_function"


@pytest.mark.parametrize("layer", CACHE_LAYERS)
def test_cache_layers_take_in_a_step_by_update(layer: type) -> None:
    assert list(inspect.signature(layer.update).parameters)[:3] == ["self", "key_states", "value_states"]


def test_accelerate_keeps_the_device_in_a_shared_state() -> None:
    assert isinstance(PartialState._shared_state, dict)
    assert isinstance(AcceleratorState._shared_state, dict)
