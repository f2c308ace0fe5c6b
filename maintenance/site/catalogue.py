"""What the page shows before Python has started: the fields of the form, models, cards, names and colours."""

from collections.abc import Mapping, Sequence
from typing import Any

from profiler import __version__
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS, VISION_MODELS
from profiler.domain.trials.keys import Kind
from profiler.domain.trials.trial import key_named
from profiler.rendering.figures.theme import CATEGORY_COLOURS
from profiler.rendering.memory_words import CATEGORY_TITLES

GROUPS: Mapping[str, Sequence[str]] = {
    "Model and card": ("model", "gpu", "tuning", "lora_rank", "optim"),
    "Lengths and batch": (
        "max_prompt_length", "max_completion_length", "num_generations", "per_device_train_batch_size",
        "gradient_accumulation_steps",
    ),
    "Memory": ("gradient_checkpointing", "beta", "attn_implementation", "use_liger_kernel", "activation_offloading"),
    "vLLM": ("use_vllm", "vllm_mode", "vllm_gpu_memory_utilization", "vllm_enable_sleep_mode"),
    "Several GPUs": ("num_processes", "distributed_type", "zero_stage"),
}  # fmt: skip
"""Keys of the form. All others can be typed as key=value."""

SLIDERS = {"max_completion_length": 8192, "num_generations": 64, "per_device_train_batch_size": 64}
"""Keys with a slider, and its right end."""


def catalogue() -> dict[str, Any]:
    """Return it as JSON can hold it."""
    return {
        "version": __version__,
        "models": [*BUILTIN_MODELS, *VISION_MODELS],
        "cards": [{"name": card.name, "title": card.title, "bytes": card.memory_bytes} for card in _cards()],
        "groups": [{"title": title, "keys": [_field(name) for name in names]} for title, names in GROUPS.items()],
        "phases": [phase.value for phase in Phase],
        "categories": [
            {"name": each.value, "title": CATEGORY_TITLES[each], "colour": CATEGORY_COLOURS[each]} for each in Category
        ],
    }


def _cards() -> list[Any]:
    return sorted(KNOWN_GPUS.values(), key=lambda card: card.memory_bytes)


def _field(name: str) -> dict[str, Any]:
    key = key_named(name)
    words = list(KNOWN_GPUS) if name == "gpu" else list(key.allowed) if key.kind is Kind.CHOICE or key.values else []
    return {
        "name": name,
        "kind": "choice" if words else key.kind.value,
        "words": words,
        "minimum": key.minimum,
        "slider": SLIDERS.get(name),
        "meaning": key.meaning,
    }
