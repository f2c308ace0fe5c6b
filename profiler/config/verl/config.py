"""Reading of a verl configuration in YAML into a job. An absent key has verl's default."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from profiler.config.models.lookup import canonical_model
from profiler.config.notes import Note
from profiler.config.options.reading import FieldReader, show
from profiler.config.verl.effects import changes_memory, effect_notes, lora_notes, other_models, unknown_notes
from profiler.config.verl.keys import DEFAULTS, engine_of, is_known, resolved, unknown_faults, unresolved_notes
from profiler.config.verl.workers import (
    ULYSSES,
    VerlReader,
    has_flag,
    later_entropy,
    later_sharing_gpus,
    offloads_activations,
    recomputes,
    workers_of,
)
from profiler.domain.errors import Fault, UsageError
from profiler.domain.trials.trial import ALL_LINEAR
from profiler.domain.verl import EntropySettings, Release, Strategy, TrainedModel, VerlJob

SECTION = "actor_rollout_ref"
"""The section that identifies a configuration of verl."""

_MODEL, _ACTOR, _REF, _ROLLOUT = (f"{SECTION}.{part}" for part in ("model", "actor", "ref", "rollout"))

_MICRO_BATCH = f"{_ACTOR}.ppo_micro_batch_size_per_gpu"

_DTYPE_BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}

_PATHS = (f"{_MODEL}.path", "critic.model.path")
"""Keys whose default is a folder of verl's authors."""

_PPO = "gae"
"""The advantage estimator that needs a critic."""


@dataclass(frozen=True, kw_only=True)
class VerlReading:
    """A job as a configuration of verl describes it."""

    job: VerlJob
    """With every row of the maximum length."""
    job_at: Callable[[int], VerlJob]
    """Returns the job whose rows have a mean length; the same job where padding is computed like tokens."""
    removes_padding: bool
    """Whether only tokens are computed, so that the mean length of rows counts."""
    notes: tuple[Note, ...]
    """What was assumed, and what is not counted."""
    undecided: tuple[Note, ...]
    """What of LoRA has no formula, so that the verdict is not firm."""
    unknown: tuple[str, ...]
    """Keys that verl does not have."""
    values: VerlReader
    """The keys with their values, and verl's defaults for the others."""


def read_verl_config(values: Mapping[str, object]) -> VerlJob:
    """Return the job that a configuration of verl describes.

    Raises:
        UsageError: As in `read_verl`.
    """
    return read_verl(values).job


def read_verl(
    values: Mapping[str, object],
    *,
    megatron: bool = False,
    strict: bool = False,
    release: Release = Release.V0_8,
) -> VerlReading:
    """Return the job that a configuration of verl describes, with what was assumed. An absent key has verl's default.

    Args:
        values: The configuration, nested or with dotted keys; of both, later ones win.
        megatron: Whether the defaults are those of `ppo_megatron_trainer`.
        strict: Whether an unknown key is a fault.
        release: The release whose defaults and workers are taken.

    Raises:
        UsageError: A value is wrong, or an unknown key resembles one that matters; carries every fault.
    """
    written = flattened(values)
    flat = resolved(written)
    uses_megatron = megatron or flat.get(f"{_ACTOR}.strategy") == Strategy.MEGATRON.value
    first, second = DEFAULTS[release] if uses_megatron else DEFAULTS[release][::-1]
    defaults = {key: value for key, value in {**first, **second}.items() if key not in _PATHS}
    unknown = tuple(key for key in flat if not is_known(key, release))
    # What is named as not counted is no misspelling of a key that is read.
    named = frozenset(filter(changes_memory, unknown)) if release is not Release.V0_8 and not strict else frozenset()
    faults = [
        fault for key in unknown if key not in named for fault in unknown_faults(key, flat, release, strict=strict)
    ]
    stated = {key: value for key, value in flat.items() if value is not None}
    with_defaults = {**{key: value for key, value in defaults.items() if value is not None}, **stated}
    reader = VerlReader(with_defaults, release)
    job = _job(reader, _row_tokens(reader))
    faults.extend(reader.faults)
    stated_strategy = flat.get(f"{_ACTOR}.strategy")
    if megatron and stated_strategy not in (None, Strategy.MEGATRON.value):
        problem = "is another engine than megatron, whose configuration is named"
        faults.append(Fault(key=f"{_ACTOR}.strategy", found=show(stated_strategy), problem=problem))
    if not reader.faults:
        faults.extend(_rules(job, reader))
    if faults:
        raise UsageError(faults)
    not_known = {key: flat[key] for key in unknown if not changes_memory(key)}
    notes = (
        *_assumed(flat, reader),
        *unresolved_notes(written, release),
        *effect_notes(flat, {**first, **second}, job, release),
        *unknown_notes(not_known, job, reader),
    )
    removes_padding = _removes_padding(reader)
    return VerlReading(
        job=job,
        job_at=lambda tokens: _job(reader, min(tokens, _row_tokens(reader))) if removes_padding else job,
        removes_padding=removes_padding,
        notes=notes,
        undecided=(*lora_notes(job, reader), *other_models(not_known)),
        unknown=unknown,
        values=reader,
    )


