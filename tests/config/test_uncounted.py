"""Every field of the installed configurations is counted, named, refused, or free for a reason."""

import dataclasses

import pytest
from small_models import small_config
from transformers import CONFIG_MAPPING, PreTrainedConfig

from profiler.config.models import fields as model_fields
from profiler.config.models.architecture import MODEL_TYPES, read_architecture
from profiler.config.models.fields import (
    COUNTED,
    REFUSED,
    SWITCHED_OFF,
    UNCOUNTED,
)
from profiler.config.notes import Direction, uncounted_texts
from profiler.config.trl import argument_keys as trl_effects
from profiler.config.trl.argument_keys import FREE_KEYS, FREE_KEYS_BY_REASON, KEY_OF, MODEL_KEYS, NEUTRAL_VALUES
from profiler.config.trl.config import LORA_DROPOUT, read_trl_config
from profiler.domain.architectures.families import FAMILIES
from profiler.estimate.main import answer

FREE = {
    "numbers by which the same tensors are multiplied, or made once": frozenset(
        """
        rms_norm_eps initializer_range attention_multiplier embedding_multiplier residual_multiplier logits_scaling
        query_pre_attn_scalar router_aux_loss_coef norm_topk_prob routed_scaling_factor n_group topk_group
        swiglu_alpha swiglu_limit rope_interleave
        """.split()  # noqa: SIM905
    ),
    "rotary positions: tables of the same size, less than counted where layers or heads have none": frozenset(
        """
        rope_parameters rope_scaling rope_theta partial_rotary_factor original_max_position_embeddings
        no_rope_layers no_rope_layer_interval tokens_per_second
        """.split()  # noqa: SIM905
    ),
    "layers of the checkpoint that predict further tokens, which a model for training does not have": frozenset(
        {"num_mtp_layers"}
    ),
    "tokens with a meaning of their own": frozenset(
        """
        bos_token_id eos_token_id eod_token_id pad_token_id image_token_id video_token_id vision_start_token_id
        vision_end_token_id
        """.split()  # noqa: SIM905
    ),
    "transformers 5.23 reads them in no layer of these types": frozenset(
        "pretraining_tp embd_pdrop chunk_size_feed_forward problem_type id2label label2id".split()  # noqa: SIM905
    ),
    "of the file or of the call, not of the model; the type of the weights is a key of the trial": frozenset(
        "transformers_version return_dict dtype torch_dtype".split()  # noqa: SIM905
    ),
    "they say which layers slide or are linear; `context.py` names rows beyond the window": frozenset(
        "layer_types sliding_window sliding_window_pattern max_window_layers".split()  # noqa: SIM905
    ),
}
"""Fields that change nothing that has to be said, by the reason."""

OF_TOWERS = frozenset(
    """
    depth embed_dim hidden_size intermediate_size mlp_ratio num_heads out_hidden_size in_channels patch_size
    spatial_merge_size temporal_patch_size num_position_embeddings deepstack_visual_indexes
    """.split()  # noqa: SIM905
)
"""Fields of vision towers that `architecture.py` reads."""

OF_TOWERS_FREE = frozenset(
    """
    hidden_act initializer_range rope_parameters window_size fullatt_block_indexes tokens_per_second
    """.split()  # noqa: SIM905
)
"""Fields of vision towers that it does not read: patches attend in pieces of any size, in the same tensors."""

FREE_FIELDS = [name for names in FREE.values() for name in names]


def names(kind):
    return {each.name for each in dataclasses.fields(kind)}


def notes(**values):
    base = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "num_generations": 8}
    job = values.pop("job", None)
    return [note.text for note in read_trl_config({**base, **values}, job=job).notes if not note.is_counted]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_field_of_a_known_model_type_is_in_a_table(model_type):
    known = {*COUNTED, *REFUSED, *UNCOUNTED, *SWITCHED_OFF, *FREE_FIELDS}
    kind = CONFIG_MAPPING[model_type]
    parts = dict(getattr(kind, "sub_configs", {}))
    tower = parts.pop("vision_config", None)
    for part in (kind, *parts.values()):
        assert names(part) - known == set()
    if tower is not None:
        assert names(tower) - names(PreTrainedConfig) - {*OF_TOWERS, *OF_TOWERS_FREE} == set()


def test_no_field_is_in_two_tables_and_each_is_one_of_transformers():
    rows = [*COUNTED, *REFUSED, *UNCOUNTED, *SWITCHED_OFF, *FREE_FIELDS]
    assert len(rows) == len(set(rows))
    kinds = [CONFIG_MAPPING[name] for name in MODEL_TYPES]
    parts = [part for kind in kinds for part in (kind, *getattr(kind, "sub_configs", {}).values())]
    of_the_file = {"model_type", "rope_scaling", "rope_theta", "partial_rotary_factor", "torch_dtype"}
    of_the_file.add("full_attention_interval")
    assert set(rows) - {name for part in parts for name in names(part)} - of_the_file == {"output_attentions"}


