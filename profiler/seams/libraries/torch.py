"""Seams of torch."""

from profiler.seams.seam import Absence, Equals, Exists, Expectation, Parameters, Seam, Uses

_AUTOCAST = "simulation/cuda/autocast.py"
_COMPOSITES = "simulation/cuda/composites.py"
_CPU_CHOICES = "simulation/device/cpu_choices.py"
_EXTRAPOLATION = "simulation/extrapolation/decode_extrapolator.py"
_GPU = "simulation/device/simulated_gpu.py"
_IN_PLACE = "simulation/tracing/backward.py"
_HOOKS = "scripts/hooks.py"
_RECORDER = "simulation/tracing/recorder.py"
_OFFLOADING = "simulation/cuda/offloading.py"
_OPTIMIZERS = "simulation/cuda/optimizers.py"
_OP_CACHE = "simulation/device/op_cache.py"
_RECORDER = "simulation/tracing/recorder.py"
_REDUCTIONS = "simulation/cuda/scratch/reduction_scratch.py"
_SCRATCH = "simulation/cuda/scratch/kernel_scratch.py"
_SESSION = "simulation/session.py"
_TORCH_CUDA = "measurement/counters/torch_cuda.py"
_CARD_DECODING = "worker/cuda/card_decoding.py"
_CARD_NAMES = "simulation/script/torch_cuda/card_names.py"
_CUDA_CALLS = "simulation/script/torch_cuda/cuda_calls.py"
_WORK = "simulation/tracing/work.py"
_UNTOUCHED = "measurement/counters/untouched_cuda.py"

_MODES = "torch.utils._python_dispatch"
_BUILTIN = Exists()
"""Written in C++, without a signature."""


def _seam(
    owner: str, name: str, expected: Expectation, used_by: str | tuple[str, ...], why: str,
    absent_in: Absence = Absence.NEVER,
) -> Seam:  # fmt: skip
    files = (used_by,) if isinstance(used_by, str) else used_by
    return Seam(owner=owner, name=name, expected=expected, used_by=files, why=why, since="2.11", absent_in=absent_in)


_DISPATCH = (
    _seam(_MODES, "TorchDispatchMode", Exists(), _IN_PLACE, "sees every operation"),
    _seam(
        _MODES, "_disable_current_modes", Parameters(), (_CPU_CHOICES, _EXTRAPOLATION, _IN_PLACE, _SESSION),
        "runs host code without the dispatch mode",
    ),
    _seam(
        "torch.fx.experimental._config", "meta_nonzero_assume_all_nonzero", Equals(False), _SESSION,
        "lets `nonzero` run on `meta`",
    ),
    _seam("torch.fx.experimental._config", "patch", Exists(), _SESSION, "sets that option for the length of a trial"),
    _seam("torch:ops.aten.add.Tensor", "_schema", Exists(), (_AUTOCAST, _GPU, _WORK), "whether an operation writes"),
    _seam("torch.utils.flop_counter", "flop_registry", Exists(), _WORK, "counts the operations of products"),
    _seam(
        "torch.utils.flop_counter", "sdpa_flop_count", Parameters("query_shape", "key_shape", "value_shape"), _WORK,
        "counts the operations of attention",
    ),
    _seam(
        "torch.utils.flop_counter", "sdpa_backward_flop_count",
        Parameters("grad_out_shape", "query_shape", "key_shape", "value_shape"), _WORK,
        "counts the operations of its backward",
    ),
    _seam(
        "torch:UntypedStorage", "_cdata", Exists(),
        (_CARD_DECODING, _EXTRAPOLATION, _IN_PLACE, _OP_CACHE, _RECORDER, _REDUCTIONS, _WORK),
        "identifies a storage",
    ),
    _seam("torch:Tensor", "_is_view", _BUILTIN, _AUTOCAST, "autocast keeps no casts of views"),
    _seam("torch", "tensor", _BUILTIN, _OP_CACHE, "makes a tensor without an operation to intercept"),
    _seam(
        "torch.utils._device", "_device_constructors", Parameters(), _OP_CACHE,
        "lists the functions that `with torch.device(...)` places, once and by identity",
    ),
    _seam("torch:Tensor", "tolist", _BUILTIN, _OP_CACHE, "reads a tensor without an operation to intercept"),
)  # fmt: skip

