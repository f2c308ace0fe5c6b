"""Seams of trl, and of vLLM, which it drives."""

from profiler.analytical.formulas.head import TOKEN_CHUNK, VOCABULARY_CHUNK
from profiler.config.trl.config import TRL_DEFAULTS
from profiler.seams.seam import Absence, Equals, Exists, Expectation, Parameters, Seam, Uses

_KERNELS = "trl.kernels.chunked_logprob"
_HEAD = f"{_KERNELS}:ChunkedLogProbFunction"
_TRAINER = "trl.trainer.grpo_trainer:GRPOTrainer"
_RLOO = "trl.trainer.rloo_trainer:RLOOTrainer"
_TRL_KERNELS = "simulation/cuda/trl_kernels.py"
_HOOKS = "scripts/hooks.py"
_CPU_CHOICES = "simulation/device/cpu_choices.py"
_PHASES = "training/recipes/grpo/trainer.py"
_PAIRS = ("training/recipes/dpo.py",)
_REFERENCE = ("training/announced_steps.py",)


def _seam(owner: str, name: str, expected: Expectation, used_by: tuple[str, ...], why: str) -> Seam:
    return Seam(owner=owner, name=name, expected=expected, used_by=used_by, why=why, since="1.16")


def _without_triton(owner: str, name: str, why: str, used_by: str) -> Seam:
    """Return a seam that is there where Triton is installed."""
    return Seam(
        owner=owner, name=name, expected=Exists(), used_by=(used_by,), why=why, since="1.16",
        absent_in=Absence.SOME_BUILDS,
    )  # fmt: skip


_FUSED_HEAD = (
    _seam(
        _KERNELS, "_use_triton", Parameters("device"), (_TRL_KERNELS,),
        "decides whether the fused LM head runs its Triton kernels",
    ),
    _seam(
        "trl.trainer.utils", "_use_triton", Parameters("device"), (_TRL_KERNELS,),
        "decides whether only scored positions reach the fused LM head",
    ),
    _seam(
        "trl.trainer.utils", "add_fused_lm_head", Uses("_use_triton"), (_TRL_KERNELS,),
        "calls that function by its own name",
    ),
    _seam(_KERNELS, "_forward_kernel", Exists(), (_TRL_KERNELS,), "a Triton kernel, which allocates nothing"),
    _seam(_KERNELS, "_backward_kernel", Exists(), (_TRL_KERNELS,), "a Triton kernel, which allocates nothing"),
    _seam(
        _KERNELS, "_addmm_fp32", Parameters("acc", "a", "b"), (_TRL_KERNELS,),
        "one cuBLAS call on CUDA, several operations elsewhere",
    ),
    _seam(
        _HEAD, "forward", Parameters("ctx", "hidden", "weight", more=True), (_TRL_KERNELS, _CPU_CHOICES),
        "its memory is attributed to the logits",
    ),
    _seam(
        _HEAD, "backward", Parameters("ctx", "grad_logprobs", more=True), (_TRL_KERNELS, _CPU_CHOICES),
        "its memory is attributed to the logits",
    ),
    _without_triton(_KERNELS, "triton", "the head calls triton.cdiv", _TRL_KERNELS),
)  # fmt: skip

_DIVERGENCE = "trl.kernels.chunked_divergence"
_DISTILLATION = (
    _seam(_DIVERGENCE, "_use_triton", Parameters("device"), (_TRL_KERNELS,), "decides whether Triton kernels run"),
    _seam(
        "trl.trainer.distillation_trainer", "_use_triton", Parameters("device"), (_TRL_KERNELS,),
        "decides whether only valid positions are projected",
    ),
    *(
        _seam(_DIVERGENCE, name, Exists(), (_TRL_KERNELS,), "a Triton kernel, which allocates nothing")
        for name in ("_stats_kernel", "_jsd_kernel", "_backward_kernel")
    ),
    _seam(
        _DIVERGENCE, "_addmm_fp32", Parameters("acc", "a", "b"), (_TRL_KERNELS,),
        "one cuBLAS call on CUDA, several operations elsewhere",
    ),
    _seam(
        _DIVERGENCE, "_project", Parameters("tile", "hidden_chunk", "weight", "bias", "start", "end", "dtype"),
        (_TRL_KERNELS,), "one cuBLAS call on CUDA, several operations elsewhere",
    ),
    _without_triton(_DIVERGENCE, "triton", "the backward calls triton.cdiv", _TRL_KERNELS),
    *(
        _seam(
            f"{_DIVERGENCE}:ChunkedDivergenceFunction", name, Exists(), (_TRL_KERNELS,),
            "its memory is attributed to the logits",
        )
        for name in ("forward", "backward")
    ),
)  # fmt: skip

