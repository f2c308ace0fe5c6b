"""Files that stand next to a recipe of trl: accelerate's, DeepSpeed's and the adapter's.

Names are those of accelerate 1.15, of DeepSpeed's JSON and of peft 0.21. Each function returns what a file says in the
names of trl's files; what has no formula becomes a note, and never a silence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from profiler.config.notes import Direction, Note, Uncounted, not_counted, uncounted_texts
from profiler.config.options.reading import DEVICES, ZERO_STAGES, FileValues, show
from profiler.config.trl.parts import IS_LAUNCHED, JobFile
from profiler.domain.errors import Fault

ACCELERATE_KEYS = frozenset(
    """
    compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank num_machines gpu_ids
    main_process_ip main_process_port rdzv_backend same_network main_training_function enable_cpu_affinity fp8_config
    deepspeed_config fsdp_config parallelism_config megatron_lm_config mpirun_config downcast_bf16 tpu_name tpu_zone
    tpu_use_cluster tpu_use_sudo command_file commands tpu_vm tpu_env dynamo_config ipex_config
    """.split()  # noqa: SIM905
)
"""The keys of accelerate's file, and `ipex_config` of earlier versions."""

_DEEPSPEED_KEYS = frozenset(
    """
    zero_optimization bf16 fp16 bfloat16 amp optimizer scheduler train_batch_size train_micro_batch_size_per_gpu
    gradient_accumulation_steps gradient_clipping steps_per_print wall_clock_breakdown prescale_gradients
    gradient_predivide_factor zero_allow_untested_optimizer zero_force_ds_cpu_optimizer activation_checkpointing
    communication_data_type data_types comms_logger flops_profiler tensorboard wandb csv_monitor monitor_config
    dump_state memory_breakdown sparse_gradients elasticity autotuning checkpoint data_efficiency comet
    seq_parallel_communication_data_type torch_autocast
    """.split()  # noqa: SIM905
)

_ZERO_DEFAULTS: Mapping[str, object] = {
    "reduce_bucket_size": 500_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "sub_group_size": 1_000_000_000,
    "contiguous_gradients": True,
    "zero_quantized_weights": False,
    "zero_hpz_partition_size": 1,
}
"""Keys of `zero_optimization` that change memory, with DeepSpeed's defaults."""

_ACCELERATE_STAGE = 2
"""The stage of ZeRO where accelerate's file names none."""

_WITHOUT_GPU = "is no training on NVIDIA GPUs; NO, MULTI_GPU, FSDP and DEEPSPEED are answered"

_OF_GPUS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")

_PRECISIONS = ("no", "fp16", "bf16", "fp8")

_COMPILERS = tuple(
    """
    no eager aot_eager inductor aot_ts_nvfuser nvprims_nvfuser cudagraphs ofi fx2trt onnxrt tensorrt
    aot_torchxla_trace_once torchxla_trace_once ipex tvm hpu_backend
    """.split()  # noqa: SIM905
)
"""`DynamoBackend` of accelerate 1.15, with names of earlier versions."""

_TASKS = ("CAUSAL_LM", "SEQ_CLS", "SEQ_2_SEQ_LM", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION")
"""`TaskType` of peft 0.21."""

_BIASES = ("none", "all", "lora_only")
"""`LoraConfig.bias` of peft 0.21."""

_AUTO = "auto"

_PEFT_DEFAULTS: Mapping[str, object] = {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0}
"""Defaults of peft's `LoraConfig`, which differ from those of trl's `ModelConfig`."""

LORA_NAMES = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "use_dora": "use_dora",
    "modules_to_save": "lora_modules_to_save",
    "target_parameters": "lora_target_parameters",
}
"""trl's name of peft's fields."""

