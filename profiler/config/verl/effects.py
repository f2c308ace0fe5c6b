"""Keys of verl that change memory and have no formula: a value other than verl's default is named as not counted."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from profiler.config.models.lookup import canonical_model
from profiler.config.notes import Note, not_counted
from profiler.config.options.reading import FieldReader, show
from profiler.config.verl.keys import BLOCK, DEFAULTS, RECOMPUTE, ROLLOUT_NAME, VERLS_DEFAULT
from profiler.domain.errors import Fault
from profiler.domain.verl import VLLM, Release, Strategy, VerlJob

_WITHOUT_FORMULA = re.compile(
    r"""
    (actor_rollout_ref\.(actor|ref)|critic)\.megatron\.
        (context_parallel_size|expert_model_parallel_size|expert_tensor_parallel_size|sequence_parallel
        |virtual_pipeline_model_parallel_size|use_distributed_optimizer|dtype|override_ddp_config(\..+)?
        |override_transformer_config\.(recompute_\w+|attention_backend|moe_\w+)|override_mcore_model_config(\..+)?)
    |actor_rollout_ref\.ref\.megatron\.(tensor|pipeline)_model_parallel_size
    |critic\.megatron\.(tensor|pipeline)_model_parallel_size
    |((actor_rollout_ref\.(actor|ref)|critic\.model)\.fsdp_config|critic\.fsdp)\.
        (dtype|forward_prefetch|entropy_from_logits_with_chunking|entropy_checkpointing|ulysses_sequence_parallel_size
        |mixed_precision(\..+)?|use_no_sync_for_gradient_accumulation|pad_to_length|qat\..+)
    |actor_rollout_ref\.ref\.fsdp_config\.(model_dtype|fsdp_size|reshard_after_forward|offload_policy)
    |actor_rollout_ref\.ref\.model(\..+)?
    |critic\.(model\.fsdp_config|fsdp)\.(fsdp_size|reshard_after_forward)
    |(actor_rollout_ref\.(actor|ref)|critic)\.megatron\.
        (use_megatron_fsdp|dynamic_context_parallel|pad_to_length|qat\..+)
    |(actor_rollout_ref\.actor|critic)\.optim\.(use_precision_aware_optimizer|\w+_dtype
        |use_layer_wise_distributed_optimizer)
    |actor_rollout_ref\.actor\.(use_prefix_grouper|calculate_sum_pi_squared)
    |(actor_rollout_ref\.actor|critic)\.optim\.(optimizer|optimizer_impl|override_optimizer_config(\..+)?)
    |actor_rollout_ref\.rollout\.
        (data_parallel_size|expert_parallel_size|pipeline_model_parallel_size|quantization|dtype|nnodes
        |engine_kwargs\.\w+\.(gpu_memory_utilization|mem_fraction_static|enable_sleep_mode|cpu_offload_gb)
        |disaggregation\.enabled|checkpoint_engine\.backend|moe_\w+_parallel_size)
    |actor_rollout_ref\.model\.
        (use_liger|tiled_mlp\.enabled|lora\.rank|lora_adapter_path|lora\.adapter_path|hf_config_path
        |mtp\.enable(_\w+)?)
    |actor_rollout_ref\.hybrid_engine
    |critic\.model\.(lora_rank|lora\.rank|lora_adapter_path|lora\.adapter_path|tiled_mlp\.enabled)
    |critic\.(forward_max_token_len_per_gpu|forward_micro_batch_size_per_gpu)
    |distillation\.enabled
    |reward\.reward_model\.enable
    |rollout\.(nnodes|n_gpus_per_node)
    |trainer\.v1\.trainer_mode
    """,
    re.VERBOSE,
)

_COUNTED_LATER = re.compile(
    r"""
    actor_rollout_ref\.(actor|ref)\.fsdp_config\.(entropy_\w+|ulysses_sequence_parallel_size)
    |critic\.fsdp\.(entropy_\w+|ulysses_sequence_parallel_size)
    |actor_rollout_ref\.ref\.fsdp_config\.(model_dtype|offload_policy)
    |(actor_rollout_ref\.(actor|ref)|critic)\.megatron\.
        (context_parallel_size|expert_\w+_parallel_size)
    |reward\.reward_model\.enable
    """,
    re.VERBOSE,
)
"""Keys of those above that are counted with the workers of 0.9.1.