_BACKWARD = (
    _seam("torch._C", "_current_graph_task_id", _BUILTIN, (_IN_PLACE, _COMPOSITES), "whether backward runs"),
    _seam("torch._C", "_current_autograd_node", _BUILTIN, (_IN_PLACE, _RECORDER), "whose backward runs"),
    _seam("torch._C._autograd", "_get_sequence_nr", _BUILTIN, _RECORDER, "numbers the nodes of the graph in forward"),
    _seam("torch.autograd.graph:Node", "_sequence_nr", Exists(), _RECORDER, "the number of a node"),
    _seam(
        "torch:Tensor", "_use_count", _BUILTIN, _IN_PLACE,
        "who else holds a gradient, which decides whether the engine writes into it",
    ),
    _seam("torch._C", "_storage_Use_Count", _BUILTIN, (_CARD_DECODING, _IN_PLACE), "the same of a gradient's storage"),
    _seam(
        "torch.autograd.function:BackwardCFunction", "apply", Parameters("self", "args"), _IN_PLACE,
        "runs the Python of an autograd function in backward",
    ),
    Seam(
        owner="torch.autograd.function:BackwardCFunction", name="apply_boxed", expected=Parameters("self", "args"),
        used_by=(_IN_PLACE,), why="the same with the gradients in a list", since="2.13",
        absent_in=Absence.OLDER_VERSIONS,
    ),
    _seam(
        "torch.autograd.graph:saved_tensors_hooks", "__init__", Parameters("self", "pack_hook", "unpack_hook"),
        _IN_PLACE, "takes the Python that unpacks a saved tensor in backward",
    ),
    _seam(
        "torch:Tensor", "register_hook", Parameters("self", "hook"), _IN_PLACE, "takes Python that runs in backward"
    ),
    _seam(
        "torch:Tensor", "register_post_accumulate_grad_hook", Parameters("self", "hook"), _IN_PLACE,
        "takes Python that runs in backward",
    ),
    _seam(
        "torch._prims_common", "is_non_overlapping_and_dense_or_false", Parameters("a"), _IN_PLACE,
        "whether the engine can write into a gradient",
    ),
)  # fmt: skip

_OFFLOADED = (
    _seam(
        "torch.autograd.graph:save_on_cpu", "__init__", Parameters("self", "pin_memory", "device_type"),
        "training/recipes/grpo/trainer.py", "offloads activations; `device_type` names a module of torch",
    ),
    _seam(
        "torch.storage:UntypedStorage", "data_ptr", _BUILTIN, _OFFLOADING, "trl offloads a storage once, by its address"
    ),
    _seam("torch:Tensor", "record_stream", _BUILTIN, _OFFLOADING, "trl records views on the default stream"),
    _seam("torch", "get_device_module", Parameters("device"), _OFFLOADING, "trl takes the streams of the card from it"),
)  # fmt: skip

_AUTOCAST_SEAMS = (
    _seam("torch._C", "DispatchKey", Exists(), _AUTOCAST, "has the dispatch key of the simulated GPU's autocast"),
    _seam("torch._C:DispatchKey", "AutocastPrivateUse1", Exists(), (_AUTOCAST, _OPTIMIZERS), "that dispatch key"),
    _seam("torch._C", "DispatchKeySet", Exists(), _AUTOCAST, "switches that key off inside an operation"),
    _seam("torch._C", "_ExcludeDispatchKeyGuard", Exists(), _AUTOCAST, "switches that key off inside an operation"),
    _seam("torch._C", "_IncludeDispatchKeyGuard", Exists(), _AUTOCAST, "switches that key on for a trial"),
    _seam(
        "torch._C", "_dispatch_tls_set_dispatch_key_excluded", _BUILTIN, _AUTOCAST, "switches that key on for a trial"
    ),
    _seam("torch.library", "fallthrough_kernel", Exists(), _AUTOCAST, "the key's kernel of every other operation"),
    _seam(
        "torch", "autocast", Parameters("device_type", "dtype", "enabled", "cache_enabled"), _AUTOCAST,
        "does nothing for `meta`",
    ),
    _seam(
        "torch.amp", "autocast", Parameters("device_type", "dtype", "enabled", "cache_enabled"), _AUTOCAST,
        "the same class under its other name",
    ),
    _seam("torch.amp", "is_autocast_available", Parameters("device_type"), _AUTOCAST, "denies it for `meta`"),
    _seam("torch", "is_autocast_enabled", _BUILTIN, _AUTOCAST, "returns the state of `cuda` where no type is given"),
    _seam("torch", "get_autocast_dtype", _BUILTIN, _AUTOCAST, "does not know `meta`"),
    _seam(
        "torch._C", "_dispatch_has_kernel_for_dispatch_key", _BUILTIN, _CPU_CHOICES,
        "which operations autocast changes on the CPU",
    ),
    _seam("torch", "_fused_sdp_choice", _BUILTIN, _CPU_CHOICES, "torch's own choice of an attention kernel"),
)  # fmt: skip