_LORA_EXTRAS: Mapping[str, tuple[object, ...]] = {
    "bias": ("none",),
    "rank_pattern": ({},),
    "layers_to_transform": ([],),
    "exclude_modules": ([],),
    "trainable_token_indices": ([], {}),
    "layer_replication": ([],),
    "lora_bias": (False,),
    "use_qalora": (False,),
    "use_bdlora": (),
    "arrow_config": (),
    "kasa_config": (),
    "monteclora_config": (),
    "velora_config": (),
    "eva_config": (),
    "corda_config": (),
    "lora_ga_config": (),
    "megatron_config": (),
    "alora_invocation_tokens": (),
    "init_lora_weights": (True, False, "gaussian"),
    "loftq_config": ({},),
    "ensure_weight_tying": (False,),
    "runtime_config": ({}, {"ephemeral_gpu_offload": False}),
}
"""peft's other fields that change memory, with the values that change nothing, as null does."""

LORA_FREE = frozenset(
    """
    task_type peft_type auto_mapping peft_version base_model_name_or_path revision inference_mode fan_in_fan_out
    use_rslora layers_pattern alpha_pattern megatron_core qalora_group_size
    """.split()  # noqa: SIM905
)
"""peft's fields that change no tensor: names and factors, and those without a meaning unless another field is set."""

_FSDP_EXTRAS: Mapping[str, Uncounted] = {
    "fsdp_auto_wrap_policy": Uncounted(
        what="other parts of the model are gathered at once",
        direction=Direction.LOW,
        neutral=("TRANSFORMER_BASED_WRAP",),
    ),
    "fsdp_transformer_layer_cls_to_wrap": Uncounted(
        what="only these layers are gathered one by one", direction=Direction.EITHER
    ),
    "fsdp_forward_prefetch": Uncounted(
        what="the next layer is gathered early", direction=Direction.LOW, neutral=(False,)
    ),
    "fsdp_activation_checkpointing_offload": Uncounted(
        what="checkpoints wait on the host", direction=Direction.HIGH, neutral=(False,)
    ),
    "fsdp_mixed_precision_policy": Uncounted(
        what="weights are gathered in another type", direction=Direction.EITHER, neutral=("bf16",)
    ),
    "fsdp_ignored_modules": Uncounted(what="these modules are not sharded", direction=Direction.LOW),
    "fsdp_use_orig_params": Uncounted(
        what="FSDP 1 keeps one flat parameter per layer", direction=Direction.EITHER, neutral=(True,)
    ),
    "fsdp_limit_all_gathers": Uncounted(
        what="gathers do not wait for memory", direction=Direction.LOW, neutral=(True,)
    ),
    "fsdp_backward_prefetch": Uncounted(
        what="the next layer is gathered at another time", direction=Direction.EITHER, neutral=("BACKWARD_PRE",)
    ),
}
"""Keys of accelerate's `fsdp_config` that are named."""

_FSDP_READ = frozenset(
    """
    fsdp_version fsdp_sharding_strategy fsdp_reshard_after_forward fsdp_offload_params fsdp_cpu_offload
    fsdp_activation_checkpointing fsdp_cpu_ram_efficient_loading
    """.split()  # noqa: SIM905
)

_FSDP_FREE = frozenset(
    """
    fsdp_state_dict_type fsdp_state_dict_config fsdp_optim_state_dict_config fsdp_sync_module_states
    fsdp_param_init_fn fsdp_min_num_params
    """.split()  # noqa: SIM905
)
"""Keys about loading on the host and saving, and a size that only another policy reads."""

FSDP_FIELDS = {*_FSDP_EXTRAS, *_FSDP_READ, *_FSDP_FREE}
"""Every key of accelerate's `fsdp_config`."""

_DEEPSPEED_EXTRAS: Mapping[str, Uncounted] = {
    "deepspeed_moe_layer_cls_names": Uncounted(what="these layers are gathered whole", direction=Direction.LOW),
    "enable_msamp": Uncounted(what="MS-AMP trains in 8 bits", direction=Direction.HIGH, neutral=(False,)),
}
"""Keys of accelerate's `deepspeed_config` that are named."""