A reference waits on the host there, so that the type of its weights changes nothing on the GPU.
"""

_RECOMPUTATION = re.compile(rf"(actor_rollout_ref\.(actor|ref)|critic)\.{re.escape(RECOMPUTE)}_\w+")
"""Keys of those above that are counted, or named by one note for all that layers of Megatron-Core keep."""

_ADAPTED = re.compile(r"actor_rollout_ref\.model\.(exclude_modules|target_parameters)")
"""Keys that change which layers have adapters, where adapters are counted."""

_ENTROPY = re.compile(r"actor_rollout_ref\.actor\.(entropy_\w+|calculate_entropy)")
"""Keys of an entropy, which Megatron computes otherwise."""

_CHUNKING = "actor_rollout_ref.actor.entropy_from_logits_with_chunking"

_FREE_OVERRIDES = ("max_position_embeddings", "attn_implementation", "rope_theta", "attention_dropout")
"""Fields of the model's configuration that change no tensor."""

_ACTOR, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"

_SAME_AS_DEFAULT = {
    "param_dtype": "bf16",
    "reduce_dtype": "fp32",
    "buffer_dtype": "fp32",
    "trainer_mode": "sync",
    "backend": "naive",
}
"""Values that verl takes by default. Source: `MixedPrecision` in `fsdp_workers.py`, `ppo_trainer.yaml` of 0.9."""

_WHY = {
    "lora_rank": "the whole weights that LoRA gathers for the rollout engine, and the engine's adapters",
    "rank": "the adapters of LoRA are not those of full fine-tuning",
    "lora_adapter_path": "the rank of these adapters is not stated, and full fine-tuning is counted",
    "adapter_path": "the rank of these adapters is not stated, and full fine-tuning is counted",
}
"""What it is that changes, by the last part of a key.

Source: `collect_lora_params` in `utils/fsdp_utils.py` of verl, which without `layered_summon` gathers all weights.
"""

_SECTIONS_OF_MEMORY = ("actor_rollout_ref.", "critic.", "reward_model.")
"""Sections in which a key that is not known may change memory."""

_SECTIONS = frozenset(key.partition(".")[0] for tables in DEFAULTS.values() for table in tables for key in table)
"""Sections of verl; of any other, numbers may be sizes of a changed verl, such as ``agent_grpo.n``."""

_NAMES_MODEL = re.compile(
    r"(?!(actor_rollout_ref|critic|reward_model|reward)\.).*\.(model\.path|model_path|model_name(_or_path)?)"
)
"""Keys of sections of a fork that name a further model."""

_SWITCH = re.compile(r"\w+\.\w*(use|enable)\w*")
"""Keys that switch a section of a fork."""


_FIRST_KEY = re.compile(r"(?:actor_rollout_ref\.(?:actor|ref)|critic\.model)\.fsdp_config\.grad_offload")
"""A key of verl before 0.3 alone."""

_SINCE = "trainer.val_before_train"
"""A key that verl has since 0.3: `+` adds it to the configuration of an earlier one."""

_EARLIER = "a verl before 0.3"

_PADDING, _PADDING_OF_CRITIC = (f"{part}.model.use_remove_padding" for part in ("actor_rollout_ref", "critic"))

_FIRST_DEFAULTS: Mapping[str, object] = {
    "actor_rollout_ref.actor.entropy_coeff": 0.001,
    "algorithm.use_kl_in_reward": True,
    _PADDING: False,
    _PADDING_OF_CRITIC: False,
}
"""What the first releases of verl have by default, where later ones have 0, false and true.

The second without a loss of KL. Source: pull requests 284, which removes `grad_offload` of FSDP, and 1770 of verl;
`ray_trainer.py` of 0.2, which applies `apply_kl_penalty` unless `use_kl_loss` is true, and whose reference is always
there; `ppo_trainer.yaml` of 0.1 and 0.2.
"""


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """What a job of an earlier release of verl has by default."""

    values: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    faults: tuple[Fault, ...] = ()