_LOGPROBS = "trl.kernels.logprob_entropy"
_SELECTED_LOGPROBS = (
    _seam("trl.trainer.utils", "is_triton_available", Exists(), (_TRL_KERNELS,), "decides whether kernels are used"),
    _seam(
        "trl.trainer.utils", "_supports_trl_loss_kernel", Parameters("logits", "index", "row_mask"), (_TRL_KERNELS,),
        "decides for which logits kernels are used",
    ),
    _seam(
        "trl.trainer.utils", "selective_log_softmax",
        Uses("is_triton_available", "_supports_trl_loss_kernel", "_fused_logprob_entropy"), (_TRL_KERNELS,),
        "calls those functions by their own names",
    ),
    _without_triton("trl.trainer.utils", "_fused_logprob_entropy", "the function with kernels", _TRL_KERNELS),
    *(
        _without_triton(_LOGPROBS, name, "a Triton kernel, which allocates nothing", _TRL_KERNELS)
        for name in ("_forward_kernel", "_backward_kernel", "triton")
    ),
    *(
        _without_triton(f"{_LOGPROBS}:_LogProbEntropyFunction", name, "belongs to the logits", _TRL_KERNELS)
        for name in ("forward", "backward")
    ),
)  # fmt: skip

_GRPO_TRAINER = (
    _seam(
        _TRAINER, "_generate_single_turn",
        Parameters("self", "prompt_ids", "images", "multimodal_fields", "num_generations", more=True), (_PHASES,),
        "overridden: the rollout begins here, and completions get the trial's lengths",
    ),
    _seam(
        _TRAINER, "_get_per_token_logps_and_entropies",
        Parameters(
            "self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy",
            more=True,
        ),
        (_PHASES, _HOOKS),
        "overridden: scoring begins here, and `logprobs` chooses how it is done; the score phase of a callback",
    ),
    _seam(
        _TRAINER, "_calculate_rewards",
        Parameters("self", "inputs", "prompts", "completions", "completion_ids_list", more=True), (_PHASES, _HOOKS),
        "overridden: the reward begins here; the reward phase of a script",
    ),
    _seam(
        _TRAINER, "_generate", Parameters("self", "prompts", more=True), (_HOOKS,), "the rollout phase of a callback"
    ),
    _seam(
        _TRAINER, "_generate_and_score_completions", Uses("advantages", "completion_mask", "prompt_mask"), (_PHASES,),
        "overridden: a critic adds its values to what it returns",
    ),
    _seam(
        _TRAINER, "_prepare_inputs", Uses("_buffered_inputs", "shuffle_sequence_dict", "split_tensor_dict"), (_PHASES,),
        "overridden: new micro-batches in that attribute update a critic",
    ),
    _seam(
        _TRAINER, "_compute_loss", Uses("advantages.dim", "num_items_in_batch"), (_PHASES,),
        "takes advantages per token, and its loss is a sum over tokens, so that parts of a batch add up",
    ),
    _seam(
        _TRAINER, "compute_loss", Parameters("self", "model", "inputs", "return_outputs", "num_items_in_batch"),
        (_PHASES,), "overridden: forward begins here",
    ),
    _seam(
        _TRAINER, "__init__", Uses("create_model_from_path"), ("training/models/model.py",),
        "makes the reference model by the function below",
    ),
    _seam(
        "trl.trainer.grpo_trainer", "create_model_from_path", Parameters("model_id", more=True),
        ("training/models/model.py",),
        "replaced, so that the reference is made from the configuration without a download",
    ),
)  # fmt: skip

