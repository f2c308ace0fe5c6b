"""Constraints of single commands: of sweeps, and of `estimate`, `solve` and `advise`.

Constraints of `estimate`, `solve` and `advise`: what has no closed form. The first that is broken answers.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter

from profiler.constraints.constraint import (
    Case,
    Constraint,
    Text,
    Where,
    above,
    anything,
    has_tower,
    one_of,
    other_than,
    stated,
)
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.architectures.families import family_of
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.machines.extras import simulation_hint
from profiler.domain.trials.optimizers import Optimizer, State
from profiler.domain.trials.recipe import OF_DATA, Recipe
from profiler.domain.trials.trial import (
    SHARDED,
    ZERO_OF_WEIGHTS,
    Attention,
    Backend,
    DistributedType,
    Dtype,
    Logprobs,
    OffloadDevice,
    Tuning,
    VllmMode,
)

_card = partial(Constraint, Where.CARD)

CARDS = (
    _card(
        {"backend": Backend.CPU},
        "has no card, and the question is whether the trial fits its card",
        "Leave backend out.",
    ),
    _card(
        {"gpu": None, "backend": Backend.CUDA},
        "is the whole card of the machine, which only a sweep looks for",
        "Name a card, such as gpu=h100-80gb.",
    ),
)


_sweep = partial(Constraint, Where.SWEEP)

_WITHOUT_COUNTERS = one_of(*(backend for backend in Backend if not backend.reads_counters))
_LAUNCHED = "Add backend=emulated, or use `python -m profiler.estimate`."
_NOT_YET = "Use `python -m profiler.estimate`, or leave the key out."

RUN_SCRIPT = "To see what your script needs, run it: python -m profiler.run gpu=CARD train.py."


def _instead_of_a_tower(case: Case) -> str:
    """Return what answers for images: the closed form, which has their prompts for one recipe."""
    return "Use `python -m profiler.estimate`." if case.spec.recipe is Recipe.GRPO else RUN_SCRIPT


_LACKS = (
    "accelerate cannot shard {model.model_type}, whose class names layers of a tower that a model of text lacks: "
    "fsdp_transformer_layer_cls_to_wrap would name others, and no trial has it"
)
_NOT_FSDP = "Use multi_gpu."


def _lacks_layers(architecture: Architecture) -> bool:
    """Return whether accelerate fails with FSDP of the model (`fsdp2_prepare_auto_wrap_policy`)."""
    return family_of(architecture.model_type).checks.names_tower_layers


SWEEPS = (
    _sweep(
        {"logprobs": lambda value: not value.is_of_trl},
        "a sweep runs trl's trainers, and this loss is that of another program",
        "Use `python -m profiler.estimate`, or run the command itself by `python -m profiler.run`.",
    ),
    _sweep({"dtype": lambda value: not value.is_of_todays_trl}, "no trainer of a sweep has such weights", _NOT_YET),
    _sweep(
        {"vllm_mode": VllmMode.SERVER, "use_vllm": True},
        "a sweep does not run vLLM on other GPUs",
        "Use vllm_mode=colocate, or `python -m profiler.estimate`.",
    ),
    _sweep(
        {"use_vllm": True, "backend": Backend.CPU},
        "needs backend=cuda, emulated or simulated, because trl runs vLLM on the GPU that trains",
        "Set use_vllm=false on the CPU.",
    ),
    _sweep(
        {"tuning": Tuning.QLORA, "use_vllm": True}, "a sweep does not run vLLM with weights in 4 bits yet", _NOT_YET
    ),
    _sweep(
        {"vllm_tensor_parallel_size": above(1), "use_vllm": True},
        "a sweep does not run an engine of vLLM on several GPUs yet",
        _NOT_YET,
    ),
    _sweep(
        {
            "vllm_max_model_length": stated,
            "use_vllm": True,
            "max_prompt_length": anything,
            "max_completion_length": anything,
        },
        "would cut completions, because prompt and completion of this trial have {spec.row_tokens} tokens",
        "Use at least vllm_max_model_length={spec.row_tokens}.",
        when=lambda case: (case.spec.vllm_max_model_length or 0) < case.spec.row_tokens,
    ),
    _sweep(
        {"recipe": other_than(Recipe.GRPO), "use_vllm": True},
        "a sweep does not run vLLM with this recipe yet",
        _NOT_YET,
    ),
    _sweep({"reward_models": stated}, "a sweep does not run reward models yet", _NOT_YET),
    _sweep({"per_device_eval_batch_size": stated}, "a sweep does not run evaluations yet", _NOT_YET),
    _sweep(
        {"model": anything},
        "a sweep does not run models with a vision tower yet",
        _instead_of_a_tower,
        model=has_tower,
    ),
    _sweep(
        {"use_liger_kernel": True, "backend": _WITHOUT_COUNTERS},
        "a sweep does not run Liger's kernels on a simulated card yet",
        _NOT_YET,
    ),
    _sweep(
        {"gpu": other_than(None, *KNOWN_GPUS)},
        "a sweep does not run trials on a card that has a size only yet",
        _NOT_YET,
    ),
    _sweep(
        {"num_processes": above(1), "backend": Backend.SIMULATED},
        "a sweep runs several GPUs with backend=cuda or emulated, and this trial has backend=simulated",
        _LAUNCHED,
    ),
    _sweep(
        {"distributed_type": DistributedType.DEEPSPEED, "num_processes": 1, "backend": Backend.SIMULATED},
        "a sweep runs DeepSpeed with backend=cuda or emulated, and this trial has backend=simulated",
        _LAUNCHED,
    ),
    _sweep(
        {"distributed_type": one_of(*SHARDED), "backend": Backend.CPU},
        "shards on GPUs only, and this trial has backend=cpu",
        "Use multi_gpu, or backend=emulated.",
    ),
    _sweep({"distributed_type": DistributedType.FSDP, "model": anything}, _LACKS, _NOT_FSDP, model=_lacks_layers),
    _sweep(
        {"tuning": Tuning.QLORA, "zero_stage": ZERO_OF_WEIGHTS},
        "a sweep does not make weights in 4 bits with zero_stage=3, which shards weights as they are made",
        "Use zero_stage=2, or tuning=lora.",
    ),
)


_closed_form = partial(Constraint, Where.CLOSED_FORM)

_KNOWN_LOGPROBS = (Logprobs.FUSED, *(each for each in Logprobs if each.makes_all_logits))
_IN_CHUNKS = tuple(each for each in Logprobs if each.chunked_loss is not None)
_UNKNOWN_LOGPROBS = other_than(*_KNOWN_LOGPROBS)
_OTHER_STATES = one_of(*(each for each in Optimizer if each.traits.state not in (State.NONE, State.IN_TYPE)))
_NOT_BFLOAT16 = other_than(Dtype.BFLOAT16)
_ADAPTERS = other_than(Tuning.FULL)
_BY_FSDP = {"distributed_type": DistributedType.FSDP}
_PAIRS = one_of(Recipe.DPO, Recipe.KTO)
_OWN_REFERENCE = {"tuning": _ADAPTERS, "logprobs": other_than(Logprobs.PAIRS_WIDENED)}  # without its adapters
_NORMS = Dtype.FLOAT32_NORMS
_TRAINED_BY = {Dtype.BFLOAT16_LAYERS: "axolotl", _NORMS: "QLoRA of trl 0.14 to 0.25"}
_NO_EVALUATION = "Leave out per_device_eval_batch_size."
_FAILS_IN_TORCH = "Set it to false: such trials of trl's trainers fail in torch, in a sweep too."


def _of_attention(case: Case) -> str:
    """Return the advice to name layers of the attention: lora_target_modules=[q_proj,k_proj,v_proj,o_proj]."""
    latent = case.model.latent
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    if latent is not None:
        queries = ("q_proj",) if latent.q_lora_rank is None else ("q_a_proj", "q_b_proj")
        names = (*queries, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    return f"Name layers of the attention: lora_target_modules=[{','.join(names)}]."


def _without_dropout(case: Case) -> str:
    """Return the advice to set lora_dropout=0, or to name layers of the attention."""
    advice = _of_attention(case)
    return f"Set lora_dropout=0, or {advice[0].lower()}{advice[1:]}"


def _simulate(case: Case) -> str:
    """Return what to do about a trial that a simulation knows: it is of one GPU, and what is launched is emulated."""
    if case.spec.distributed_type is not DistributedType.NO:
        return _emulate(case)
    return simulation_hint(but=_refused_in_a_sweep(case, Backend.SIMULATED))


def _emulate(case: Case) -> str:
    """Return what to do about a trial of several GPUs."""
    sweep = f"A sweep with backend=emulated runs it{_refused_in_a_sweep(case, Backend.EMULATED)}."
    return sweep if case.spec.logprobs.is_of_trl else RUN_SCRIPT


def _refused_in_a_sweep(case: Case, backend: Backend) -> str:
    """Return what has to be otherwise in the trial for a sweep to run it; nothing if it does."""
    there = replace(case, spec=replace(case.spec, backend=backend))
    keys = dict.fromkeys(next(iter(each.values)) for each in SWEEPS if each.is_broken(there))
    return f" with other values of {', '.join(keys)}" if keys else ""


def _is_mixture(architecture: Architecture) -> bool:
    return architecture.num_experts > 1


def _sharded(values: Mapping[str, object], hint: Text = _emulate) -> Constraint:
    """Return a constraint of trials that FSDP or DeepSpeed shards."""
    problem = "has no closed-form estimate together with distributed_type={spec.distributed_type}"
    return _closed_form({**values, "distributed_type": values.get("distributed_type", one_of(*SHARDED))}, problem, hint)


def _in_two_types(key: str, value: object, dtype: Dtype = Dtype.BFLOAT16_LAYERS) -> Constraint:
    """Return a constraint of weights in two types."""
    by = f"has no closed-form estimate together with dtype={dtype}, with which {_TRAINED_BY[dtype]} alone trains"
    return _closed_form({key: value, "dtype": dtype}, by, "Use dtype=bfloat16.")


def _mixture(
    key: str, value: object, hint: Text = _simulate, *, only: Callable[[Architecture], bool] = lambda _: True
) -> Constraint:
    """Return a constraint of mixtures of experts; `only` says of which."""
    problem = "has no closed-form estimate with a mixture of {model.num_experts} experts"
    return _closed_form({key: value, "model": anything}, problem, hint, model=lambda m: _is_mixture(m) and only(m))


def _lacks_liger(architecture: Architecture) -> bool:
    return not family_of(architecture.model_type).has_liger_formula


def _with(models: str, are: Callable[[Architecture], bool], hint: Text = _simulate) -> Callable[..., Constraint]:
    """Return a function that returns a constraint of some models: of a key, a value of it, and another hint."""

    def constraint(key: str, value: object, hint: Text = hint) -> Constraint:
        problem = f"has no closed-form estimate with {models}"
        return _closed_form({key: value, "model": anything}, problem, hint, model=are)

    return constraint


_linear = _with("{model.model_type}, which has linear attention", attrgetter("has_linear_attention"))
_wide_global = _with(
    "{model.model_type}, whose layers have heads of several widths",
    lambda m: any(m.head_dim != kind.head_dim for kind in m.first_layers),
)
_tower = _with("a model that sees images, by the vision tower of {model.model_type}", has_tower, RUN_SCRIPT)
_idle = _with("a vision tower that rows of text pass by ({model.model_type})", lambda m: bool(m.idle), RUN_SCRIPT)
_second_inputs = _with("embeddings for each layer ({model.model_type})", lambda m: bool(m.layer_inputs))


CLOSED_FORM = (
    _closed_form(
        {"use_dynamic_bsz": True},
        "a split of rows by tokens has no closed-form estimate, because the rows of its parts depend on lengths",
        _simulate,
    ),
    _closed_form(
        {"logprobs": _UNKNOWN_LOGPROBS, "critic": True},
        "has no closed-form estimate together with critic=true, which takes micro-batches whole",
        _simulate,
    ),
    _closed_form(
        {"steps_per_generation": anything, "gradient_accumulation_steps": anything, "critic": True},
        "has no closed-form estimate together with critic=true, whose gradients then wait for the policy",
        _simulate,
        when=lambda case: case.spec.steps_per_generation % case.spec.gradient_accumulation_steps,
    ),
    # Which activations are on the card depends on the order of the backward pass.
    _closed_form({"activation_offloading": True}, "offloaded activations have no closed-form estimate", _simulate),
    _sharded({"tuning": Tuning.QLORA, **_BY_FSDP}),
    _sharded({"fsdp_version": other_than(2), **_BY_FSDP}),
    # In all six trials of results/reference/sharded: token ids, or the norm of gradients, are on the host.
    _sharded({"fsdp_offload_params": True}, _FAILS_IN_TORCH),
    # No sweep runs these two with ZeRO-3 either.
    _sharded({"tuning": Tuning.QLORA, "zero_stage": ZERO_OF_WEIGHTS}, "Use zero_stage=2, or tuning=lora."),
    _sharded({"reward_models": stated, "zero_stage": ZERO_OF_WEIGHTS}, "Use zero_stage=2."),
    # Other programs than trl shard the reference in other units, or have files of FSDP that are not read.
    _sharded({"logprobs": other_than(Logprobs.FUSED), "recipe": _PAIRS, **_BY_FSDP}),
    # axolotl's embeddings and norms are float32 there (`formats/axolotl.py`).
    _sharded({"logprobs": Logprobs.PAIRS_OF_ROWS, "zero_stage": ZERO_OF_WEIGHTS}, "Use zero_stage=2."),
    _sharded({"offload_optimizer_device": OffloadDevice.CPU, "recipe": _PAIRS}),
    # Other orders of modules than DeepSpeed has recorded, after which it no longer gives weights back as before.
    _sharded({"recipe": Recipe.KTO, "zero_stage": ZERO_OF_WEIGHTS}),
    _sharded({"recipe": Recipe.DPO, **_OWN_REFERENCE, "zero_stage": ZERO_OF_WEIGHTS}),
    _sharded({"precompute_ref_log_probs": True, "zero_stage": ZERO_OF_WEIGHTS}),
    _sharded({"tuning": _ADAPTERS, "zero_stage": ZERO_OF_WEIGHTS, "num_processes": 1}, "Use zero_stage=2."),  # 5 % low
    # The policy, which is not sharded before training, is on the host, and its token ids are not.
    _sharded({"precompute_ref_log_probs": True, "tuning": _ADAPTERS, **_BY_FSDP}, _FAILS_IN_TORCH),
    _sharded({"recipe": Recipe.REWARD, **_BY_FSDP, "fsdp_version": anything}),
    _sharded({"ref_adapter": True, "zero_stage": ZERO_OF_WEIGHTS}),
    *(_in_two_types("distributed_type", one_of(*SHARDED), each) for each in _TRAINED_BY),
    _sharded({"bf16": False}),
    # Shards and buckets are not rounded: two to nine per cent too low.
    _sharded({"alloc_conf": lambda text: "roundup_power2" in text}, "Leave out roundup_power2_divisions."),
    _sharded({"optim": _OTHER_STATES}),
    # What a forward of an evaluation gathers was not compared.
    _sharded({"per_device_eval_batch_size": stated, "recipe": one_of(*OF_DATA)}, _NO_EVALUATION),
    _sharded({"logprobs": other_than(*_KNOWN_LOGPROBS, *_IN_CHUNKS)}),
    _sharded({"logprobs": one_of(*_IN_CHUNKS), "zero_stage": stated}),
    # axolotl has both types in full training with autocast alone, and changes them for FlashAttention.
    _in_two_types("tuning", _ADAPTERS),
    _in_two_types("tuning", other_than(Tuning.QLORA), _NORMS),
    _in_two_types("use_liger_kernel", True, _NORMS),
    replace(_in_two_types("model", anything, _NORMS), model=lambda m: family_of(m.model_type).layers.has_float32_norms),
    *(_in_two_types("bf16", False, each) for each in _TRAINED_BY),
    _in_two_types("logprobs", other_than(Logprobs.NLL, Logprobs.PAIRS_OF_ROWS)),
    _in_two_types("attn_implementation", Attention.FLASH_ATTENTION_2),
    # The evaluation of other programs was not read.
    _closed_form(
        {"per_device_eval_batch_size": stated, "logprobs": lambda each: not each.is_of_trl},
        "has no closed-form estimate together with logprobs={spec.logprobs}, which is of another program than trl",
        _NO_EVALUATION,
    ),
    # `ParamWrapper.__init__` in peft 0.21's `tuners/lora/layer.py`.
    _closed_form(
        {"lora_dropout": other_than(0), "lora_target_modules": anything, "model": anything},
        "has adapters of experts, and peft refuses to drop a part of their inputs",
        _without_dropout,
        when=lambda case: case.adapts_experts,
    ),
    # Without autocast in bfloat16, transformers multiplies expert by expert.
    _mixture("dtype", _NOT_BFLOAT16),
    _mixture("bf16", False),
    _mixture("logprobs", other_than(Logprobs.FUSED)),
    _mixture("attn_implementation", Attention.EAGER, only=attrgetter("has_sdpa")),
    # transformers takes a kernel of another package, with sinks.
    _closed_form(
        {"attn_implementation": Attention.FLASH_ATTENTION_2, "model": anything},
        "has no closed-form estimate with {model.model_type}, whose attention has sinks",
        "Use attn_implementation=eager.",
        model=lambda m: family_of(m.model_type).layers.has_sinks,
    ),
    # Liger replaces the experts of some models by kernels of its own. A simulation has none of its kernels either.
    _mixture("use_liger_kernel", True, "Use use_liger_kernel=false."),
    _mixture("critic", True),
    _closed_form(
        {"lora_target_modules": anything, "model": anything},
        "has no closed-form estimate with a mixture of {model.num_experts} experts",
        _of_attention,
        when=lambda case: not case.counts_adapters,
        found=lambda case: ",".join(sorted(case.spec.lora_target_modules or ())),
    ),
    # Without autocast in bfloat16, the delta rule saves other tensors.
    _linear("dtype", _NOT_BFLOAT16),
    _linear("bf16", False),
    _linear("critic", True),
    # vLLM keeps states in blocks of another size, of which nothing was measured.
    _linear("use_vllm", True, "Use use_vllm=false."),
    _linear("distributed_type", DistributedType.DEEPSPEED, _emulate),
    _closed_form({"distributed_type": DistributedType.FSDP, "model": anything}, _LACKS, _NOT_FSDP, model=_lacks_layers),
    _linear("use_liger_kernel", True, "Use use_liger_kernel=false."),
    _wide_global("use_vllm", True, "Use use_vllm=false."),
    _wide_global("distributed_type", DistributedType.DEEPSPEED, _emulate),
    _closed_form(
        {"use_liger_kernel": True, "model": anything},
        "has no closed-form estimate with {model.model_type}, for which Liger has other kernels or none",
        "Use use_liger_kernel=false.",
        model=_lacks_liger,
    ),
    _tower("recipe", other_than(Recipe.GRPO)),
    _tower("distributed_type", one_of(*SHARDED)),
    _tower("tuning", Tuning.QLORA, "Use tuning=lora or tuning=full."),
    _tower("dtype", _NOT_BFLOAT16, "Use dtype=bfloat16."),
    _tower("logprobs", other_than(Logprobs.FUSED)),
    _tower("attn_implementation", Attention.EAGER, "Use attn_implementation=sdpa or flash_attention_2."),
    _tower("use_liger_kernel", True, "Use use_liger_kernel=false."),
    _idle("recipe", Recipe.REWARD),
    _idle("critic", True),
    # Without a gradient of each parameter, DDP waits for the rest, and a shard has others than the formulas say.
    _idle("num_processes", above(1)),
    _idle("use_vllm", True, "Use use_vllm=false."),
    _idle("use_liger_kernel", True, "Use use_liger_kernel=false."),
    _second_inputs("critic", True),
    # Rollouts in float32 were 6 % too high.
    _second_inputs("dtype", _NOT_BFLOAT16),
    _second_inputs("logprobs", _UNKNOWN_LOGPROBS),
    # No such trial was compared: a bucket and a shard hold the embedding of all layers.
    _second_inputs("num_processes", above(1), _emulate),
)