def earlier_defaults(values: Mapping[str, object], added: Collection[str], new: Collection[str]) -> Earlier:
    """Return the defaults of the first releases of verl, where a key shows that a job is of one of them.

    Args:
        values: The keys that are stated.
        added: Those that are added by ``+`` or ``++``.
        new: Those that are added by ``+``, so that the configuration lacks them.
    """
    first = next((key for key in values if _FIRST_KEY.fullmatch(key) and key not in added), None)
    if first is None and _SINCE not in new:
        return Earlier()
    sign = f"which has {first}" if first is not None else f"to which +{_SINCE} adds a key"
    left = {*values, *(() if _has_critic(values) else (_PADDING_OF_CRITIC,))}
    left |= {"algorithm.use_kl_in_reward"} if values.get(f"{_ACTOR}.use_kl_loss") is True else set()
    found = {key: default for key, default in _FIRST_DEFAULTS.items() if key not in left}
    texts = {key: f"{key}={show(default)} (verl's default before 0.3)" for key, default in found.items()}
    texts = {"": f"{_EARLIER} ({sign})", **texts}
    return Earlier(
        values=found,
        notes=tuple(Note(key=key, text=text) for key, text in texts.items()),
        faults=tuple(_open_checkpointing(values, sign)),
    )


def _has_critic(values: Mapping[str, object]) -> bool:
    return values.get("algorithm.adv_estimator", "gae") == "gae"


def _open_checkpointing(values: Mapping[str, object], sign: str) -> Iterator[Fault]:
    """Ask for checkpointing where a job may be of verl 0.1, which has none by default.

    Source: `ppo_trainer.yaml` of 0.1, whose micro-batches are counted over all GPUs; 0.2 has those of one GPU too.
    """
    workers = {"actor_rollout_ref": _ACTOR} | ({"critic": "critic"} if _has_critic(values) else {})
    for section, worker in workers.items():
        key, batch = f"{section}.model.enable_gradient_checkpointing", f"{worker}.ppo_micro_batch_size"
        if batch in values and f"{batch}_per_gpu" not in values and key not in values:
            problem = f"is false in verl 0.1 and true from 0.2 on, and the job is of one before 0.3, {sign}"
            yield Fault(key=key, found="null", problem=problem, hint=f"Give {key}= as well.")


def doubt_of_refusal(notes: Sequence[Note], unknown: Collection[str]) -> str:
    """Return why another verl, or other values, may be of a job that verl refuses; empty if there is no doubt."""
    texts = [note.text for note in notes if not note.is_counted]
    if any(text.startswith(f"what {key}=") for key in unknown for text in texts):
        return "what this fork of verl makes of a job that verl refuses"
    if any(text.startswith(VERLS_DEFAULT) for text in texts):
        return "whether verl refuses the job"
    is_earlier = any(note.text.startswith(_EARLIER) for note in notes)
    return f"whether {_EARLIER} refuses the job, as 0.8 does" if is_earlier else ""


def padding_notes(stated: Collection[str], new: Collection[str], *, is_megatron: bool) -> list[Note]:
    """Return the note that a script of FSDP does not say whether rows are padded, whose default verl has changed.

    It leaves the verdict open where a key that is added by ``+`` shows that the script's verl is an earlier one.

    Source: `ppo_trainer.yaml` and `model/hf_model.yaml` of verl 0.1 to 0.9.
    """
    if is_megatron or not {_PADDING, f"{_ACTOR}.use_remove_padding"}.isdisjoint(stated):
        return []
    sign = next((key for key in sorted(new) if key in DEFAULTS[Release.V0_8][0]), None)
    if sign is None:
        return [Note(key=_PADDING, text=f"{_PADDING}=true (verl's default from 0.7 on, false before)")]
    text = f"{VERLS_DEFAULT}{_PADDING} (true from 0.7 on, false before; +{sign} is of an earlier verl than 0.8)"
    return [Note(key=_PADDING, text=text, is_counted=False)]


def effect_text(key: str, value: object) -> str:
    """Return that the value of a key changes something that is not counted, and what it is."""
    why = _WHY.get(key.rpartition(".")[2], "")
    return f"what {key}={show(value)} changes" + (f" ({why})" if why else "")


def changes_memory(key: str) -> bool:
    """Return whether a value of this key other than verl's default changes memory in a way that has no formula."""
    return _WITHOUT_FORMULA.fullmatch(key) is not None