_RLOO_TRAINER = (
    _seam(
        _RLOO, "_generate_single_turn", Parameters("self", "prompt_ids", "images", "multimodal_fields", more=True),
        (_PHASES,), "overridden: the rollout begins here, and completions get the trial's lengths",
    ),
    _seam(
        _RLOO, "_get_per_token_logps_and_entropies",
        Parameters(
            "self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy",
            more=True,
        ),
        (_PHASES,), "overridden: scoring begins here, and `logprobs` chooses how it is done",
    ),
    _seam(
        _RLOO, "_calculate_rewards",
        Parameters("self", "inputs", "prompts", "completions", "completion_ids_list", more=True), (_PHASES,),
        "overridden: the reward begins here",
    ),
    _seam(
        _RLOO, "compute_loss", Parameters("self", "model", "inputs", "return_outputs", "num_items_in_batch"),
        (_PHASES,), "overridden: forward begins here",
    ),
    _seam(
        _RLOO, "__init__", Uses("create_model_from_path"), ("training/models/model.py",),
        "makes the reference model by the function below",
    ),
    _seam(
        "trl.trainer.rloo_trainer", "create_model_from_path", Parameters("model_id", more=True),
        ("training/models/model.py",),
        "replaced, so that the reference is made from the configuration without a download",
    ),
)  # fmt: skip


def _preference_trainer(name: str) -> tuple[Seam, ...]:
    """Return the seams of a trainer with a reference, `DPO` or `KTO`."""
    module = f"trl.trainer.{name.lower()}_trainer"
    owner = f"{module}:{name}Trainer"
    return (
        _seam(
            owner, "compute_loss",
            Parameters("self", "model", "inputs", "return_outputs", "num_items_in_batch"), _PAIRS,
            "overridden: forward begins here",
        ),
        _seam(
            owner, "_compute_loss", Uses("torch.no_grad", "self.ref_model", "use_adapter"), _PAIRS,
            "runs the reference without gradient, in a forward of that model or of the policy",
        ),
        _seam(
            owner, "compute_ref_log_probs", Parameters("self", "model", "inputs"), _REFERENCE,
            "overridden: the reference before training begins here",
        ),
        _seam(
            owner, "_precompute_ref_logps", Parameters("self", "dataset", "name", "batch_size"), _REFERENCE,
            "overridden: the reference before training ends here",
        ),
        _seam(
            owner, "_prepare_dataset", Parameters("self", "dataset", "processing_class", more=True), _REFERENCE,
            "overridden: rows are tokens already",
        ),
        _seam(
            owner, "__init__", Uses("create_model_from_path", "hash_module"),
            ("training/models/model.py", *_PAIRS), "makes the reference model, and hashes it, by the functions below",
        ),
        _seam(
            module, "create_model_from_path", Parameters("model_id", more=True), ("training/models/model.py",),
            "replaced, so that the reference is made from the configuration without a download",
        ),
        _seam(
            module, "hash_module", Parameters("module"), _PAIRS,
            "replaced for random weights: reads every weight on the host, to know a kept reference again",
        ),
    )  # fmt: skip


_REWARD_TRAINER = (
    _seam(
        "trl.trainer.reward_trainer:RewardTrainer", "compute_loss",
        Parameters("self", "model", "inputs", "return_outputs", "num_items_in_batch"), ("training/recipes/sft.py",),
        "overridden: forward begins here",
    ),
)  # fmt: skip

_OFFLOADING = "trl.models.activation_offloading"

_OFFLOADED = (
    _seam(
        f"{_OFFLOADING}:OffloadActivations", "__init__",
        Uses("torch.accelerator.current_accelerator", "torch.get_device_module", "self.device_module.Stream"),
        ("simulation/cuda/offloading.py",), "takes the card and its streams by these functions",
    ),
    _seam(
        _OFFLOADING, "_get_unique_tensor_key", Uses("untyped_storage", "data_ptr", "storage_offset"),
        ("simulation/cuda/offloading.py",), "distinguishes storages by their address",
    ),
)  # fmt: skip

_GENERATION = "trl.generation.vllm_generation"
_VLLM = f"{_GENERATION}:VLLMGeneration"
_BLOCKS = "training/rollouts/vllm.py"

_RESPONSES = tuple(
    Seam(
        owner="trl.chat_template_utils",
        name=name,
        expected=expected,
        used_by=("substitutes/checkpoints/tokenizers.py",),
        why=why,
        since="1.16",
        absent_in=Absence.SOME_BUILDS,
    )
    for name, expected, why in (
        ("add_response_schema", Parameters("processing_class"), "refuses the chat template of a substitute"),
        ("qwen3_chat_template", Exists(), "a template whose answers trl reads"),
    )
)

