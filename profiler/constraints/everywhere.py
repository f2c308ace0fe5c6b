"""Constraints of every command: what trl, vLLM and the libraries under them refuse, on any number of GPUs."""

from functools import partial
from math import gcd

from profiler.constraints.constraint import Case, Constraint, Where, above, anything, one_of, other_than, stated
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.architectures.families import family_of
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import OF_DATA, Recipe
from profiler.domain.trials.trial import (
    ZERO_OF_WEIGHTS,
    Attention,
    Backend,
    DistributedType,
    Dtype,
    Logprobs,
    OffloadDevice,
    TrialSpec,
    Tuning,
    Weights,
)

_everywhere = partial(Constraint, Where.EVERYWHERE)

_NEVER_BEFORE = (Logprobs.PAIRS_AT_ONCE, Logprobs.PAIRS_OF_COMPLETIONS, Logprobs.PAIRS_WIDENED)

OF_SEVERAL_GPUS = (
    _everywhere(
        {"distributed_type": DistributedType.NO, "num_processes": above(1)},
        "does not train on num_processes={spec.num_processes}",
        "Use multi_gpu, fsdp or deepspeed.",
    ),
    _everywhere({"fsdp_version": other_than(None, 1, 2)}, "must be 1 or 2"),
    # ZeRO offloads what it shards.
    _everywhere(
        {"offload_optimizer_device": OffloadDevice.CPU, "zero_stage": 0},
        "needs zero_stage=1, 2 or 3, and it is {spec.zero_stage}",
        "Use zero_stage=3.",
    ),
    _everywhere(
        {"offload_param_device": OffloadDevice.CPU, "zero_stage": other_than(ZERO_OF_WEIGHTS)},
        "needs zero_stage=3, and it is {spec.zero_stage}",
        "Use zero_stage=3.",
    ),
    # `map_pytorch_optim_to_deepspeed` of accelerate 1.15: others would silently be another optimizer.
    _everywhere(
        {
            "optim": other_than(Optimizer.ADAMW_TORCH, Optimizer.ADAMW_TORCH_FUSED),
            "offload_optimizer_device": OffloadDevice.CPU,
        },
        "with offload_optimizer_device=cpu accelerate runs DeepSpeed's AdamW on the CPU in its place",
        "Use optim=adamw_torch, which is the same optimizer.",
    ),
    # There is one backward per micro-batch, because accelerate's ends with DeepSpeed's step.
    _everywhere(
        {"logprobs": Logprobs.MINIBATCH, "distributed_type": DistributedType.DEEPSPEED},
        "has a backward per row, and with distributed_type=deepspeed a backward ends with the step",
        "Use logprobs=fused, full or sliced.",
    ),
    # accelerate refuses to checkpoint activations twice.
    _everywhere(
        {"fsdp_activation_checkpointing": True, "gradient_checkpointing": True},
        "cannot be combined with gradient_checkpointing=true",
        "Set gradient_checkpointing=false.",
    ),
)


_ENGINE = {"vllm_tensor_parallel_size": anything, "use_vllm": True, "num_processes": anything}


def _divides_processes(case: Case) -> bool:
    return case.spec.num_processes % case.spec.vllm_tensor_parallel_size == 0


def _divides_heads(case: Case) -> bool:
    return case.model.num_attention_heads % case.spec.vllm_tensor_parallel_size == 0


def _shares_keys(case: Case) -> bool:
    gpus, keys = case.spec.vllm_tensor_parallel_size, case.model.num_key_value_heads
    return keys % gpus == 0 or gpus % keys == 0


def _smaller_engine(case: Case, fitting: int) -> str:
    """Return the largest size of an engine, below that of the trial, that divides `fitting`."""
    sizes = range(1, case.spec.vllm_tensor_parallel_size)
    return f"Use vllm_tensor_parallel_size={max(size for size in sizes if fitting % size == 0)}."


def _engine_of_heads(case: Case, heads: int) -> str:
    return _smaller_engine(case, gcd(case.spec.vllm_tensor_parallel_size, heads))


def _is_beyond_context(case: Case) -> bool:
    length = case.spec.vllm_max_model_length
    return length is not None and case.architecture is not None and length > case.architecture.context


def _leaves_no_completion(case: Case) -> bool:
    length = case.spec.vllm_max_model_length
    return length is not None and length <= case.spec.max_prompt_length and not _is_beyond_context(case)


OF_VLLM = (
    # `CacheConfig.gpu_memory_utilization`.
    _everywhere(
        {"vllm_gpu_memory_utilization": lambda part: part is not None and not 0 < part <= 1, "use_vllm": True},
        "must be more than 0 and at most 1",
    ),
    # trl's `VLLMGeneration._init_vllm`.
    _everywhere(
        _ENGINE,
        "must divide num_processes={spec.num_processes}, because as many GPUs share each engine of vLLM",
        lambda case: _smaller_engine(case, case.spec.num_processes),
        when=lambda case: not _divides_processes(case),
    ),
    # `ModelConfig.verify_with_parallel_config`.
    _everywhere(
        {**_ENGINE, "model": anything},
        "must divide the {model.num_attention_heads} attention heads of {spec.model}",
        lambda case: _engine_of_heads(case, case.model.num_attention_heads),
        model=anything,
        when=lambda case: _divides_processes(case) and not _divides_heads(case),
    ),
    # `Qwen2Attention` in vLLM.
    _everywhere(
        {**_ENGINE, "model": anything},
        "must divide the {model.num_key_value_heads} heads of keys and values of {spec.model}, "
        "or be a multiple of them",
        lambda case: _engine_of_heads(case, case.model.num_key_value_heads),
        model=anything,
        when=lambda case: _divides_processes(case) and _divides_heads(case) and not _shares_keys(case),
    ),
    # `_get_and_verify_max_len`.
    _everywhere(
        {"vllm_max_model_length": stated, "use_vllm": True, "model": anything},
        "is more than the context of {spec.model}, which has {model.context} tokens",
        "Use at most vllm_max_model_length={model.context}, or scale the positions (rope_scaling in its config.json).",
        model=anything,
        when=_is_beyond_context,
    ),
    _everywhere(
        {
            "vllm_max_model_length": stated,
            "use_vllm": True,
            "max_prompt_length": anything,
            "max_completion_length": anything,
        },
        "leaves nothing for completions after max_prompt_length={spec.max_prompt_length}",
        "Use vllm_max_model_length={spec.row_tokens}.",
        when=_leaves_no_completion,
    ),
)


