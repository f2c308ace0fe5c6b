"""Reading of a verl configuration in YAML into a job. An absent key has verl's default."""

from collections.abc import Mapping

from profiler.config.model_lookup import canonical_model
from profiler.config.reading import FieldReader, show
from profiler.config.verl_keys import FREE_KEYS, FREE_PREFIXES, MEMORY_KEYS, NEUTRAL_VALUES
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.trial import ALL_LINEAR
from profiler.domain.verl import Strategy, TrainedModel, VerlJob

SECTION = "actor_rollout_ref"
"""The section that identifies a configuration of verl."""

_MODEL, _ACTOR, _REF, _ROLLOUT = (f"{SECTION}.{part}" for part in ("model", "actor", "ref", "rollout"))

_DEFAULTS: Mapping[str, object] = {
    f"{_MODEL}.enable_gradient_checkpointing": True,
    f"{_MODEL}.enable_activation_offload": False,
    f"{_MODEL}.lora_rank": 0,
    f"{_ACTOR}.strategy": "fsdp",
    f"{_ACTOR}.use_dynamic_bsz": False,
    f"{_ACTOR}.ppo_max_token_len_per_gpu": 16_384,
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": 1,
    f"{_ACTOR}.use_kl_loss": False,
    f"{_ACTOR}.fsdp_config.fsdp_size": -1,
    f"{_ACTOR}.fsdp_config.reshard_after_forward": True,
    f"{_ACTOR}.megatron.tensor_model_parallel_size": 1,
    f"{_ACTOR}.megatron.pipeline_model_parallel_size": 1,
    f"{_ROLLOUT}.n": 1,
    f"{_ROLLOUT}.gpu_memory_utilization": 0.5,
    f"{_ROLLOUT}.tensor_model_parallel_size": 2,
    f"{_ROLLOUT}.free_cache_engine": True,
    "critic.model.enable_gradient_checkpointing": True,
    "critic.model.enable_activation_offload": False,
    "critic.ppo_max_token_len_per_gpu": 32_768,
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_in_reward": False,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.train_batch_size": 1024,
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
}

_DTYPE_BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}

_PPO = "gae"
"""The advantage estimator that needs a critic."""


def read_verl_config(values: Mapping[str, object]) -> VerlJob:
    """Return the job that a configuration of verl describes.

    Raises:
        UsageError: A key is unknown, a value is wrong or has no formula; carries every fault.
    """
    flat = {key: value for key, value in _flattened(values).items() if not _is_reference(value)}
    faults = [fault for key, value in flat.items() for fault in _key_faults(key, value)]
    reader = FieldReader({**_DEFAULTS, **{key: value for key, value in flat.items() if value is not None}})
    job = _job(reader)
    faults.extend(reader.faults)
    if not reader.faults:
        faults.extend(_rules(job))
    if faults:
        raise UsageError(faults)
    return job