def _row_tokens(reader: FieldReader) -> int:
    return reader.count("data.max_prompt_length") + reader.count("data.max_response_length")


def _removes_padding(reader: VerlReader) -> bool:
    """Return whether the passes of all models leave padding out; Megatron's of 0.8 always do (`megatron_actor.py`)."""
    if reader.is_megatron and not reader.is_later:
        return True
    return _actor_removes_padding(reader) and (
        not _has_critic(reader) or has_flag(reader, "critic.model.use_remove_padding")
    )


def _actor_removes_padding(reader: VerlReader) -> bool:
    """Return whether the actor leaves padding out; the actor's own key is of 0.8."""
    of_model = has_flag(reader, f"{_MODEL}.use_remove_padding")
    return of_model or (not reader.is_later and has_flag(reader, f"{_ACTOR}.use_remove_padding"))


def _entropy(reader: VerlReader) -> EntropySettings:
    """Return how the actor computes entropies.

    Source: `DataParallelPPOActor` in verl 0.7: without the removal of padding neither compiled nor in chunks.
    """
    removes, coefficient = _actor_removes_padding(reader), f"{_ACTOR}.entropy_coeff"
    in_loss = reader.value(coefficient) is not None and reader.number(coefficient) != 0
    in_update = in_loss or has_flag(reader, f"{_ACTOR}.calculate_entropy")
    if reader.is_later:
        return later_entropy(reader, removes=removes, in_update=in_update, in_loss=in_loss)
    return EntropySettings(
        in_update=in_update,
        in_loss=in_loss,
        is_compiled=removes and has_flag(reader, f"{_ACTOR}.use_torch_compile"),
        checkpointing=has_flag(reader, f"{_ACTOR}.entropy_checkpointing"),
        chunking=removes and has_flag(reader, f"{_ACTOR}.entropy_from_logits_with_chunking"),
        only_responses=not removes,
    )


def _assumed(flat: Mapping[str, object], reader: FieldReader) -> Iterator[Note]:
    stated = {key for key, value in flat.items() if value is not None}
    if not stated & {_MICRO_BATCH, f"{_ACTOR}.ppo_micro_batch_size"} and not reader.value(f"{_ACTOR}.use_dynamic_bsz"):
        yield Note(key="", text="ppo_micro_batch_size_per_gpu=1 (verl has no default)")
    scored = f"{_ROLLOUT}.log_prob_micro_batch_size"
    is_dynamic = reader.value(f"{_ROLLOUT}.log_prob_use_dynamic_bsz") or reader.value(f"{_ACTOR}.use_dynamic_bsz")
    if stated & {_MICRO_BATCH} and not stated & {scored, f"{scored}_per_gpu"} and not is_dynamic:
        text = f"{scored}_per_gpu={show(reader.value(_MICRO_BATCH))} (that of the actor; verl has no default)"
        yield Note(key="", text=text)
    for key in ("data.max_prompt_length", "data.max_response_length"):
        if key not in stated:
            yield Note(key="", text=f"{key}={show(reader.value(key))} (verl's default)")