_FOUR_BITS = "bitsandbytes 4-bit"
_WITH_CRITIC = "is not combined with critic=true, which is trained as a whole on one GPU"
_WITH_TOKENS = "is not combined with use_dynamic_bsz=true, which splits the rows of whole optimizer steps"
_BY_TOKENS = {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": anything}
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


def _ways(case: Case) -> str:
    return f"Use logprobs={', '.join(way for way in Logprobs if way.is_of(case.spec.recipe))}."


def _ends_with_its_positions(architecture: Architecture) -> bool:
    return not architecture.has_rotary_positions


def _rows_beyond_context(case: Case) -> bool:
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
        when=_rows_beyond_context,
    ),
    _everywhere(
        {"max_length": anything, "model": anything},
        "is more than the context of {spec.model}, which has {model.context} tokens and no rotary positions",
        "Use at most max_length={model.context}.",
        model=_ends_with_its_positions,
        when=_rows_beyond_context,
    ),
    # `DPOTrainer._prepare_dataset` in trl 1.16 drops rows whose prompt alone is as long.
    _everywhere(
        {"max_length": anything, "max_prompt_length": anything},
        "leaves nothing for completions after max_prompt_length={spec.max_prompt_length}",
        "Use more than max_length={spec.max_prompt_length}, or a shorter max_prompt_length.",
        when=lambda case: case.spec.longest < 1,
    ),
    # Nothing but the weight of the reference depends on the model then, and trl computes both all the same.
    _everywhere(
        {"beta": 0.0, "recipe": one_of(Recipe.DPO, Recipe.KTO)},
        "with recipe={spec.recipe} the loss does not depend on the model",
        "Use beta=null, which is trl's default.",
    ),
    # `KTOTrainer.__init__` in trl 1.16 and 1.9: the KL term of a row is that of its neighbour's completion.
    _everywhere(
        {
            "per_device_train_batch_size": 1,
            "recipe": Recipe.KTO,
            "logprobs": one_of(Logprobs.FUSED, Logprobs.PAIRS_OF_ROWS),
        },
        "must be at least 2 with recipe=kto, because its KL term pairs the rows of a batch",
        "Use per_device_train_batch_size=2.",
    ),
    _everywhere(
        {"recipe": Recipe.REWARD, "model": anything},
        "needs a model that scores a row, and transformers has none of type {model.model_type}",
        "Choose another model.",
        model=lambda model: not family_of(model.model_type).has_reward_model,
    ),
    _everywhere(
        {"use_liger_kernel": True, "recipe": Recipe.REWARD},
        "replaces the forward of models with an LM head, and a reward model has none",
        "Set use_liger_kernel=false.",
    ),
    # `__init__` of trl 1.16's trainers: log-probabilities are of `lm_head.weight`, without its adapter.
    _everywhere(
        {"lora_target_modules": lambda names: "lm_head" in (names or ()), "logprobs": lambda way: way.has_fused_head},
        "names the LM head, which trl's trainers refuse to adapt, and which a reward model lacks",
        "Leave out lm_head.",
    ),
    _everywhere(
        {"lora_dropout": lambda part: part >= 1},
        "must be less than 1, because adapters of which everything is dropped learn nothing",
    ),
    # The class that trl makes of the file: `create_model_from_path` in trl 1.16's `trainer/utils.py`.
    _everywhere(
        {"model": anything, "recipe": other_than(Recipe.REWARD)},
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
        {"activation_offloading": True, "recipe": one_of(*OF_DATA), "backend": Backend.CPU},
        "needs backend=cuda, emulated or simulated with recipe={spec.recipe}, as trl's offloading asks for a GPU",
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
        {"logprobs": anything, "recipe": anything},
        "is not a way of the trainer of recipe={spec.recipe}",
        _ways,
        when=lambda case: not case.spec.logprobs.is_of(case.spec.recipe),
    ),
    # LLaMA-Factory sets it to false, ms-swift refuses it (`DPOTrainer.__init__` of both), and OpenRLHF has none.
    _everywhere(
        {"precompute_ref_log_probs": True, "logprobs": one_of(*_NEVER_BEFORE)},
        "is no setting of the program whose loss is logprobs={spec.logprobs}",
        "Use precompute_ref_log_probs=false.",
    ),
    _everywhere(
        {"use_liger_kernel": True, "logprobs": lambda value: not value.is_of_completions},
        "is not combined with logprobs={spec.logprobs}, because Liger's losses make no logits",
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
        "needs 16-bit values, so dtype=bfloat16, dtype=float16, bf16=true or fp16=true",
        "Use attn_implementation=sdpa.",
        when=lambda case: not (case.spec.fp16 or _card_lacks_flash(case)),
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
