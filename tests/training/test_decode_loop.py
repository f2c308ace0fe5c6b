"""Properties of transformers' decoding loop that the extrapolated rollout relies on."""

import inspect

from transformers import DynamicCache, GenerationMixin
from transformers.cache_utils import DynamicSlidingWindowLayer


def test_the_loop_prepares_a_step_by_its_ids_and_takes_its_own_tensors_by_name() -> None:
    parameters = list(inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters)
    assert parameters[:2] == ["self", "input_ids"]
    assert {"past_key_values", "attention_mask"} <= set(parameters)
    loop = inspect.getsource(GenerationMixin._sample)
    assert loop.count("self.prepare_inputs_for_generation(") == 1
    assert loop.index("self._prefill(") < loop.index("while self._has_unfinished_sequences")
    assert loop.index("while self._has_unfinished_sequences") < loop.index("self.prepare_inputs_for_generation(")
    assert "model_inputs = self.prepare_inputs_for_generation(" in loop
    assert inspect.getsource(GenerationMixin._prefill).count("self.prepare_inputs_for_generation(") >= 1


def test_the_loop_lengthens_mask_and_positions() -> None:
    source = inspect.getsource(GenerationMixin._update_model_kwargs_for_generation)
    for name in ("attention_mask", "position_ids", "token_type_ids"):
        assert name in source


def test_a_cache_layer_counts_as_the_extrapolated_rollout_does() -> None:
    assert DynamicCache().layers == []
    layer = DynamicSlidingWindowLayer(sliding_window=4)
    assert (layer.sliding_window, layer.cumulative_length, layer.keys) == (4, 0, None)