_DEEPSPEED_READ = frozenset(
    """
    zero_stage offload_optimizer_device offload_param_device deepspeed_config_file gradient_accumulation_steps
    """.split()  # noqa: SIM905
)

_DEEPSPEED_FREE = frozenset(
    """
    gradient_clipping offload_optimizer_nvme_path offload_param_nvme_path zero3_save_16bit_model deepspeed_hostfile
    deepspeed_multinode_launcher deepspeed_exclusion_filter deepspeed_inclusion_filter msamp_opt_level zero3_init_flag
    """.split()  # noqa: SIM905
)
"""Keys about machines, files and saving. `zero3_init_flag` decides nothing in trl's trainers since accelerate 1.0.

Source: `set_deepspeed_weakref` of accelerate 1.0 to 1.15, by which transformers shards a model while it is made.
"""

_PARALLEL = "parallelism_config"

_SPLITS: Mapping[str, str] = {
    "tp_size": "each layer is split over GPUs (tensor parallelism), which has no formula here",
    "sp_size": "each row is split over GPUs (DeepSpeed-Ulysses); trl's GRPO and RLOO refuse it, and SFT has no "
    "formula for it here",
    "dp_replicate_size": "the model is sharded over a part of the GPUs and copied to the others, which has no formula "
    "here",
}
"""Sizes of accelerate's `ParallelismConfig` above 1, and what each changes.

Source: accelerate 1.15; `GRPOConfig.__post_init__` and `RLOOConfig.__post_init__` of trl 1.16.
"""

PARALLELISM_FIELDS = frozenset(
    f"{_PARALLEL}_{name}"
    for name in (
        *_SPLITS,
        *("cp_size", "dp_shard_size", "cp_backend", "cp_comm_strategy", "sp_backend", "sp_seq_length"),
        *("sp_seq_length_is_variable", "sp_attn_implementation"),
    )
)
"""Every key of accelerate's `parallelism_config`. With all other sizes 1, `dp_shard_size` is the number of GPUs."""

DEEPSPEED_FIELDS = {*_DEEPSPEED_EXTRAS, *_DEEPSPEED_READ, *_DEEPSPEED_FREE}
"""Every key of accelerate's `deepspeed_config`."""


def accelerate_part(name: str, values: Mapping[str, object]) -> JobFile:
    """Return what accelerate's configuration says."""
    stated = values.get("distributed_type", "NO")
    kind = "NO" if stated is False else show(stated).upper()  # YAML 1.1 reads an unquoted NO as false
    reader = FileValues(values)
    if kind not in _OF_GPUS:
        reader.fail("distributed_type", _WITHOUT_GPU)
    found: dict[str, object] = {"use_cpu": True} if reader.flag("use_cpu") else {}
    job: dict[str, object] = {IS_LAUNCHED: True}
    if values.get("num_processes") is not None:
        # `simple_launcher` starts one process, whatever num_processes says (accelerate/commands/launch.py).
        job["num_processes"] = 1 if kind == "NO" and "distributed_type" in values else values["num_processes"]
    notes = list(_accelerate_notes(name, kind, reader))
    _refuse_splits(kind, reader)
    if kind == "FSDP":
        job.update(_fsdp(reader))
    if kind == "DEEPSPEED":
        inner = reader.section("deepspeed_config")
        job.update(_zero(reader))
        file = inner.get("deepspeed_config_file")
        found.update(_stated(inner, ("gradient_accumulation_steps",)))
        if isinstance(file, Mapping):
            found["deepspeed"] = file
        elif file is not None:
            job["deepspeed_file"] = file
        else:
            job.setdefault("zero_stage", _ACCELERATE_STAGE)
    unknown = tuple(str(key) for key in values if key not in ACCELERATE_KEYS)
    part = JobFile(name=name, values=found, job=job, notes=tuple(notes), unknown=unknown, faults=reader.faults)
    return with_inner_deepspeed(part)


