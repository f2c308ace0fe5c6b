"""Keys of trl 1.16 that change memory without a formula, by where they do."""

from collections.abc import Mapping

from profiler.config.models.uncounted import Direction, Uncounted

_REENTRANT = Uncounted(
    what="layers are recomputed by another code path of torch",
    direction=Direction.EITHER,
    neutral=({}, {"use_reentrant": False}),
)

ANY_TRAINER: Mapping[str, Uncounted] = {
    "activation_checkpointing_kwargs": _REENTRANT,
    "gradient_checkpointing_kwargs": _REENTRANT,
    "liger_kernel_config": Uncounted(
        what="chooses Liger's kernels one by one", direction=Direction.EITHER, neutral=({},)
    ),
    "full_determinism": Uncounted(
        what="kernels that always add in one order need other scratch", direction=Direction.LOW, neutral=(False,)
    ),
    "pad_to_multiple_of": Uncounted(
        what="rows are padded to a multiple of it", direction=Direction.LOW, neutral=(0, 1)
    ),
}
"""Keys of every trainer."""

OF_GENERATION: Mapping[str, Uncounted] = {
    "top_k": Uncounted(what="sampling sorts the logits", direction=Direction.LOW, neutral=(0, -1)),
    "top_p": Uncounted(what="sampling sorts the logits", direction=Direction.LOW, neutral=(1, 1.0)),
    "min_p": Uncounted(what="sampling makes probabilities of the logits", direction=Direction.LOW, neutral=(0, 0.0)),
    "repetition_penalty": Uncounted(what="sampling copies the logits", direction=Direction.LOW, neutral=(1, 1.0)),
    "generation_kwargs": Uncounted(what="changes generation", direction=Direction.EITHER, neutral=({},)),
}
"""Keys of completions that transformers generates; those of vLLM are in its own part of the card."""

OF_ENGINE: Mapping[str, Uncounted] = {
    "vllm_importance_sampling_correction": Uncounted(
        what="the policy does not score its completions again", direction=Direction.HIGH, neutral=(True,)
    ),
}
"""Keys of completions that vLLM generates."""

OF_ZERO_3: Mapping[str, Uncounted] = {
    "ds3_gather_for_generation": Uncounted(
        what="ZeRO-3 gathers weights layer by layer while it generates, not all at once",
        direction=Direction.HIGH,
        neutral=(True,),
    ),
}
"""Keys of ZeRO-3 (`unwrap_model_for_generation` in trl's `models/utils.py`)."""

OF_ROWS: Mapping[str, Uncounted] = {
    "label_smoothing_factor": Uncounted(
        what="the loss is that of all logits, in a forward of its own", direction=Direction.LOW, neutral=(0, 0.0)
    ),
}
"""Keys of `SFTTrainer.compute_loss`."""

OF_EXPERTS: Mapping[str, Uncounted] = {
    "router_aux_loss_coef": Uncounted(what="whether the loss keeps what routers computed", direction=Direction.EITHER),
}
"""Keys of mixtures of experts."""

EFFECTS: Mapping[str, Uncounted] = {
    **ANY_TRAINER,
    **OF_GENERATION,
    **OF_ENGINE,
    **OF_ZERO_3,
    **OF_ROWS,
    **OF_EXPERTS,
}
"""All of them."""
