"""The samples of trials that are emulated: of several GPUs, and of one in float16 or with other optimizers."""

from collections.abc import Mapping, Sequence

from maintenance.samples.benchmark import BENCHMARK, LAST_THIRD
from maintenance.samples.emulated_sample import Sample
from maintenance.samples.sampling import Narrowed, architecture_of
from profiler.analytical.estimate import has_form
from profiler.analytical.formulas.models.parameters import parameter_count
from profiler.analytical.formulas.models.trained import trainable_parameter_count
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import GIB
from profiler.domain.trials.trial import ZERO_OF_WEIGHTS, DistributedType, OffloadDevice, TrialSpec

_AXES: Mapping[str, Sequence[object]] = {
    "recipe": ("grpo", "grpo", "grpo", "sft"),
    "model": ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "llama-3.2-1b", "llama-3.2-3b", "qwen3-1.7b"),
    "gpu": ("h100-80gb", "a100-40gb"),
    "num_processes": (2, 4, 8),
    "distributed_type": ("multi_gpu", "fsdp", "fsdp", "fsdp"),
    "fsdp_reshard_after_forward": (True, True, False),
    "fsdp_activation_checkpointing": (False, False, True),
    "gradient_checkpointing": (True, False),
    "tuning": ("full", "lora"),
    "lora_rank": (8, 16, 64),
    "lora_target_modules": (("all-linear",), ("q_proj", "v_proj")),
    "optim": ("adamw_torch_fused", "adamw_torch_fused", "adamw_torch", "sgd"),
    "num_generations": (2, 4, 8),
    "max_prompt_length": (64, 256, 512),
    "max_completion_length": (64, 256, 786),
    "max_length": (256, 1024),
    "lengths": ("ragged", "forced"),
    "per_device_train_batch_size": (1, 2, 4, 8),
    "gradient_accumulation_steps": (1, 2, 4),
    "logprobs": ("fused", "fused", "full"),
    "steps": (2, 3),
}
"""Values of each key, as literals; each entry is equally likely."""

_WITHOUT_FSDP = {key: values for key, values in _AXES.items() if not key.startswith("fsdp_")}

_SHARDED_AXES: Mapping[str, Sequence[object]] = {
    **_WITHOUT_FSDP,
    "recipe": ("grpo", "grpo", "grpo", "rloo", "sft"),
    "model": (
        "qwen2.5-0.5b",
        "qwen2.5-1.5b",
        "qwen2.5-3b",
        "llama-3.2-1b",
        "llama-3.2-3b",
        "qwen3-0.6b",
        "qwen3-1.7b",
        "smollm2-1.7b",
        "smollm3-3b",
        "gemma-2b",
        "phi-4-mini",
        "deepseek-r1-distill-qwen-1.5b",
    ),
    "gpu": ("h100-80gb", "a100-80gb"),
    "distributed_type": ("multi_gpu", "fsdp", "fsdp", "deepspeed", "deepspeed"),
    "beta": (0.0, 0.0, 0.04),
    "alloc_conf": (None, None, None, "expandable_segments:True", "max_split_size_mb:256"),
}

_NARROWED: Sequence[Narrowed] = (
    (
        "distributed_type",
        ("fsdp",),
        {
            "fsdp_reshard_after_forward": (True, True, False),
            "fsdp_activation_checkpointing": (False, False, True),
            "fsdp_offload_params": (False, False, False, False, True),
        },
    ),
    (
        "distributed_type",
        ("deepspeed",),
        {
            "zero_stage": (2, 3),
            "offload_optimizer_device": ("none", "none", "cpu"),
            "offload_param_device": ("none",),
        },
    ),
    ("zero_stage", (ZERO_OF_WEIGHTS,), {"offload_param_device": ("none", "none", "cpu")}),
)

_DEEPSPEED_AXES: Mapping[str, Sequence[object]] = {
    **_WITHOUT_FSDP,
    "distributed_type": ("deepspeed",),
    "zero_stage": (1, 2, 2, 3, 3),
    "offload_optimizer_device": ("none", "none", "none", "cpu"),
    "offload_param_device": ("none", "none", "none", "cpu"),
    "beta": (0.0, 0.0, 0.04),
}


_FLOAT16_AXES: Mapping[str, Sequence[object]] = {
    "recipe": ("grpo", "grpo", "rloo", "sft", "dpo", "kto"),
    "model": ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-0.6b", "llama-3.2-1b", "smollm2-1.7b", "gemma-2b"),
    "gpu": ("t4-16gb", "t4-16gb", "h100-80gb"),
    "fp16": (True,),
    "bf16": (False,),
    "dtype": ("float32", "float32", "float16", "bfloat16"),
    "tuning": ("full", "lora", "lora"),
    "lora_rank": (8, 16, 64),
    "lora_target_modules": (("all-linear",), ("q_proj", "v_proj")),
    "lora_dropout": (0.0, 0.0, 0.05),
    "optim": ("adamw_torch_fused", "adamw_torch", "adamw_8bit", "sgd"),
    "gradient_checkpointing": (True, False),
    "beta": (0.0, 0.0, 0.04),
    "attn_implementation": ("sdpa", "sdpa", "eager"),
    "logprobs": ("fused", "fused", "full", "sliced"),
    "num_generations": (2, 4, 8),
    "max_prompt_length": (64, 256, 512),
    "max_completion_length": (64, 256, 512),
    "max_length": (128, 512, 1024),
    "lengths": ("ragged", "forced"),
    "per_device_train_batch_size": (2, 4, 8),
    "gradient_accumulation_steps": (1, 2, 4),
    "steps": (2, 3),
}

