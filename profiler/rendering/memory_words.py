"""Words for categories and sizes of memory. Apart from `sweep/words.py`, so that an estimate does not import pandas."""

from profiler.domain.memory import Category, as_gib

CATEGORY_TITLES = {
    Category.WEIGHTS: "weights",
    Category.REFERENCE: "reference model",
    Category.REWARD_MODEL: "reward models",
    Category.CRITIC: "critic",
    Category.ADAPTERS: "adapters",
    Category.GRADIENTS: "gradients",
    Category.OPTIMIZER_STATE: "optimizer state",
    Category.ACTIVATIONS: "activations",
    Category.LOGITS: "logits",
    Category.KV_CACHE: "KV cache",
    Category.INPUTS: "inputs",
    Category.ENGINE: "vLLM",
    Category.COMMUNICATION: "communication",
    Category.WORKSPACE: "workspace",
    Category.OTHER: "other",
}


def gib_number(size_bytes: int) -> str:
    """Return GiB without the unit: one decimal, or two significant digits below 0.1 GiB."""
    value = as_gib(size_bytes)
    return f"{value:.1f}" if value >= 0.1 or size_bytes == 0 else f"{value:.2g}"