def _zero(reader: FileValues) -> dict[str, object]:
    """Return accelerate's keys of DeepSpeed that are stated."""
    job: dict[str, object] = {}
    stage = reader.one_of("deepspeed_config.zero_stage", ZERO_STAGES)
    if stage is not None:
        job["zero_stage"] = stage
    for key in ("offload_optimizer_device", "offload_param_device"):
        device = reader.one_of(f"deepspeed_config.{key}", DEVICES)
        if device is not None:
            job[key] = device
    return job


def _fsdp(reader: FileValues) -> dict[str, object]:
    """Return accelerate's keys of FSDP: if none is named version 1, and loading as `accelerate launch` 1.15 sets it."""
    section, rows = "fsdp_config", reader.value(f"{_PARALLEL}.{_PARALLEL}_cp_size")
    named, efficient = "fsdp_reshard_after_forward", f"{section}.fsdp_cpu_ram_efficient_loading"
    reshards = named if reader.value(f"{section}.{named}") is not None else "fsdp_sharding_strategy"
    return {
        "distributed_type": "fsdp",
        "fsdp_version": reader.one_of(f"{section}.fsdp_version", (1, 2)) or 1,
        "fsdp_reshard_after_forward": reader.reshards(f"{section}.{reshards}", default=True),
        "fsdp_offload_params": reader.flag(f"{section}.fsdp_offload_params"),
        "fsdp_activation_checkpointing": reader.flag(f"{section}.fsdp_activation_checkpointing"),
        "fsdp_cpu_ram_efficient_loading": reader.value(efficient) is None or reader.flag(efficient),
        **({} if rows is None else {"cp_size": rows}),
    }


def _refuse_splits(kind: str, reader: FileValues) -> None:
    """Keep a fault for each size that splits a layer, a row or a shard in a way without a formula.

    Without FSDP `dp_replicate_size` is what DDP does.
    """
    rows = f"{_PARALLEL}.{_PARALLEL}_cp_size"
    if kind != "FSDP" and show(reader.value(rows)) not in (show(None), "1"):
        reader.fail(rows, "is accelerate's with FSDP 2 only", "Use 1")
    for name, what in _SPLITS.items():
        key = f"{_PARALLEL}.{_PARALLEL}_{name}"
        is_ddp = name == "dp_replicate_size" and kind != "FSDP"
        if not is_ddp and show(reader.value(key)) not in (show(None), "1"):
            reader.fail(key, what, "Use 1")


def _accelerate_notes(name: str, kind: str, reader: FileValues) -> Iterable[Note]:
    precision = reader.one_of("mixed_precision", _PRECISIONS)
    if precision in ("fp16", "fp8"):
        yield not_counted(f"mixed_precision={precision} of {name} (trl's bf16 counts)")
    inner = reader.section("fsdp_config") if kind == "FSDP" else {}
    for text in uncounted_texts(_FSDP_EXTRAS, inner):
        yield not_counted(text)
    inner = reader.section("deepspeed_config") if kind == "DEEPSPEED" else {}
    for text in uncounted_texts(_DEEPSPEED_EXTRAS, inner):
        yield not_counted(text)
    if kind == "MEGATRON_LM":
        yield not_counted(f"what Megatron-LM changes ({name})")
    backend = reader.one_of("dynamo_config.dynamo_backend", _COMPILERS)
    if backend not in (None, "no"):
        yield not_counted(f"what torch.compile changes (dynamo_backend={show(backend)})")
    others = [key for key in reader.section(_PARALLEL) if key not in PARALLELISM_FIELDS]
    if others:
        yield not_counted(f"what {_PARALLEL} of {name} changes ({', '.join(map(str, others))})")