def lora_notes(job: VerlJob, values: FieldReader) -> tuple[Note, ...]:
    """Return what of LoRA has no formula, where adapters are trained and counted.

    With the workers of 0.9.1 nothing is left out if no whole weights are gathered on the GPU: `layered_summon`, which
    with FSDP 1 gathers them on the host, or parameters one by one with FSDP 2, to an engine of vLLM that has loaded the
    others. Its adapters are in its pool.

    Source: `collect_lora_params` and `fsdp_merge_unmerge` in `utils/fsdp_utils.py` of verl 0.9.1.
    """
    if not job.lora_rank:
        return ()
    key = f"{_MODEL}.lora_rank"
    if not job.workers.counts_adapters:
        return (not_counted(effect_text(key, job.lora_rank)),)
    rollout = "actor_rollout_ref.rollout"
    is_merged = values.value(f"{_MODEL}.lora.merge") is True
    is_loaded = "dummy" not in str(values.value(f"{rollout}.load_format"))
    by_layer = values.value(f"{rollout}.layered_summon") is True and not is_merged
    if (is_loaded or is_merged) and (by_layer or job.strategy is Strategy.FSDP2):
        return () if is_merged or job.engine == VLLM else (not_counted(f"the adapters of {job.engine.title}"),)
    return (not_counted(effect_text(key, job.lora_rank)),)


def unknown_notes(unknown: Mapping[str, object], job: VerlJob, values: FieldReader) -> tuple[Note, ...]:
    """Return a note per key that verl's configuration here does not have and that may change memory.

    Args:
        unknown: The keys with their values.
        job: The job of the other keys.
        values: All values, with defaults.
    """
    scores = True in (values.value("reward_model.enable"), values.value("reward.reward_model.enable"))
    absent = ((job.critic is None, "critic."), (not scores, "reward_model."))
    left = [section for is_absent, section in absent if is_absent]
    sections = tuple(each for each in _SECTIONS_OF_MEMORY if each not in left)
    return tuple(
        not_counted(f"what {key}={show(value)} changes")
        for key, value in unknown.items()
        if (key.startswith(sections) and value not in (None, False, "", [], {})) or _is_size_of_fork(key, value)
    )