_OPTIMIZER = tuple(
    _seam(owner, name, Parameters(), files, "lists the devices that have the optimizers' fast paths", absent_in)
    for owner, files, absent_in in (
        ("torch.optim.optimizer", (_OPTIMIZERS, _CPU_CHOICES), Absence.NEVER),
        ("torch.utils._foreach_utils", (_OPTIMIZERS, _CPU_CHOICES), Absence.NEVER),
        # Imported there by name in some versions.
        ("torch.nn.utils.clip_grad", (_OPTIMIZERS,), Absence.SOME_BUILDS),
    )
    for name in ("_get_fused_kernels_supported_devices", "_get_foreach_kernels_supported_devices")
)

_CUDA = (
    _seam(
        "torch.nn.modules.module:Module", "register_buffer", Uses("_non_persistent_buffers_set"),
        "training/models/model.py", "lists the buffers that no checkpoint has",
    ),
    _seam("torch.nn.modules.module:Module", "__call__", Exists(), _RECORDER, "says which module is running"),
    _seam("torch.cuda", "empty_cache", Parameters(), "simulation/cuda/offloading.py", "empties the cache"),
    _seam(
        "torch._C", "_cuda_getCurrentRawStream", _BUILTIN, _OPTIMIZERS,
        "read when bitsandbytes' code for CUDA is imported", Absence.SOME_BUILDS,
    ),
    _seam(
        "torch._C", "_accelerator_setAllocatorSettings", _BUILTIN, _TORCH_CUDA, "sets `alloc_conf` before CUDA begins"
    ),
    _seam(
        "torch._C", "_cuda_attach_out_of_memory_observer", _BUILTIN, _TORCH_CUDA,
        "reports the allocation that did not fit", Absence.SOME_BUILDS,
    ),
    _seam(
        "torch.cuda.memory", "_record_memory_history",
        Parameters("enabled", "context", "stacks", "max_entries", more=True), (_CARD_DECODING, _HOOKS, _TORCH_CUDA),
        "records the history of a memory snapshot",
    ),
    _seam(
        "torch.cuda.memory", "_snapshot", Parameters("device", more=True), (_HOOKS, _TORCH_CUDA),
        "returns a memory snapshot",
    ),
    _seam(
        "torch.distributed.fsdp._flat_param:FlatParameter", "_init_metadata", Uses("_shapes"), _HOOKS,
        "has the shapes of the parameters that FSDP 1 has made one",
    ),
    _seam(
        "torch.cuda", "_lazy_call", Parameters("callable", more=True), (_HOOKS, _TORCH_CUDA),
        "calls a function once the program has initialised CUDA",
    ),
    _seam("torch.cuda", "_lazy_init", Parameters(), (_UNTOUCHED, _CUDA_CALLS), "initialises CUDA at the first use"),
    _seam("torch.cuda", "get_device_capability", Parameters("device"), (_UNTOUCHED, _CUDA_CALLS), "initialises CUDA"),
    _seam("torch.cuda", "_is_in_bad_fork", _BUILTIN, _UNTOUCHED, "whether a forked process can use CUDA"),
    _seam(
        "torch.cuda._utils", "_get_device_index", Parameters("device", "optional", more=True), _UNTOUCHED,
        "turns the name of a device into its index",
    ),
)  # fmt: skip


def _operation(
    name: str, parameters: tuple[str, ...], used_by: str | tuple[str, ...], why: str, *, more: bool = False
) -> Seam:
    """Return the seam of an ATen operation with a private name (`op` or `op.overload`).

    `more`: others may follow, which the project does not pass.
    """
    packet, _, overload = name.partition(".")
    return _seam(f"torch:ops.aten.{packet}", overload or "default", Parameters(*parameters, more=more), used_by, why)