def flattened(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return the keys of nested sections with dots: ``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flattened(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def _job(reader: VerlReader, tokens: int) -> VerlJob:
    """Return the job whose rows have `tokens` tokens."""
    gpus, entropy = _gpus(reader), _entropy(reader)
    size = reader.value(f"{_ACTOR}.fsdp_config.fsdp_size")
    has_reference = reader.flag(f"{_ACTOR}.use_kl_loss") | reader.flag("algorithm.use_kl_in_reward")
    workers = workers_of(reader, entropy, removes=_actor_removes_padding(reader))
    scored = [_ROLLOUT, _REF] if has_reference and not workers.counts_adapters else [_ROLLOUT]
    budget = "log_prob_max_token_len_per_gpu"
    log_prob = max(_tokens(reader, f"{worker}.log_prob", tokens, budget=budget)[0] for worker in scored)
    return VerlJob(
        model=canonical_model(reader.text(f"{_MODEL}.path", "a built-in name, a local path or a hub id")),
        n_gpus=gpus,
        strategy=reader.choice(f"{_ACTOR}.strategy", Strategy),
        actor=_trained(reader, _ACTOR, _MODEL, tokens=tokens),
        critic=_trained(reader, "critic", "critic.model", tokens=tokens) if _has_critic(reader) else None,
        has_reference=has_reference,
        ref_param_offload=_offloads_reference(reader),
        log_prob_max_tokens=log_prob,
        fsdp_size=gpus if size == -1 else reader.count(f"{_ACTOR}.fsdp_config.fsdp_size"),
        reshard_after_forward=reader.flag(f"{_ACTOR}.fsdp_config.reshard_after_forward"),
        tensor_model_parallel_size=reader.count(f"{_ACTOR}.megatron.tensor_model_parallel_size"),
        pipeline_model_parallel_size=reader.count(f"{_ACTOR}.megatron.pipeline_model_parallel_size"),
        use_fused_kernels=_uses_fused_kernels(reader),
        lora_rank=reader.count(f"{_MODEL}.lora_rank", minimum=0),
        lora_target_modules=_targets(reader),
        max_prompt_length=reader.count("data.max_prompt_length"),
        max_response_length=reader.count("data.max_response_length"),
        train_batch_size=reader.count("data.train_batch_size"),
        rollout_n=reader.count(f"{_ROLLOUT}.n"),
        rollout_tensor_parallel_size=reader.count(f"{_ROLLOUT}.tensor_model_parallel_size"),
        engine=engine_of(reader),
        gpu_memory_utilization=reader.number(f"{_ROLLOUT}.gpu_memory_utilization"),
        free_cache_engine=reader.flag(f"{_ROLLOUT}.free_cache_engine"),
        entropy=entropy,
        workers=workers,
    )


def _gpus(reader: FieldReader) -> int:
    return reader.count("trainer.nnodes") * reader.count("trainer.n_gpus_per_node")


def _uses_fused_kernels(reader: VerlReader) -> bool:
    """Return whether log-probabilities come without logits; the actor's own key is of 0.8."""
    of_model = has_flag(reader, f"{_MODEL}.use_fused_kernels")
    return of_model or (not reader.is_later and has_flag(reader, f"{_ACTOR}.use_fused_kernels"))


def _offloads_reference(reader: VerlReader) -> bool:
    """Return whether the reference waits on the host: with FSDP of 0.9.1 always, with its Megatron as the actor does.

    Source: `_build_fsdp_module`, which wraps what is `forward_only` with `CPUOffload`, and `megatron_ref.yaml`.
    """
    key = f"{reader.engine(_REF)}.param_offload"
    if reader.is_later and not reader.is_megatron:
        return True
    if reader.is_later and reader.value(key) is None:
        key = f"{reader.engine(_ACTOR)}.param_offload"
    return has_flag(reader, key)


def _trained(reader: VerlReader, worker: str, model: str, *, tokens: int) -> TrainedModel:
    """Return the actor or the critic, with the key of its model."""
    engine = reader.engine(worker)
    passed, of_mini_batch = _tokens(reader, f"{worker}.ppo", tokens, budget="ppo_max_token_len_per_gpu")
    return TrainedModel(
        param_offload=has_flag(reader, f"{engine}.param_offload"),
        optimizer_offload=has_flag(reader, f"{engine}.optimizer_offload"),
        offload_policy=has_flag(reader, f"{engine}.offload_policy"),
        weight_bytes=_weight_bytes(reader, f"{engine}.model_dtype"),
        gradient_checkpointing=recomputes(reader, worker, model),
        activation_offload=offloads_activations(reader, model),
        max_tokens=passed,
        accumulates=of_mini_batch > passed,
    )


def _has_critic(reader: FieldReader) -> bool:
    asked = reader.value("critic.enable")
    return asked is True or (asked is None and reader.value("algorithm.adv_estimator") == _PPO)


def _tokens(reader: VerlReader, prefix: str, row_tokens: int, *, budget: str) -> tuple[int, int]:
    """Return the tokens of one pass on one GPU, and those of all passes before the next optimizer step or rollout.

    A pass has the budget of a dynamic batch, else rows times their length; there is no more than all rows together.
    With Ulysses, several GPUs share the rows of a batch; a budget is that of one GPU, as verl multiplies it.
    """
    worker, _, kind = prefix.rpartition(".")
    shared, rows = sharing_gpus(reader, worker), _rows_per_gpu(reader, worker, kind)
    every = -(-row_tokens * rows // shared)
    dynamic = f"{worker}.log_prob_use_dynamic_bsz" if kind == "log_prob" else f"{worker}.use_dynamic_bsz"
    actor_is_dynamic = reader.flag(f"{_ACTOR}.use_dynamic_bsz")
    if actor_is_dynamic if reader.value(dynamic) is None else reader.flag(dynamic):
        key = f"{worker}.{budget}"
        limit = reader.count(key if reader.value(key) is not None else f"{_ACTOR}.ppo_max_token_len_per_gpu")
        return min(limit, every), every
    micro = min(rows, _rows(reader, f"{worker}.{kind}_micro_batch_size", shared))
    return -(-row_tokens * micro // shared), every


def _rows_per_gpu(reader: VerlReader, worker: str, kind: str) -> int:
    """Return the rows of a mini-batch, or for log-probabilities of a rollout, that each group of GPUs gets.

    A group is the GPUs that share rows: those of Ulysses, or of Megatron's tensor and pipeline. Source: "normalize
    config" in `ActorRolloutRefWorker.__init__` of verl.
    """
    prompts = reader.count("data.train_batch_size")
    if kind != "log_prob":
        own = f"{worker}.ppo_mini_batch_size"
        prompts = reader.count(own if reader.value(own) is not None else f"{_ACTOR}.ppo_mini_batch_size")
    group = sharing_gpus(reader, worker)
    if reader.is_megatron:
        sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
        group *= prod(reader.count(f"{_ACTOR}.megatron.{size}") for size in sizes)
    return max(1, prompts * reader.count(f"{_ROLLOUT}.n") // max(1, _gpus(reader) // group))


def sharing_gpus(reader: VerlReader, worker: str) -> int:
    """Return the GPUs that share the rows of a batch (Ulysses), those of the actor for rollout and reference."""
    if reader.is_later:
        return later_sharing_gpus(reader, worker)
    if reader.is_megatron:
        return 1
    key = f"{worker}.{ULYSSES}"
    return reader.count(key if reader.value(key) is not None else f"{_ACTOR}.{ULYSSES}")


def _rows(reader: FieldReader, key: str, shared: int) -> int:
    """Return the rows of a micro-batch on one GPU; `key` itself is verl's older name, the rows on all GPUs.

    Without either, those of the actor; 1 where verl would ask for a value.
    """
    for name in (key, f"{_ACTOR}.ppo_micro_batch_size"):
        if reader.value(f"{name}_per_gpu") is not None:
            return reader.count(f"{name}_per_gpu")
        if reader.value(name) is not None:
            return max(1, reader.count(name) * shared // _gpus(reader))
    return 1


def _weight_bytes(reader: FieldReader, key: str) -> int:
    name = reader.value(key)
    if name is None:
        return _DTYPE_BYTES["fp32"]
    if name not in _DTYPE_BYTES:
        reader.one_of(key, tuple(_DTYPE_BYTES))
    return _DTYPE_BYTES.get(str(name), 4)


def _targets(reader: FieldReader) -> tuple[str, ...]:
    value = reader.value(f"{_MODEL}.target_modules")
    if isinstance(value, list):
        return tuple(str(name) for name in value)
    return (ALL_LINEAR,) if value is None else (str(value),)


def _rules(job: VerlJob, reader: VerlReader) -> list[Fault]:
    faults = []
    for worker in () if reader.is_megatron else (_ACTOR, _REF, "critic"):
        shared = sharing_gpus(reader, worker)
        if job.n_gpus % shared:
            section = reader.engine(worker) if reader.is_later else worker
            problem = f"must divide the {job.n_gpus} GPUs"
            faults.append(Fault(key=f"{section}.{ULYSSES}", found=show(shared), problem=problem))
    device = reader.value("trainer.device")
    if device not in (None, "cuda"):
        problem = "is no GPU of NVIDIA; only trainer.device=cuda is known"
        faults.append(Fault(key="trainer.device", found=show(device), problem=problem))
    if not 0 < job.gpu_memory_utilization <= 1:
        key = f"{_ROLLOUT}.gpu_memory_utilization"
        faults.append(Fault(key=key, found=show(job.gpu_memory_utilization), problem="must be above 0 and at most 1"))
    if job.n_gpus % job.rollout_tensor_parallel_size:
        key = f"{_ROLLOUT}.tensor_model_parallel_size"
        found = show(job.rollout_tensor_parallel_size)
        faults.append(Fault(key=key, found=found, problem=f"must divide the {job.n_gpus} GPUs"))
    if job.n_gpus % job.fsdp_size:
        key = f"{_ACTOR}.fsdp_config.fsdp_size"
        faults.append(Fault(key=key, found=show(job.fsdp_size), problem=f"must divide the {job.n_gpus} GPUs, or be -1"))
    context = sharing_gpus(reader, _ACTOR) if reader.is_megatron else 1
    parallel = job.tensor_model_parallel_size * job.pipeline_model_parallel_size * context
    if job.n_gpus % parallel:
        key = f"{_ACTOR}.megatron.tensor_model_parallel_size"
        times = "pipeline_model_parallel_size" + (" and context_parallel_size" if context > 1 else "")
        problem = f"times {times} must divide the {job.n_gpus} GPUs"
        faults.append(Fault(key=key, found=show(job.tensor_model_parallel_size), problem=problem))
    faults.extend(_expert_rules(job) if reader.is_megatron else ())
    return faults


def _expert_rules(job: VerlJob) -> list[Fault]:
    """Return the fault of experts that the GPUs do not divide into (`initialize_model_parallel` of Megatron-Core)."""
    size, tensor = job.workers.expert_model_parallel_size, job.workers.expert_tensor_parallel_size
    gpus = size * tensor * job.pipeline_model_parallel_size
    if job.n_gpus % gpus == 0:
        return []
    problem = (
        f"times expert_tensor_parallel_size={tensor} (tensor_model_parallel_size if null) and "
        f"pipeline_model_parallel_size={job.pipeline_model_parallel_size} is {gpus}, which must divide the "
        f"{job.n_gpus} GPUs"
    )
    return [Fault(key=f"{_ACTOR}.megatron.expert_model_parallel_size", found=show(size), problem=problem)]
