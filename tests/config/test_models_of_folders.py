"""Built-in models that folders of other machines are named after."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.config.models.lookup import builtin_of_folder
from profiler.domain.models.builtin_models import BUILTIN_MODELS


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/models/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("/data/GSM8k_Qwen25_7B_Instruct/exp052", "qwen2.5-7b"),
        ("/data/GSM8k_Qwen25_1_5B_Instruct/exp100", "qwen2.5-1.5b"),
        ("../sft/DeepSeek-R1-Distill-Qwen-1.5B-mine/checkpoint-200", "deepseek-r1-distill-qwen-1.5b"),
        ("~/Meta-Llama-3.1-8B-Instruct/", "llama-3.1-8b"),
        ("/runs/qwen2.5-7b/after-qwen2.5-3b", "qwen2.5-3b"),
        ("/models/Qwen2-57B-A14B-Instruct", None),
        ("/models/Qwen2.5-VL-7B-Instruct", None),
        ("/models/Qwen2.5-7B-Instruct-GPTQ-Int4", None),
        ("/data/LLAMA/exp110", None),
        ("/data/17b", None),
    ],
)
def test_a_folder_is_of_the_model_it_is_named_after(path, model):
    assert builtin_of_folder(path) == model


HUB_NAMES = sorted(hub_id.rpartition("/")[2] for model in BUILTIN_MODELS.values() for hub_id in model.hub_ids)


@given(
    st.sampled_from(HUB_NAMES),
    st.sampled_from(["", "gsm8k_", "my-"]),
    st.sampled_from(["", "-sft", "_lr1e-5"]),
    st.sampled_from(["-", "_"]),
)
def test_other_words_and_punctuation_change_nothing(name, before, after, between):
    part = f"{before}{name}{after}".replace("-", between)
    assert builtin_of_folder(f"/models/{part}/checkpoint-10") == builtin_of_folder(f"/models/{name}")