_OPTIMIZER_AXES: Mapping[str, Sequence[object]] = {
    **{key: values for key, values in _FLOAT16_AXES.items() if key != "fp16"},
    "gpu": ("h100-80gb", "a100-80gb"),
    "bf16": (True,),
    "dtype": ("bfloat16", "bfloat16", "float32"),
    "tuning": ("full", "full", "lora", "qlora"),
    "optim": (
        *("paged_adamw_32bit", "paged_adamw_32bit", "lion_8bit", "lion_32bit", "paged_lion_8bit", "paged_lion_32bit"),
        *("ademamix_8bit", "ademamix", "paged_ademamix_8bit", "paged_ademamix_32bit"),
        *("rmsprop_bnb_8bit", "rmsprop_bnb_32bit"),
    ),
}

_PREFERRED: Sequence[Narrowed] = (
    ("recipe", ("sft",), {"logprobs": ("fused", "nll")}),
    ("recipe", ("dpo", "kto"), {"logprobs": ("fused",), "beta": (0.1,)}),
)


_OFFLOADED_BYTES = 20
"""Of each offloaded value: master weight, two states, and gradients in two types, rounded up."""
_MOST_ON_HOST_BYTES = 8 * GIB


def _has_form(spec: TrialSpec) -> bool:
    architecture = architecture_of(spec.model)
    return spec.distributed_type is not DistributedType.NO and has_form(spec, architecture) and _fits_host(spec)


def _fits_host(spec: TrialSpec) -> bool:
    """Return whether the host of the emulation has enough memory for what is offloaded, which is really there."""
    if spec.offload_optimizer_device is not OffloadDevice.CPU and not spec.fsdp_offload_params:
        return True
    values = trainable_parameter_count(spec, architecture_of(spec.model)) // spec.num_processes
    return int(values) * _OFFLOADED_BYTES <= _MOST_ON_HOST_BYTES


def _fits_card(spec: TrialSpec) -> bool:
    """Return whether weights in float32, gradients and two states take at most half of the card."""
    architecture = architecture_of(spec.model)
    kept = 4 * parameter_count(architecture) + _KEPT_BYTES * trainable_parameter_count(spec, architecture)
    return int(kept) <= KNOWN_GPUS[str(spec.gpu)].memory_bytes // 2


_KEPT_BYTES = 12
"""Of each trained value, without its weight: a gradient and two states."""


SAMPLES: Mapping[str, Sample] = {
    each.name: each
    for each in (
        Sample(
            name="several_gpus",
            count=60,
            seed=1516,
            axes=_AXES,
            is_wanted=_has_form,
            earlier=(
                "An earlier sample (seed 1515; median 0.7 %, 95th percentile 11.6 %, worst +18.1 %) had shown that "
                "adapters under FSDP were taken for float32 ones; their formula was corrected, and then this sample "
                "was drawn. This one showed that outputs under FSDP are not cast to float32 (worst then +19.2 %, with "
                "logprobs=full); that formula was corrected after it, from the source of torch and accelerate. "
                "Trials by FSDP ran again once their models were read by the host: of 16 the peak had been loading. "
                "They showed that a tied head is gathered with its buffer before a forward (worst then -24.5 %)."
            ),
        ),
        Sample(
            name="deepspeed",
            count=30,
            seed=1517,
            axes=_DEEPSPEED_AXES,
            is_wanted=_has_form,
            earlier=(
                "The formulas were written with DeepSpeed's source and the histories of eight emulated trials of "
                "qwen2.5-0.5b and 3b, and looked at next to 16 of 1.5b and 7b, before this sample was drawn. Trial 4 "
                "showed that frozen layers save their inputs under ZeRO-3 (-10.8 % then); that formula was added after "
                "seven trials of this sample, from DeepSpeed's source. After 29, its source also showed that DeepSpeed "
                "gathers ahead from the second pass on, not from the third (worst then -29.1 %), and that weights in "
                "the host's memory are copied to the GPU before they are gathered to generate (worst then -7.0 %), and "
                "a recorded history that an LM head is gathered beyond the limit (worst then -6.5 %)."
            ),
        ),
        Sample(
            name="deepspeed_blind",
            count=30,
            seed=1521,
            axes=_DEEPSPEED_AXES,
            is_wanted=_has_form,
            earlier=(
                "It was drawn after the sample of seed 1517 had shown four missing formulas, and tests those that were "
                "added. Only formulas of a layer on one GPU were changed after it, because of simulated trials of one "
                "GPU."
            ),
        ),
        Sample(
            name="sharded",
            count=40,
            seed=2053,
            axes=_SHARDED_AXES,
            narrowed=_NARROWED,
            is_wanted=_fits_host,
            earlier=(
                "It has families, ways of log-probabilities and offloads that the other samples lack, and trials by "
                "FSDP with `fsdp_offload_params`, for which there is no closed form. These six fail when they are "
                "emulated: token ids or the norm of gradients are on the host where the card or NCCL needs them."
            ),
        ),
        Sample(
            name="float16",
            count=48,
            seed=3001,
            axes=_FLOAT16_AXES,
            narrowed=_PREFERRED,
            is_wanted=_fits_card,
            earlier=(
                "Formulas and simulation of `fp16=true` were looked at next to 69 emulated trials of six recipes, "
                "eleven ways and two cards before this sample was drawn."
            ),
            what="float16",
        ),
        Sample(
            name="optimizers",
            count=48,
            seed=3002,
            axes=_OPTIMIZER_AXES,
            narrowed=_PREFERRED,
            is_wanted=_fits_card,
            earlier=(
                "The formulas were written from the source of bitsandbytes, and looked at next to 33 simulated trials "
                "of qwen2.5-0.5b, six of them emulated too, before this sample was drawn. It has the optimizers that "
                "the sample of one GPU lacks."
            ),
            what="other optimizers",
        ),
        BENCHMARK,
        LAST_THIRD,
    )
}
