"""Seams of transformers, accelerate and peft, and of the client of ModelScope."""

from profiler.seams.seam import Absence, Equals, Exists, Expectation, Parameters, Says, Seam, Uses

_FLASH = "simulation/cuda/fused_attention/flash_attention.py"
_CACHE = "simulation/tracing/attribution.py"
_PHASES = "training/announced_steps.py"
_DECODE_LOOP = "training/rollouts/decode_loop.py"
_HOOKS = "scripts/hooks.py"
_FEW_LAYERS = "simulation/script/few_layers.py"
_MODEL = "training/models/model.py"
_UTILS = "transformers.modeling_flash_attention_utils"
_PRETRAINED = "transformers.modeling_utils:PreTrainedModel"
_TRAINER = "transformers.trainer:Trainer"
_GENERATION = "transformers.generation.utils:GenerationMixin"


def _seam(owner: str, name: str, expected: Expectation, used_by: str | tuple[str, ...], why: str) -> Seam:
    files = (used_by,) if isinstance(used_by, str) else used_by
    return Seam(owner=owner, name=name, expected=expected, used_by=files, why=why, since="5.10")


_IMPORT = Parameters("implementation", "attention_wrapper", "allow_all_kernels")

_FLASH_ATTENTION = (
    _seam(
        _PRETRAINED, "_flash_attn_can_dispatch", Parameters("self", "flash_attn_version", more=True), _FLASH,
        "refuses FlashAttention-2 where the package is not installed",
    ),
    _seam(_UTILS, "lazy_import_flash_attention", _IMPORT, _FLASH, "returns the functions of FlashAttention-2"),
    _seam(
        "transformers.modeling_utils", "lazy_import_flash_attention", _IMPORT, _FLASH,
        "the same function, imported by name",
    ),
    _seam(
        _UTILS, "_flash_attention_forward", Uses("lazy_import_flash_attention"), _FLASH,
        "looks the functions up under that name",
    ),
    _seam(
        _UTILS, "_lazy_define_process_function", Parameters("flash_function"), _FLASH,
        "decides which arguments the functions receive",
    ),
    _seam(
        _UTILS, "_pad_input", Parameters("hidden_states", "indices", "batch", "seqlen"), _FLASH,
        "transformers' own code around the packed kernel",
    ),
    _seam(
        _UTILS, "_unpad_input", Parameters("hidden_states", "attention_mask", more=True), _FLASH,
        "transformers' own code around the packed kernel",
    ),
)  # fmt: skip

_KV_CACHE = (
    _seam(
        "transformers.cache_utils:DynamicLayer", "update",
        Parameters("self", "key_states", "value_states", more=True), _CACHE, "what it makes is KV cache",
    ),
    _seam(
        "transformers.cache_utils:DynamicSlidingWindowLayer", "update",
        Parameters("self", "key_states", "value_states", more=True), _CACHE, "what it makes is KV cache",
    ),
    Seam(
        owner="transformers.cache_utils:LinearAttentionLayer",
        name="lazy_initialization",
        expected=Parameters("self", "conv_states", "recurrent_states", more=True),
        used_by=(_CACHE,),
        why="makes the states of linear attention, which count as KV cache",
        since="5.23",
        absent_in=Absence.OLDER_VERSIONS,
    ),
)  # fmt: skip

_TRAINING = (
    _seam(
        _TRAINER, "_clip_grad_norm", Parameters("self", "model"), _PHASES, "overridden: the optimizer phase begins here"
    ),
    _seam(
        _TRAINER, "_run_epoch", Uses("_clip_grad_norm", "optimizer.step"), _PHASES,
        "clips gradients before the optimizer steps",
    ),
    _seam(
        _TRAINER, "training_step", Uses("compute_loss", "accelerator.backward"), _PHASES, "backward follows the loss"
    ),
    _seam(
        _TRAINER, "create_optimizer",
        Uses("self.optimizer", "get_decay_parameter_names", "get_optimizer_cls_and_kwargs"),
        "training/recipes/grpo/trainer.py", "overridden: makes the optimizer of a critic too, where it has none",
    ),
    _seam(
        _TRAINER, "train", Parameters("self", more=True), _FEW_LAYERS, "a script's model is compared before training"
    ),
    _seam(
        "transformers.trainer", "clear_device_cache", Parameters("garbage_collection"),
        "simulation/cuda/offloading.py", "empties the cache before backward with torch_empty_cache_steps",
    ),
    _seam(
        "transformers.training_args:TrainingArguments", "_setup_devices", Exists(), "simulation/session.py",
        "a cached property that holds the device",
    ),
)  # fmt: skip