def _flattened(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(_flattened(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def _is_reference(value: object) -> bool:
    """Return whether `value` is not stated: ``${...}`` is verl's own default, ``???`` is on its command line."""
    return isinstance(value, str) and ("${" in value or value == "???")


def _key_faults(key: str, value: object) -> list[Fault]:
    if key in NEUTRAL_VALUES:
        allowed = NEUTRAL_VALUES[key]
        if value is None or value in allowed:
            return []
        texts = " or ".join(show(choice) for choice in (*allowed, None))
        return [Fault(key=key, found=show(value), problem=f"changes memory in a way that has no formula; only {texts}")]
    if key in MEMORY_KEYS or key in FREE_KEYS or key.startswith(FREE_PREFIXES):
        return []
    known = [*MEMORY_KEYS, *FREE_KEYS, *NEUTRAL_VALUES]
    return [Fault(key=key, found=show(value), problem="is unknown in verl's configuration", hint=nearest(key, known))]


def _job(reader: FieldReader) -> VerlJob:
    gpus = reader.count("trainer.nnodes") * reader.count("trainer.n_gpus_per_node")
    tokens = reader.count("data.max_prompt_length") + reader.count("data.max_response_length")
    strategy = reader.choice(f"{_ACTOR}.strategy", Strategy)
    size = reader.value(f"{_ACTOR}.fsdp_config.fsdp_size")
    has_reference = reader.flag(f"{_ACTOR}.use_kl_loss") | reader.flag("algorithm.use_kl_in_reward")
    scored = [_ROLLOUT, _REF] if has_reference else [_ROLLOUT]
    budget = "log_prob_max_token_len_per_gpu"
    log_prob = max(_tokens(reader, f"{worker}.log_prob", tokens, budget=budget) for worker in scored)
    uses_fused = f"{_ACTOR}.use_fused_kernels", f"{_MODEL}.use_fused_kernels"
    return VerlJob(
        model=canonical_model(reader.text(f"{_MODEL}.path", "a built-in name, a local path or a hub id")),
        n_gpus=gpus,
        strategy=strategy,
        actor=_trained(reader, _ACTOR, _MODEL, tokens=tokens, section=_engine(strategy)),
        critic=_critic(reader, tokens=tokens, strategy=strategy),
        has_reference=has_reference,
        ref_param_offload=_flag(reader, f"{_REF}.{_engine(strategy)}.param_offload"),
        log_prob_max_tokens=log_prob,
        fsdp_size=gpus if size == -1 else reader.count(f"{_ACTOR}.fsdp_config.fsdp_size"),
        reshard_after_forward=reader.flag(f"{_ACTOR}.fsdp_config.reshard_after_forward"),
        tensor_model_parallel_size=reader.count(f"{_ACTOR}.megatron.tensor_model_parallel_size"),
        pipeline_model_parallel_size=reader.count(f"{_ACTOR}.megatron.pipeline_model_parallel_size"),
        use_fused_kernels=any(_flag(reader, key) for key in uses_fused),
        lora_rank=reader.count(f"{_MODEL}.lora_rank", minimum=0),
        lora_target_modules=_targets(reader),
        max_prompt_length=reader.count("data.max_prompt_length"),
        max_response_length=reader.count("data.max_response_length"),
        train_batch_size=reader.count("data.train_batch_size"),
        rollout_n=reader.count(f"{_ROLLOUT}.n"),
        rollout_tensor_parallel_size=reader.count(f"{_ROLLOUT}.tensor_model_parallel_size"),
        gpu_memory_utilization=reader.number(f"{_ROLLOUT}.gpu_memory_utilization"),
        free_cache_engine=reader.flag(f"{_ROLLOUT}.free_cache_engine"),
    )


def _engine(strategy: Strategy) -> str:
    return "megatron" if strategy is Strategy.MEGATRON else "fsdp_config"


def _trained(reader: FieldReader, worker: str, model: str, *, tokens: int, section: str) -> TrainedModel:
    """Return the actor, whose engine has its keys under `worker`, or the critic, with keys under `model`."""
    engine = f"{model if worker == 'critic' and section == 'fsdp_config' else worker}.{section}"
    return TrainedModel(
        param_offload=_flag(reader, f"{engine}.param_offload"),
        optimizer_offload=_flag(reader, f"{engine}.optimizer_offload"),
        offload_policy=_flag(reader, f"{engine}.offload_policy"),
        weight_bytes=_weight_bytes(reader, f"{engine}.model_dtype"),
        gradient_checkpointing=reader.flag(f"{model}.enable_gradient_checkpointing"),
        activation_offload=reader.flag(f"{model}.enable_activation_offload"),
        max_tokens=_tokens(reader, f"{worker}.ppo", tokens, budget="ppo_max_token_len_per_gpu"),
    )


def _critic(reader: FieldReader, *, tokens: int, strategy: Strategy) -> TrainedModel | None:
    asked = reader.value("critic.enable")
    if asked is False or (asked is None and reader.value("algorithm.adv_estimator") != _PPO):
        return None
    return _trained(reader, "critic", "critic.model", tokens=tokens, section=_engine(strategy))


def _tokens(reader: FieldReader, prefix: str, row_tokens: int, *, budget: str) -> int:
    """Return the tokens of one pass on one GPU: the budget of a dynamic batch, else rows times maximum length."""
    worker, _, kind = prefix.rpartition(".")
    dynamic = f"{worker}.log_prob_use_dynamic_bsz" if kind == "log_prob" else f"{worker}.use_dynamic_bsz"
    actor_is_dynamic = reader.flag(f"{_ACTOR}.use_dynamic_bsz")
    if actor_is_dynamic if reader.value(dynamic) is None else reader.flag(dynamic):
        key = f"{worker}.{budget}"
        return reader.count(key if reader.value(key) is not None else f"{_ACTOR}.ppo_max_token_len_per_gpu")
    key = f"{worker}.{kind}_micro_batch_size_per_gpu"
    return row_tokens * reader.count(key if reader.value(key) is not None else f"{_ACTOR}.ppo_micro_batch_size_per_gpu")


def _flag(reader: FieldReader, key: str) -> bool:
    return reader.value(key) is not None and reader.flag(key)


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


def _rules(job: VerlJob) -> list[Fault]:
    faults = []
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
    parallel = job.tensor_model_parallel_size * job.pipeline_model_parallel_size
    if job.n_gpus % parallel:
        key = f"{_ACTOR}.megatron.tensor_model_parallel_size"
        problem = f"times pipeline_model_parallel_size must divide the {job.n_gpus} GPUs"
        faults.append(Fault(key=key, found=show(job.tensor_model_parallel_size), problem=problem))
    return faults