_VLLM_GENERATION = (
    _seam(
        "trl.trainer.grpo_trainer", "VLLMGeneration", Exists(), (_BLOCKS,),
        "replaced on a simulated GPU by one with an engine of blocks",
    ),
    _seam(_VLLM, "_init_vllm", Uses("LLM"), (_BLOCKS,), "overridden on a simulated GPU: starts the engine"),
    _seam(
        _VLLM, "generate", Parameters("self", "prompts", "images", "num_generations", "profiler"), (_BLOCKS, _HOOKS),
        "overridden on a simulated GPU, in the order of this function; the rollout phase of a trainer",
    ),
    _seam(
        _VLLM, "sync_weights", Uses("empty_cache", "llm.wake_up", "model.load_weights", "llm.reset_prefix_cache"),
        (_BLOCKS, _HOOKS), "what it calls of the engine; the phase in which a trainer sends weights",
    ),
    Seam(
        owner=_GENERATION,
        name="LLM",
        expected=Exists(),
        used_by=("training/rollouts/vllm.py",),
        why="replaced, so that the engine has random weights; absent where vLLM is not installed",
        since="1.16",
        absent_in=Absence.SOME_BUILDS,
    ),
)  # fmt: skip

_CONSTANTS = (
    _seam(
        _KERNELS, "TOKEN_CHUNK_SIZE", Equals(TOKEN_CHUNK), ("analytical/formulas/head.py",),
        "rows of a tile of the fused LM head",
    ),
    _seam(
        "trl.trainer.utils", "_CHUNKED_LOGPROB_CHUNK_SIZE", Equals(VOCABULARY_CHUNK), ("analytical/formulas/head.py",),
        "columns of a tile of the fused LM head",
    ),
)  # fmt: skip


def _default(key: str, value: object) -> Seam:
    """Return the seam of a default. trl stores None for `bf16` and turns it into True unless `fp16` is set."""
    owner = "trl.trainer.model_config:ModelConfig" if key == "dtype" else "trl.trainer.grpo_config:GRPOConfig"
    stored = None if key == "bf16" else value
    return _seam(owner, key, Equals(stored), ("config/trl/config.py",), "the default of a key that a YAML file lacks")


_DEFAULTS = tuple(_default(key, value) for key, value in TRL_DEFAULTS.items())

TRL: tuple[Seam, ...] = (
    *_FUSED_HEAD,
    *_DISTILLATION,
    *_SELECTED_LOGPROBS,
    *_GRPO_TRAINER,
    *_RLOO_TRAINER,
    *_preference_trainer("DPO"),
    *_preference_trainer("KTO"),
    *_REWARD_TRAINER,
    *_OFFLOADED,
    *_RESPONSES,
    *_VLLM_GENERATION,
    *_CONSTANTS,
    *_DEFAULTS,
)


_ALLOCATOR = "vllm.device_allocator.cumem:CuMemAllocator"
_UNMAPPED = ("measurement/counters/phase_counters.py",)

VLLM: tuple[Seam, ...] = (
    Seam(
        owner=_ALLOCATOR,
        name="instance",
        expected=Exists(),
        used_by=_UNMAPPED,
        why="the allocator of sleep mode; absent where vLLM is not installed",
        since="0.31",
        absent_in=Absence.SOME_BUILDS,
    ),
    Seam(
        owner=_ALLOCATOR,
        name="sleep",
        expected=Uses("pointer_to_data", "data.is_asleep"),
        used_by=_UNMAPPED,
        why="wrapped: notes for each segment whether it is unmapped, which torch does not know",
        since="0.31",
        absent_in=Absence.SOME_BUILDS,
    ),
    Seam(
        owner=_ALLOCATOR,
        name="wake_up",
        expected=Uses("pointer_to_data", "data.is_asleep"),
        used_by=_UNMAPPED,
        why="wrapped: maps segments again, at which the counters of a phase begin anew",
        since="0.31",
        absent_in=Absence.SOME_BUILDS,
    ),
    Seam(
        owner=_ALLOCATOR,
        name="use_memory_pool",
        expected=Uses("allocator_and_pools", "snapshot"),
        used_by=_UNMAPPED,
        why="keeps torch's pool of each part, and unmaps segments that torch goes on counting",
        since="0.31",
        absent_in=Absence.SOME_BUILDS,
    ),
)