_OPERATIONS = (
    _operation(
        "_grouped_mm", ("self", "mat2", "offs", "bias", "out_dtype"), "simulation/cuda/scratch/losses.py",
        "the product of each expert",
    ),
    _operation("_softmax", ("self", "dim", "half_to_float"), _COMPOSITES, "the kernel of a softmax in float16"),
    _operation("_log_softmax", ("self", "dim", "half_to_float"), _COMPOSITES, "the kernel of a log-softmax in float16"),
    _operation("_foreach_norm.Scalar", ("self", "ord", "dtype"), _SCRATCH, "the norms of gradient clipping"),
    _operation("_safe_softmax", ("self", "dim", "dtype"), _SCRATCH, "the softmax of attention by products"),
    _operation(
        "_softmax_backward_data", ("grad_output", "output", "dim", "input_dtype"), _SCRATCH, "the backward of a softmax"
    ),
    _operation(
        "_index_put_impl_", ("self", "indices", "values", "accumulate", "unsafe"), (_GPU, _SCRATCH),
        "writes at positions that masks decide",
    ),
    _operation(
        "_flash_attention_forward",
        (
            "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal",
            "return_debug_mask", "scale", "window_size_left", "window_size_right",
        ),
        "substitutes/flash_attention.py", "the kernel of flash-attn 2", more=True,
    ),
    _operation(
        "_scaled_dot_product_attention_math",
        ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "dropout_mask", "scale", "enable_gqa"),
        "simulation/cuda/fused_attention/attention.py", "attention by products",
    ),
    _operation("_local_scalar_dense", ("self",), _GPU, "reads one number on the host"),
    _operation(
        "_amp_foreach_non_finite_check_and_unscale_", ("self", "found_inf", "inv_scale"), _GPU,
        "the end of scaled gradients, all of which are finite here",
    ),
    _operation(
        "_to_copy", ("self", "dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format"), _GPU,
        "copies between host and device",
    ),
    _operation("_unsafe_view", ("self", "size"), _GPU, "a view, which takes no memory"),
    _operation(
        "_scaled_dot_product_flash_attention_for_cpu",
        ("query", "key", "value", "dropout_p", "is_causal", "attn_mask", "scale"), _CPU_CHOICES,
        "the CPU's kernel of attention",
    ),
)  # fmt: skip

_SCRIPTS = (
    _seam(
        "torch.autograd", "backward", Parameters("tensors", "grad_tensors", more=True), _HOOKS,
        "the backward phase of a script",
    ),
    _seam(
        "torch:Tensor", "backward", Uses("autograd", "backward"), _HOOKS, "calls that function by its module",
    ),
    _seam("torch", "save", Parameters("obj", "f", more=True), _HOOKS, "the checkpoint phase of a script"),
    _seam(
        "torch.nn.utils", "clip_grad_norm_", Parameters("parameters", "max_norm", more=True), _HOOKS,
        "begins the optimizer phase of a script",
    ),
    _seam(
        "torch.nn.utils", "clip_grad_value_", Parameters("parameters", "clip_value", more=True), _HOOKS,
        "begins the optimizer phase of a script",
    ),
    _seam(
        "torch.optim.optimizer:Optimizer", "add_param_group", Parameters("self", "param_group"), _HOOKS,
        "says which parameters a script trains",
    ),
)  # fmt: skip

_SIMULATED_SCRIPTS = (
    _seam("torch.version", "cuda", Exists(), _CUDA_CALLS, "says that torch was built for CUDA, as libraries ask"),
    _seam("torch:Tensor", "pin_memory", _BUILTIN, _CUDA_CALLS, "needs a card; the memory is the host's"),
    _seam("torch._C._nn", "_parse_to", _BUILTIN, _CARD_NAMES, "reads the arguments of `Module.to`"),
    _seam("torch.overrides", "TorchFunctionMode", Exists(), _CARD_NAMES, "sees names of devices"),
    _seam("torch.cuda.amp", "autocast", Exists(), _CUDA_CALLS, "autocast by its older name"),
    _seam(
        "torch.amp.grad_scaler:GradScaler", "step", Parameters("self", "optimizer", more=True), _CUDA_CALLS,
        "skips steps by values that are not computed",
    ),
    _seam(
        "torch", "compile", Parameters("model", more=True), (_CUDA_CALLS, _UNTOUCHED),
        "imports the compiler; a script runs without it",
    ),
    _seam(
        "torch.nn.modules.module:Module", "compile", Parameters("self", more=True), _CUDA_CALLS,
        "a script runs without it",
    ),
    _seam(
        "torch.distributed", "init_process_group", Parameters("backend", more=True), _CUDA_CALLS,
        "refused: one process is simulated",
    ),
    _seam(
        "torch.__future__", "set_swap_module_params_on_conversion", Parameters("value"),
        ("simulation/script/session.py",),
        "lets parameters keep their identity when a module moves to `meta`",
    ),
)  # fmt: skip

TORCH: tuple[Seam, ...] = (
    *_DISPATCH,
    *_BACKWARD,
    *_OFFLOADED,
    *_AUTOCAST_SEAMS,
    *_OPTIMIZER,
    *_CUDA,
    *_OPERATIONS,
    *_SCRIPTS,
    *_SIMULATED_SCRIPTS,
)