def _is_size_of_fork(key: str, value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and bool(value) and key.partition(".")[0] not in _SECTIONS


def other_models(unknown: Mapping[str, object]) -> tuple[Note, ...]:
    """Return a note per section that verl does not have and that names a model, unless a key in it switches it off.

    Args:
        unknown: The keys that verl does not have, with their values.
    """
    off = {key.partition(".")[0] for key, value in unknown.items() if value is False and _SWITCH.fullmatch(key)}
    models: dict[str, str] = {}
    for key, value in unknown.items():
        section = key.partition(".")[0]
        if _NAMES_MODEL.fullmatch(key) and isinstance(value, str) and value and section not in off:
            models.setdefault(section, f"the model of {section} ({key}={show(value)})")
    return tuple(not_counted(text) for text in models.values())


def effect_notes(
    flat: Mapping[str, object], defaults: Mapping[str, object], job: VerlJob, release: Release
) -> tuple[Note, ...]:
    """Return what of a configuration changes memory and is not counted.

    Args:
        flat: The keys that are stated, with dots.
        defaults: verl's.
        job: The job that they describe.
        release: The release of verl whose workers run it.
    """
    is_later = release is not Release.V0_8
    notes = [
        not_counted(effect_text(key, value))
        for key, value in flat.items()
        if _has_no_formula(key, job, is_later=is_later)
        and value is not None
        and not _is_default(key, value, flat, defaults)
    ]
    overrides = f"{_MODEL}.override_config."
    for key, value in flat.items():
        is_free = key.removeprefix(overrides).startswith(_FREE_OVERRIDES)
        if key.startswith(overrides) and not is_free and not _is_default(key, value, flat, defaults):
            notes.append(not_counted(f"what {key}={show(value)} changes"))
    notes += _engine_notes(flat, job)
    if job.strategy is Strategy.MEGATRON:
        notes += _megatron_notes(flat, job)
    if (
        not is_later
        and flat.get("reward_model.enable") is True
        and flat.get("reward_model.enable_resource_pool") is not True
    ):
        path = flat.get("reward_model.model.path", defaults.get("reward_model.model.path"))
        notes.append(not_counted(f"the reward model {show(path)}"))
    critic, actor = flat.get("critic.model.path"), flat.get(f"{_MODEL}.path")
    is_stated = critic not in (None, actor, defaults.get("critic.model.path"))
    is_other = is_stated and canonical_model(str(critic)) != canonical_model(str(actor))
    if is_other and _has_critic(flat):
        notes.append(not_counted(f"the size of the critic {show(critic)} (that of the actor is taken)"))
    return tuple(notes)


def _engine_notes(flat: Mapping[str, object], job: VerlJob) -> list[Note]:
    """Return what engines change that differ from those that are counted."""
    notes = []
    if not job.engine.takes_share:
        notes.append(not_counted(effect_text(ROLLOUT_NAME, job.engine.key)))
    for worker in ("actor_rollout_ref.ref", "critic"):
        strategy = flat.get(f"{worker}.strategy")
        if strategy is not None and (strategy == Strategy.MEGATRON.value) is not (job.strategy is Strategy.MEGATRON):
            notes.append(not_counted(f"what {worker}.strategy={show(strategy)} changes"))
    return notes


def _megatron_notes(flat: Mapping[str, object], job: VerlJob) -> list[Note]:
    """Return what of Megatron-Core's own layers has no formula; their weights, gradients and states are counted.

    Source: `workers/megatron_workers.py` and `utils/megatron/tensor_parallel.py` of verl 0.8.0.dev (b178a3c), and
    `workers/engine/megatron/transformer_impl.py` of 0.9.1: the layers and the cross-entropy are Megatron-Core's.
    """
    key = f"{_ACTOR}.{RECOMPUTE}"
    is_block = flat.get(f"{key}_method") == BLOCK
    why = f"{key}_method is {BLOCK}" if is_block else f"{key}_granularity is not full"
    kept = "one computed again" if job.actor.gradient_checkpointing else f"all of them, because {why}"
    parallel = (
        ("tensor", job.tensor_model_parallel_size),
        ("expert", job.workers.expert_model_parallel_size),
    )
    shared = " and ".join(name for name, size in parallel if size > 1)
    layers = f"what Megatron-Core's layers keep ({kept}){f' with {shared} parallelism' if shared else ''}"
    fused = "fused " if job.use_fused_kernels else ""
    return [not_counted(layers), not_counted(f"Megatron's own {fused}cross-entropy in float32")]


def _has_no_formula(key: str, job: VerlJob, *, is_later: bool) -> bool:
    """Return whether a value of this key changes memory in a way that is not counted."""
    if _RECOMPUTATION.fullmatch(key) or (is_later and _COUNTED_LATER.fullmatch(key)):
        return False
    if is_later and job.lora_rank and _ADAPTED.fullmatch(key):
        return True
    if _WITHOUT_FORMULA.fullmatch(key):
        return True
    if job.strategy is Strategy.MEGATRON:
        return _ENTROPY.fullmatch(key) is not None
    # Without torch.compile, autograd keeps every chunk until its backward.
    return key == _CHUNKING and job.entropy.in_update and not job.entropy.is_compiled


def _is_default(key: str, value: object, flat: Mapping[str, object], defaults: Mapping[str, object]) -> bool:
    """Return whether the value is verl's default, or equals that of the actor, which is counted for both."""
    if value == defaults.get(key) or value in (False, [], {}, ""):
        return True
    if _SAME_AS_DEFAULT.get(key.rpartition(".")[2]) == value:
        return True
    if key == "actor_rollout_ref.ref.model.path":
        return canonical_model(str(value)) == canonical_model(str(flat.get(f"{_MODEL}.path")))
    for other in ("actor_rollout_ref.ref.", "critic."):
        if key.startswith(other) and key.endswith(("tensor_model_parallel_size", "pipeline_model_parallel_size")):
            counted = f"actor_rollout_ref.actor.{key.removeprefix(other)}"
            return value == flat.get(counted, defaults.get(counted, 1))
        if key.startswith(other) and key.endswith(
            ("forward_max_token_len_per_gpu", "forward_micro_batch_size_per_gpu")
        ):
            counted = key.replace("forward_", "ppo_")
            return value == flat.get(counted, defaults.get(counted))
    return key.endswith("_parallel_size") and value == 1