_GENERATE = (
    _seam(
        _GENERATION, "prepare_inputs_for_generation",
        Parameters("self", "input_ids", "next_sequence_length", "past_key_values", "attention_mask", more=True),
        _DECODE_LOOP, "called once per decoding step, with the tensors that grow",
    ),
    _seam(
        _GENERATION, "generate", Parameters("self", "inputs", "generation_config", more=True), (_DECODE_LOOP, _HOOKS),
        "replaced on the model for one rollout; the rollout phase of a script",
    ),
)  # fmt: skip

_MODELS = (
    _seam(
        _PRETRAINED, "__init__", Parameters("self", "config", more=True), _FEW_LAYERS,
        "every model begins with it, so that its configuration can be shortened there",
    ),
    _seam(
        _PRETRAINED, "_sdpa_can_dispatch", Says("does not support an attention implementation"), _MODEL,
        "the words by which a missing attention kernel is recognised",
    ),
    _seam(
        "transformers.integrations", "replace_with_bnb_linear",
        Parameters("model", "modules_to_not_convert", "quantization_config", more=True), _MODEL,
        "makes the 4-bit layers of a model with random weights",
    ),
    _seam(
        "transformers.configuration_utils:PreTrainedConfig", "name_or_path", Exists(),
        (_MODEL, "substitutes/checkpoints/models.py"), "property of `_name_or_path`, which is set to the model's name",
    ),
)  # fmt: skip

_FROM_PRETRAINED = Parameters("pretrained_model_name_or_path", more=True)
_TOKENIZERS = "substitutes/checkpoints/tokenizers.py"

_LOADING = (
    _seam(
        "transformers.modeling_utils", "caching_allocator_warmup",
        Parameters("model", "expanded_device_map", "hf_quantizer"), "simulation/script/session.py",
        "takes the memory of a whole model at once before it is loaded to a card",
    ),
    _seam(
        "transformers.core_model_loading", "dot_natural_key", Parameters("s"), "simulation/script/session.py",
        "the order in which weights are loaded",
    ),
    _seam(
        "transformers.configuration_utils:PreTrainedConfig", "get_config_dict", _FROM_PRETRAINED,
        "substitutes/checkpoints/models.py",
        "finds the configuration of a name; that of a built-in model needs no network",
    ),
    _seam(
        "transformers.configuration_utils:PretrainedConfig", "get_config_dict", _FROM_PRETRAINED,
        "substitutes/checkpoints/models.py", "the same by the class's name in transformers 4",
    ),
    _seam(
        _PRETRAINED, "from_pretrained", _FROM_PRETRAINED, "substitutes/checkpoints/models.py",
        "loads a checkpoint; it takes a state dict in its place",
    ),
    _seam(
        "transformers.models.auto.tokenization_auto:AutoTokenizer", "from_pretrained", _FROM_PRETRAINED, _TOKENIZERS,
        "loads a tokenizer; one that is unavailable is replaced",
    ),
    _seam(
        "transformers.models.auto.processing_auto:AutoProcessor", "from_pretrained", _FROM_PRETRAINED, _TOKENIZERS,
        "loads the tokenizer of a model of texts; one that is unavailable is replaced",
    ),
    _seam(
        "transformers.models.auto.image_processing_auto:AutoImageProcessor", "from_pretrained", _FROM_PRETRAINED,
        "substitutes/checkpoints/tokenizers.py", "loads an image processor; one that is unavailable is replaced",
    ),
    _seam(
        "transformers.tokenization_utils_base:PreTrainedTokenizerBase", "from_pretrained", _FROM_PRETRAINED,
        _TOKENIZERS, "loads a tokenizer; one that is unavailable is replaced",
    ),
)  # fmt: skip

_SCRIPTS = (
    _seam(
        _TRAINER, "log", Parameters("self", "logs", more=True), "callback/recording.py",
        "every report goes through it: peaks are added to what it logs",
    ),
    _seam(_TRAINER, "evaluate", Parameters("self", more=True), _HOOKS, "the evaluation phase of a script"),
    _seam(_TRAINER, "predict", Parameters("self", more=True), _HOOKS, "the evaluation phase of a script"),
    _seam(_TRAINER, "_save_checkpoint", Parameters("self", more=True), _HOOKS, "the checkpoint phase of a script"),
    _seam(_PRETRAINED, "save_pretrained", Parameters("self", more=True), _HOOKS, "the checkpoint phase of a script"),
)  # fmt: skip

