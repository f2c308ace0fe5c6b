"""Models and trials whose numbers are worked out by hand.

The toy model has 2 layers, H = 8, I = 16, V = 100, 2 query heads and 1 key head of 4, and a tied head.
"""

from dataclasses import replace

from profiler.analytical.formulas.sizes.batch import Batch
from profiler.config.models.architecture import read_architecture
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import ALL_LINEAR, Attention, Backend, Dtype, TrialSpec, Tuning


def architecture_of(name: str) -> Architecture:
    """Return a built-in model."""
    return read_architecture(BUILTIN_MODELS[name].config, model=name)


HALF_BILLION = architecture_of("qwen2.5-0.5b")
TOY = Architecture(
    model_type="qwen2",
    vocab_size=100,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    qkv_bias=True,
)

FULL = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="toy", gradient_checkpointing=False)
LORA = replace(FULL, tuning=Tuning.LORA, lora_rank=2, lora_alpha=4, lora_target_modules=(ALL_LINEAR,))
QLORA = replace(LORA, tuning=Tuning.QLORA)
EAGER = replace(FULL, attn_implementation=Attention.EAGER)
OLD = replace(FULL, gpu="t4-16gb")
HALF = replace(FULL, dtype=Dtype.FLOAT16, bf16=True)
WIDE = replace(FULL, dtype=Dtype.FLOAT32, bf16=False)
CAST = replace(FULL, dtype=Dtype.FLOAT32, bf16=True)
AUTOCAST, NO_AUTOCAST = {"autocast": True}, {"autocast": False}
ADAPTED, PLAIN = {"adapted": True, **AUTOCAST}, {"adapted": False, **AUTOCAST}
WITHOUT = {"adapted": True, **NO_AUTOCAST}


def adapting(*names, spec=LORA):
    """Return a trial whose adapters are of these layers."""
    return replace(spec, lora_target_modules=names)


def batch(rows=1, tokens=8, has_mask=False):
    """Return rows with 5 tokens of completion each."""
    return Batch(rows=rows, prompt_tokens=tokens - 5, completion_tokens=5, scored_tokens=5 * rows, has_mask=has_mask)


def completions(rows=1, tokens=10, has_mask=False, **keys):
    """Return rows after a prompt of 4 tokens."""
    scored = keys.pop("scored_tokens", rows * tokens)
    return Batch(rows=rows, prompt_tokens=4, completion_tokens=tokens, scored_tokens=scored, has_mask=has_mask, **keys)


EIGHT, TEN, SIX, MASKED = batch(), batch(tokens=10), batch(tokens=6), batch(has_mask=True)
ONE, TWO = completions(), completions(rows=2, has_mask=True)
LABELLED = Batch(rows=2, prompt_tokens=1, completion_tokens=10, scored_tokens=20, loss_tensors=0, has_mask=True)
LONG = replace(LABELLED, completion_tokens=1000, scored_tokens=2000)
MICRO_BATCH = Batch(rows=4, prompt_tokens=256, completion_tokens=786, scored_tokens=2_555, has_mask=True)
RAGGED = Batch(rows=2, prompt_tokens=3, completion_tokens=5, scored_tokens=7, has_mask=True)
NORMED, OWN_KEYS = replace(TOY, qk_norm=True), replace(TOY, num_key_value_heads=2)
GEMMA = replace(TOY, model_type="gemma2", norms_per_layer=4)
PHI, WIDE_QUERIES = replace(TOY, model_type="phi3"), replace(TOY, num_attention_heads=8)
WIDER_MLP = replace(TOY, intermediate_size=32)