def test_windows_are_those_of_transformers():
    for model_type in MODEL_TYPES:
        kind = CONFIG_MAPPING[model_type]
        kind = getattr(kind, "sub_configs", {}).get("text_config", kind)
        default = (kind().sliding_window or None) if "sliding_window" in names(kind) else None
        assert model_fields.sliding_window({}, FAMILIES[model_type]) == default, model_type
    assert model_fields.sliding_window({"sliding_window": None}, FAMILIES["mistral"]) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"resid_pdrop": 0.1}, "resid_pdrop=0.1 (each layer drops a part of two results and keeps their masks: the"),
        ({"hidden_act": "relu"}, "hidden_act=relu (the MLP saves other tensors"),
        ({"output_hidden_states": True}, "output_hidden_states=true"),
        ({"use_cache": False}, "use_cache=false"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
    ],
)
def test_a_value_that_is_not_counted_is_named_with_its_direction(fields, said):
    architecture = read_architecture(small_config("phi3", **fields), model="m")
    (text,) = architecture.uncounted
    assert text.startswith(said)
    assert any(direction in text for direction in Direction)
    usual = {"resid_pdrop": 0.0, "hidden_act": "silu", "output_hidden_states": False, "use_cache": True}
    assert not read_architecture(small_config("phi3", **usual), model="m").uncounted


def test_an_estimate_names_what_the_config_json_has():
    config = small_config("phi3", resid_pdrop=0.1, num_key_value_heads=4, max_position_embeddings=4096)
    config["rope_scaling"] = None
    said = " ".join(answer(["model=its/model"], load_model=lambda _: config).split())
    assert "Not counted, in the config.json of its/model: resid_pdrop=0.1" in said


def test_rows_beyond_a_window_are_named():
    said = " ".join(answer(["model=gemma-3-1b", "max_completion_length=400"]).split())
    assert "sliding_window=512 (rows of 656 tokens have a mask in some layers, counted in all" in said
    assert "sliding_window" not in answer(["model=gemma-3-1b", "max_completion_length=256"])


def test_every_key_of_trl_has_one_effect_and_free_ones_a_reason():
    from trl import GRPOConfig, ModelConfig, RLOOConfig, ScriptArguments, SFTConfig

    groups = [
        set(KEY_OF),
        set(MODEL_KEYS),
        set(NEUTRAL_VALUES),
        set(trl_effects.EFFECTS),
        *FREE_KEYS_BY_REASON.values(),
    ]
    for kind in (GRPOConfig, RLOOConfig, SFTConfig, ModelConfig, ScriptArguments):
        for name in names(kind) - {"model_init_kwargs"}:
            count = sum(name in group for group in groups)
            # The rows of an evaluation have a key, which `trl/config.py` reads itself.
            assert count == 1, (kind.__name__, name, count)
    assert set(FREE_KEYS) == set().union(*FREE_KEYS_BY_REASON.values()) | set(trl_effects.EFFECTS)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"ds3_gather_for_generation": False, "job": {"zero_stage": 3}}, "ZeRO-3 gathers weights layer by layer"),
        ({"top_p": 0.9}, "sampling sorts the logits"),
        ({"gradient_checkpointing_kwargs": {"use_reentrant": True}}, "by which code path"),
        ({"activation_checkpointing_kwargs": {"every_n_layers": 4}}, "which layers are recomputed"),
        ({"activation_checkpointing_kwargs": {"offload": True}}, "where their inputs wait"),
        ({"pad_to_multiple_of": 64}, "rows are padded"),
        ({"label_smoothing_factor": 0.1, "packing": False}, "all logits"),
        ({"use_vllm": True, "vllm_importance_sampling_correction": False}, "does not score its completions again"),
    ],
)
def test_a_key_of_trl_that_changes_memory_is_named(values, said):
    if "packing" in values:
        found = [note.text for note in read_trl_config({"model_name_or_path": "tiny", **values}).notes]
    else:
        found = notes(**values)
    assert any(said in text and "the figure may be too" in text for text in found), found


@pytest.mark.parametrize(
    "values",
    [
        {"ds3_gather_for_generation": False, "job": {"zero_stage": 2}},
        {"ds3_gather_for_generation": True, "job": {"zero_stage": 3}},
        {"top_p": 1.0, "top_k": 0},
        {"top_p": 0.9, "use_vllm": True},
        {"gradient_checkpointing_kwargs": {"use_reentrant": False}},
        {"label_smoothing_factor": 0.1},
        {"pad_to_multiple_of": None},
    ],
)
def test_a_key_that_changes_nothing_is_not_named(values):
    assert not [text for text in notes(**values) if "the figure may be" in text]


@pytest.mark.parametrize("key", ["torch_compile_backend", "torch_compile_mode"])
def test_a_key_that_turns_on_the_compiler_is_refused(key):
    """`TrainingArguments.__post_init__` then sets `torch_compile`."""
    (fault,) = read_trl_config({"model_name_or_path": "tiny", "beta": 0.1, key: "inductor"}).faults
    assert fault.key == key
    assert "only null" in fault.problem
    assert not read_trl_config({"model_name_or_path": "tiny", "beta": 0.1, key: None}).faults


def test_a_recipe_that_leaves_lora_dropout_open_has_the_default_of_trl():
    from peft import LoraConfig
    from trl import ModelConfig

    assert ModelConfig().lora_dropout == LORA_DROPOUT
    assert LoraConfig().lora_dropout == 0.0

    def dropout(**values):
        reading = read_trl_config({"model_name_or_path": "tiny", "num_generations": 8, **values})
        return reading.point.get("lora_dropout"), [note.text for note in reading.notes if note.key == "lora_dropout"]

    assert dropout(use_peft=True) == (0.05, ["lora_dropout=0.05 (trl's default; that of peft is 0)"])
    assert dropout(use_peft=True, lora_dropout=0.1) == (0.1, [])
    assert dropout(use_peft=True, lora_dropout=0.1, disable_dropout=True) == (0.0, [])
    assert dropout(use_peft=True, disable_dropout=True) == (0.0, [])
    assert dropout() == (None, [])


def test_true_is_no_number():
    assert uncounted_texts(trl_effects.OF_ROWS, {"label_smoothing_factor": False})