TRANSFORMERS: tuple[Seam, ...] = (*_FLASH_ATTENTION, *_KV_CACHE, *_TRAINING, *_GENERATE, *_MODELS, *_LOADING, *_SCRIPTS)


ACCELERATE: tuple[Seam, ...] = (
    Seam(
        owner="accelerate.state:PartialState",
        name="_shared_state",
        expected=Exists(),
        used_by=("simulation/session.py", "simulation/cuda/autocast.py"),
        why="holds the device of the process",
        since="1.4",
    ),
    Seam(
        owner="accelerate.state:AcceleratorState",
        name="_shared_state",
        expected=Exists(),
        used_by=("simulation/session.py", "simulation/cuda/autocast.py"),
        why="holds the device of the process",
        since="1.4",
    ),
    Seam(
        owner="accelerate.accelerator:Accelerator",
        name="__init__",
        expected=Uses("get_grad_scaler", "device.type"),
        used_by=("simulation/cuda/autocast.py",),
        why="scales gradients under fp16 on the kinds of devices that it names",
        since="1.4",
    ),
    Seam(
        owner="accelerate.accelerator",
        name="get_grad_scaler",
        expected=Parameters("distributed_type", more=True),
        used_by=("simulation/cuda/autocast.py",),
        why="makes the scaler of gradients, which asks for CUDA",
        since="1.4",
    ),
    Seam(
        owner="accelerate.state:PartialState",
        name="_prepare_backend",
        expected=Parameters("self", "cpu", "sagemaker_dp", "backend"),
        used_by=("simulation/session.py",),
        why="says that several GPUs train, which it else asks CUDA",
        since="1.4",
    ),
    Seam(
        owner="accelerate.utils.memory",
        name="clear_device_cache",
        expected=Parameters("garbage_collection"),
        used_by=("simulation/cuda/offloading.py",),
        why="empties the cache of the CUDA allocator when training begins",
        since="1.4",
    ),
    Seam(
        owner="accelerate",
        name="init_empty_weights",
        expected=Parameters("include_buffers", more=True),
        used_by=("training/models/model.py",),
        why="makes a model without memory, which is filled layer by layer",
        since="1.4",
    ),
    Seam(
        owner="accelerate.commands.launch",
        name="_validate_launch_command",
        expected=Parameters("args"),
        used_by=("worker/scripts/script_process.py",),
        why="reads the configuration of `accelerate launch`",
        since="1.4",
    ),
    Seam(
        owner="accelerate.utils.launch",
        name="prepare_multi_gpu_env",
        expected=Parameters("args"),
        used_by=("worker/scripts/script_process.py",),
        why="returns the variables of a process of several GPUs",
        since="1.4",
    ),
    Seam(
        owner="accelerate.utils.deepspeed:DeepSpeedEngineWrapper",
        name="backward",
        expected=Uses("self.engine.backward", "self.engine.step"),
        used_by=("training/announced_steps.py",),
        why="steps right after the backward, so that the phase of the optimizer begins there",
        since="1.4",
    ),
)


PEFT: tuple[Seam, ...] = (
    Seam(
        owner="peft.peft_model:PeftModel",
        name="__init__",
        expected=Parameters("self", "model", "peft_config", more=True),
        used_by=(_FEW_LAYERS,),
        why="the numbers that adapters draw are followed by those of all layers",
        since="0.18",
    ),
    Seam(
        owner="peft.peft_model:PeftModel",
        name="get_base_model",
        expected=Parameters("self"),
        used_by=("training/recipes/grpo/trainer.py",),
        why="returns the transformers model, whose `generate` is replaced",
        since="0.18",
    ),
    Seam(
        owner="peft.tuners.lora.model:LoraModel",
        name="prefix",
        expected=Equals("lora_"),
        used_by=("simulation/tracing/attribution.py", "training/models/parameter_count.py"),
        why="parameters with it in their name are adapters",
        since="0.18",
    ),
)

MODELSCOPE: tuple[Seam, ...] = tuple(
    Seam(
        owner=owner,
        name=name,
        expected=Parameters(first, more=True),
        used_by=(used_by,),
        why=why,
        since="1.40",
        absent_in=Absence.SOME_BUILDS,
    )
    for owner, name, first, used_by, why in (
        (
            "modelscope.hub.snapshot_download", "snapshot_download", "model_id",
            "substitutes/checkpoints/known_configs.py", "finds the folder of a model, for ms-swift",
        ),
        (
            "modelscope.msdatasets.ms_dataset:MsDataset", "load", "dataset_name",
            "substitutes/data_sets/answering_sets.py", "loads a data set, for ms-swift; a missing one is replaced",
        ),
    )
)  # fmt: skip