def deepspeed_part(name: str, values: Mapping[str, object]) -> JobFile:
    """Return what a configuration of DeepSpeed says; `auto` is what trl's arguments say."""
    reader = FileValues(values)
    zero = reader.section("zero_optimization")
    job: dict[str, object] = {"zero_stage": reader.one_of("zero_optimization.stage", ZERO_STAGES) or 0}
    for key, earlier in _OFFLOADS.items():
        moved = "cpu" if reader.flag(f"zero_optimization.{earlier}") else "none"
        job[f"{key}_device"] = reader.one_of(f"zero_optimization.{key}.device", DEVICES) or moved
    found = _stated(values, ("gradient_accumulation_steps",))
    rows = values.get("train_micro_batch_size_per_gpu", _AUTO)
    if rows != _AUTO:
        found["per_device_train_batch_size"] = rows
    for section, key in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
        if reader.value(f"{section}.enabled") != _AUTO and reader.flag(f"{section}.enabled"):
            found[key] = True
    notes = []
    optimizer = reader.section("optimizer").get("type")
    if optimizer is not None:
        notes.append(not_counted(f"that DeepSpeed's {show(optimizer)} of {name} replaces optim"))
    notes += [
        not_counted(f"{key}={show(zero[key])} of {name} (DeepSpeed's default counts)") for key in _other_sizes(zero)
    ]
    if reader.section("activation_checkpointing"):
        notes.append(not_counted(f"what activation_checkpointing of {name} changes"))
    unknown = tuple(str(key) for key in values if key not in _DEEPSPEED_KEYS)
    return JobFile(name=name, values=found, job=job, notes=tuple(notes), unknown=unknown, faults=reader.faults)


def with_inner_deepspeed(part: JobFile) -> JobFile:
    """Return `part` with what DeepSpeed's configuration says that it contains under `deepspeed`."""
    inner = part.values.get("deepspeed")
    if not isinstance(inner, Mapping):
        return part
    within = deepspeed_part(part.name, inner)
    own = {key: value for key, value in part.values.items() if key != "deepspeed"}
    return replace(
        part,
        values={**within.values, **own},
        job={**part.job, **within.job},
        notes=(*part.notes, *within.notes),
        unknown=(*part.unknown, *within.unknown),
        faults=(*part.faults, *within.faults),
    )


_OFFLOADS = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}
"""Sections of `zero_optimization`, with the flags that earlier versions of DeepSpeed had in their place."""


def _other_sizes(zero: Mapping[str, object]) -> list[str]:
    """Return the keys whose value is stated and not the default that the closed form of ZeRO has."""
    return [key for key, default in _ZERO_DEFAULTS.items() if zero.get(key, default) != default]


def adapter_part(name: str, values: Mapping[str, object]) -> JobFile:
    """Return what an `adapter_config.json` of peft says."""
    kind = show(values.get("peft_type", "LORA"))
    if kind.upper() != "LORA":
        fault = Fault(key="peft_type", found=kind, problem=f"in {name} has no formula; only LORA")
        return JobFile(name=name, faults=(fault,))
    reader = FileValues(values)
    reader.one_of("task_type", _TASKS)
    reader.one_of("bias", _BIASES)
    found, notes = lora_values(values, name=name)
    if values.get("base_model_name_or_path") is not None:
        found["model_name_or_path"] = values["base_model_name_or_path"]
    return JobFile(name=name, values=found, notes=notes, faults=reader.faults)


def lora_values(fields: Mapping[str, object], *, name: str) -> tuple[dict[str, object], tuple[Note, ...]]:
    """Return the fields of a `LoraConfig` under trl's names, and what of them is not counted."""
    stated = {**_PEFT_DEFAULTS, **{key: value for key, value in fields.items() if value is not None}}
    found: dict[str, object] = {"use_peft": True}
    found.update({LORA_NAMES[key]: value for key, value in stated.items() if key in LORA_NAMES})
    notes = [
        not_counted(f"what {key}={show(stated[key])} of {name} changes")
        for key, neutral in _LORA_EXTRAS.items()
        if key in stated and stated[key] not in neutral
    ]
    return found, tuple(notes)


def _stated(values: Mapping[str, object], keys: Iterable[str]) -> dict[str, object]:
    return {key: values[key] for key in keys if values.get(key) not in (None, _AUTO)}
