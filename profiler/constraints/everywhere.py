"""Constraints of every command: what trl and the libraries under it refuse, and what is not constructed."""

from functools import partial
from math import gcd

from profiler.constraints.constraint import Case, Constraint, Where, above, anything, other_than, stated
from profiler.constraints.several_gpus import OF_SEVERAL_GPUS
from profiler.constraints.vllm import OF_VLLM
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Attention, Backend, Dtype, Logprobs, TrialSpec, Tuning, Weights

_everywhere = partial(Constraint, Where.EVERYWHERE)

_FOUR_BITS = "bitsandbytes 4-bit"
_WITH_CRITIC = "is not combined with critic=true, which is trained as a whole on one GPU"
_WITH_TOKENS = "is not combined with use_dynamic_bsz=true, which splits the rows of whole optimizer steps"
_BY_TOKENS = {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": anything}
_WAYS_OF_LABELS = f"Use logprobs={', '.join(each for each in Logprobs if each.is_of_labels)}."
_WAYS_OF_COMPLETIONS = f"Use logprobs={', '.join(each for each in Logprobs if each.is_of_completions)}."
_FLASH = {"attn_implementation": Attention.FLASH_ATTENTION_2}


def _generated(spec: TrialSpec) -> int:
    """Return the completions that all processes generate at once."""
    return spec.generation_batch_size * spec.num_processes


def _must_divide(case: Case) -> str:
    """Return the sentence with the keys that make the completions generated at once, and their values."""
    spec = case.spec
    names = ["per_device_train_batch_size", "steps_per_generation", *["num_processes"] * (spec.num_processes > 1)]
    factors = " x ".join(str(getattr(spec, name)) for name in names)
    return f"must divide the completions generated at once, {' x '.join(names)} = {factors} = {_generated(spec)}"


def _next_batch(case: Case) -> str:
    """Return the next batch that the completions per prompt divide."""
    spec = case.spec
    step = spec.num_generations // gcd(spec.num_generations, spec.steps_per_generation * spec.num_processes)
    enough = -(-spec.per_device_train_batch_size // step) * step
    return f"The next batch that it divides is per_device_train_batch_size={enough}."


def _ends_with_its_positions(architecture: Architecture) -> bool:
    return not architecture.has_rotary_positions


def _is_beyond_context(case: Case) -> bool:
    return case.spec.row_tokens > case.model.context


def _longest_completion(case: Case) -> str:
    longest = case.model.context - case.spec.max_prompt_length
    return f"Use at most max_completion_length={longest}." if longest > 0 else "Use a shorter max_prompt_length."


def _card_lacks_flash(case: Case) -> bool:
    """Return whether the card that the trial names is older than the kernels."""
    gpu = find_gpu(case.spec.gpu) if case.spec.backend.names_its_card else None
    return gpu is not None and not gpu.chip.has_flash_attention


def _is_unpublished(model: str) -> bool:
    builtin = find_builtin(model)
    return builtin is not None and not builtin.hub_ids


EVERYWHERE = (
    # `GRPOConfig.__post_init__` in trl 1.16.
    _everywhere(
        {
            "num_generations": anything,
            "per_device_train_batch_size": anything,
            "gradient_accumulation_steps": anything,  # the default of the next
            "steps_per_generation": anything,
            "num_processes": anything,
        },
        _must_divide,
        _next_batch,
        when=lambda case: _generated(case.spec) % case.spec.num_generations,
    ),
    *OF_SEVERAL_GPUS,
    *OF_VLLM,
    _everywhere(
        {"max_completion_length": anything, "max_prompt_length": anything, "model": anything},
        "with max_prompt_length={spec.max_prompt_length} a row has {spec.row_tokens} tokens, but the context of "
        "{spec.model} is {model.context}, and its config.json states no rotary positions",
        _longest_completion,
        model=_ends_with_its_positions,
        when=_is_beyond_context,
    ),
    _everywhere(
        {"max_length": anything, "model": anything},
        "is more than the context of {spec.model}, which has {model.context} tokens and no rotary positions",
        "Use at most max_length={model.context}.",
        model=_ends_with_its_positions,
        when=_is_beyond_context,
    ),
    _everywhere(
        {"lora_dropout": lambda part: part >= 1},
        "must be less than 1, because adapters of which everything is dropped learn nothing",
    ),
    # The class that trl makes of the file: `create_model_from_path` in trl 1.16's `trainer/utils.py`.
    _everywhere(
        {"model": anything},
        "its config.json names {model.other_head}, which has no language model head",
        "Name a checkpoint of a causal language model.",
        model=lambda model: model.other_head,
    ),
    _everywhere(
        {"tuning": Tuning.QLORA, "backend": Backend.CPU},
        "needs backend=cuda, emulated or simulated, because bitsandbytes' 4-bit layers are made on a GPU",
        "Use tuning=lora on the CPU.",
    ),
    # `OffloadActivations` of trl 1.16 asks torch for the accelerator.
    _everywhere(
        {"activation_offloading": True, "recipe": Recipe.SFT, "backend": Backend.CPU},
        "needs backend=cuda, emulated or simulated with recipe=sft, as trl's offloading asks for a GPU",
        "Use recipe=grpo on the CPU, which is offloaded by torch.",
    ),
    _everywhere(
        {"activation_offloading": True, "num_processes": above(1)},
        "was never compared on several GPUs, and num_processes is {spec.num_processes}",
        "Set num_processes=1, or use `python -m profiler.run` with your own script.",
    ),
    # A critic is a second model of the same size.
    _everywhere({"tuning": other_than(Tuning.FULL), "critic": True}, _WITH_CRITIC, "Use tuning=full."),
    _everywhere({"num_processes": above(1), "critic": True}, _WITH_CRITIC, "Set num_processes=1."),
    _everywhere({"activation_offloading": True, "critic": True}, _WITH_CRITIC, "Set activation_offloading=false."),
    _everywhere({"use_liger_kernel": True, "critic": True}, _WITH_CRITIC, "Set use_liger_kernel=false."),
    _everywhere(
        {"logprobs": lambda value: not value.is_of_labels, "recipe": Recipe.SFT},
        "is of recipes that generate completions, and recipe is sft",
        _WAYS_OF_LABELS,
    ),
    _everywhere(
        {"logprobs": lambda value: not value.is_of_completions, "recipe": other_than(Recipe.SFT)},
        "is of recipe=sft, and recipe is {spec.recipe}",
        _WAYS_OF_COMPLETIONS,
    ),
    _everywhere(
        {"use_liger_kernel": True, "logprobs": lambda value: value.label_loss is not None},
        "is not combined with logprobs={spec.logprobs}, because Liger's loss of labels makes no logits",
        "Use logprobs=fused, or use_liger_kernel=false.",
    ),
    # verl asks for the same limit.
    _everywhere(
        {
            "ppo_max_token_len_per_gpu": stated,
            "use_dynamic_bsz": True,
            "max_prompt_length": anything,
            "max_completion_length": anything,
        },
        "is less than one row, because prompt and completion of this trial have {spec.row_tokens} tokens",
        "Use at least ppo_max_token_len_per_gpu={spec.row_tokens}.",
        when=lambda case: (case.spec.ppo_max_token_len_per_gpu or 0) < case.spec.row_tokens,
    ),
    _everywhere({"num_processes": above(1), **_BY_TOKENS}, _WITH_TOKENS, "Set num_processes=1."),
    _everywhere({"logprobs": Logprobs.MINIBATCH, **_BY_TOKENS}, _WITH_TOKENS, "Use logprobs=fused, full or sliced."),
    _everywhere(
        {"steps_per_generation": anything, "gradient_accumulation_steps": anything, **_BY_TOKENS},
        _WITH_TOKENS,
        "Use a multiple of {spec.gradient_accumulation_steps}.",
        when=lambda case: case.spec.steps_per_generation % case.spec.gradient_accumulation_steps,
    ),
    _everywhere(
        {**_FLASH, "backend": Backend.CPU},
        "needs backend=cuda, emulated or simulated, because its kernels are CUDA only",
        "Use attn_implementation=sdpa.",
    ),
    _everywhere(
        {**_FLASH, "backend": anything, "gpu": anything},
        "needs an Ampere card or newer, which {spec.gpu} is not",
        "Use attn_implementation=sdpa.",
        when=_card_lacks_flash,
    ),
    _everywhere(
        {**_FLASH, "backend": other_than(Backend.CPU), "gpu": anything, "dtype": Dtype.FLOAT32, "bf16": False},
        "needs 16-bit values, so dtype=bfloat16, dtype=float16 or bf16=true",
        "Use attn_implementation=sdpa.",
        when=lambda case: not _card_lacks_flash(case),
    ),
    # `PreTrainedModel._sdpa_can_dispatch` of transformers 5.23: only a stated sdpa is an error.
    _everywhere(
        {"attn_implementation": Attention.SDPA, "model": anything},
        "transformers has no sdpa for {model.model_type}",
        "Use attn_implementation=eager, or null for transformers' default.",
        model=lambda model: not model.has_sdpa,
    ),
    _everywhere(
        {"weights": Weights.PRETRAINED, "model": _is_unpublished},
        "model={spec.model} has no published weights, so only random ones",
        "Use weights=random, or a hub id or a local folder as model.",
    ),
    # Of quantised checkpoints only those of QLoRA are counted as they are.
    _everywhere(
        {"model": anything, "tuning": anything},
        "its checkpoint is quantised ({model.quantization}), which tuning={spec.tuning} does not count",
        "Name the model that is not quantised.",
        model=lambda model: model.quantization not in ("", _FOUR_BITS),
    ),
    _everywhere(
        {"model": anything, "tuning": other_than(Tuning.QLORA)},
        "its checkpoint is quantised ({model.quantization}), which tuning={spec.tuning} does not count",
        "Use tuning=qlora.",
        model=lambda model: model.quantization == _FOUR_BITS,
    ),
)
