"""What the closed form says of a run, for the release that ran."""

from collections.abc import Mapping
from functools import partial

from maintenance.releases.runs import GPU, MODELS, SCRIPT, TRL, Run, package_of
from profiler.api import UsageError, estimate, read_recipe
from profiler.domain.trials.trial import Dtype

RECIPE = SCRIPT.with_suffix(".yaml")
"""The settings of every job, which its script reads."""

_TOKENS = 512
_ROWS: Mapping[str, Mapping[str, object]] = {
    "sft": {"max_length": _TOKENS + 1},
    "dpo": {"max_length": 2 + _TOKENS, "max_prompt_length": 2},
    "grpo": {"num_generations": 4, "max_completion_length": _TOKENS, "max_prompt_length": 4},
}
"""Lengths of the script's rows, by trainer: those of SFT get a token at their end. The logits of trl 1.6 are of 4 x 513
tokens with SFT, 8 x 514 with DPO, and 4 x 513 with GRPO, one before the completion."""
_ADAPTERS: Mapping[str, object] = {"lora_rank": 8, "lora_target_modules": ["q_proj", "v_proj"]}
"""peft's defaults for Qwen2."""
_TUNINGS: Mapping[str, Mapping[str, object]] = {
    "full": {},
    "lora": _ADAPTERS,
    "qlora": {**_ADAPTERS, "bnb_4bit_use_double_quant": False},
}
"""Keys by tuning; `BitsAndBytesConfig` leaves double quantisation off."""


_FSDP: Mapping[str, object] = {
    "distributed_type": "fsdp",
    "fsdp_version": 2,
    "fsdp_cpu_ram_efficient_loading": True,
}
"""What `trl_recipe_fsdp.yaml` says, and how accelerate loads by default."""

_ASKS_FOR_FLOAT32 = (0, 27)
"""The first minor release of trl that does. Before, transformers decides the type of weights: from its release 5 on it
is that of the checkpoint, bfloat16. Source: `create_model_from_path` in `trl/trainer/utils.py` of 0.24 and 0.27.2."""


def estimated_bytes(run: Run) -> int | None:
    """Return the estimated peak of allocated memory; None where the release has no closed form.

    The release of trl decides defaults and the way to compute the loss, as for `estimate trl=`. That of another package
    decides nothing.
    """
    package = package_of(run)
    release = run.release if package.installed == TRL.name else TRL.releases[-1]
    first, second, *_ = map(int, release.split("."))
    keys: dict[str, object] = {
        "lengths": "forced",
        **_ROWS[run.trainer],
        "tuning": run.tuning,
        **_TUNINGS[run.tuning],
        "model": MODELS[run.model],
        **(_FSDP if run.gpus > 1 else {}),
        **({"use_vllm": True, "vllm_mode": "colocate"} if package.engine else {}),
        "num_processes": run.gpus,
    }
    read = partial(read_recipe, RECIPE, trl=f"{first}.{second}", recipe=run.trainer, gpu=GPU, **keys)
    try:
        found = estimate(read())
        if (first, second) < _ASKS_FOR_FLOAT32 and found.keys["dtype"] == Dtype.FLOAT32:
            found = estimate(read(dtype=Dtype.BFLOAT16.value))
    except UsageError:
        return None
    return found.peak_allocated_bytes
