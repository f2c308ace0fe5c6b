"""Gemma 2 and 3."""

from profiler.domain.models.entry import BuiltinModel

GEMMA = (
    BuiltinModel(
        name="gemma-2-2b",
        hub_ids=(
            "google/gemma-2-2b",
            "google/gemma-2-2b-it",
        ),
        parameters=2_614_341_888,
        config={
            "model_type": "gemma2",
            "head_dim": 256,
            "vocab_size": 256000,
            "tie_word_embeddings": True,
            "max_position_embeddings": 8192,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
        },
    ),
    BuiltinModel(
        name="gemma-2-9b",
        hub_ids=(
            "google/gemma-2-9b",
            "google/gemma-2-9b-it",
        ),
        parameters=9_241_705_984,
        config={
            "model_type": "gemma2",
            "head_dim": 256,
            "vocab_size": 256000,
            "tie_word_embeddings": True,
            "max_position_embeddings": 8192,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_hidden_layers": 42,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
        },
    ),
    BuiltinModel(
        name="gemma-3-1b",
        hub_ids=(
            "google/gemma-3-1b-pt",
            "google/gemma-3-1b-it",
        ),
        parameters=999_885_952,
        config={
            "model_type": "gemma3_text",
            "head_dim": 256,
            "vocab_size": 262144,
            "tie_word_embeddings": True,
            "max_position_embeddings": 32768,
            "sliding_window": 512,
            "query_pre_attn_scalar": 256,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-06,
        },
    ),
)
