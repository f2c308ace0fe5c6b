"""A script that loads its model by Unsloth and trains by trl: the settings that its code makes effective.

Names, defaults and rules are those of unsloth 2026.10.9: `FastLanguageModel` in `models/loader.py` and
`models/llama.py`, and the classes of trl that `models/rl.py` writes anew.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from profiler.config.files.companion_files import lora_values
from profiler.config.files.file_kinds import assumed_note
from profiler.config.notes import Note
from profiler.config.options.command_words import CONFIG
from profiler.config.options.reading import show
from profiler.config.scripts.names import ANY, APART, LOADER, TRAINERS, called_name, owner_name, two_values
from profiler.config.trl.parts import JobFile
from profiler.domain.errors import Fault
from profiler.domain.trials.kernels import OtherKernels
from profiler.domain.trials.recipe import Recipe

Arguments = Callable[[ast.Call, str], Iterator[tuple[str, object, int]]]
"""Returns each argument of a call with its value, or its expression where that is no literal, and its line.

The text is the name of the first argument without a keyword; empty if that does not matter."""

_OWNER = "FastLanguageModel"
"""Unsloth's loader of models of text that it computes itself."""

_ARGUMENTS = ("TrainingArguments", "UnslothTrainingArguments")
"""Arguments of transformers, which Unsloth's trainers take in place of those of trl."""

_OF_TRAINER = ("max_seq_length", "packing")
"""Arguments of early `SFTTrainer`, which Unsloth moves to those of the training."""

_KERNELS = OtherKernels(
    program="Unsloth 2026.10.9", first_trl="0.18", last_trl="1.15", recipes=(Recipe.GRPO, Recipe.SFT)
)
"""Its requirements, `trl!=0.19.0,<=1.15.0,>=0.18.2`, and the trainers whose patches were read (`models/rl.py`)."""

_FIRST_OF_GRPO = "0.20"
"""Its patch of `GRPOConfig` refuses earlier releases."""

_LOADED: Mapping[str, object] = {
    "max_seq_length": 2048,
    "load_in_4bit": True,
    "fast_inference": False,
    "gpu_memory_utilization": 0.5,
}
"""Arguments of `from_pretrained` that are counted, with their defaults."""

_ADAPTED: Mapping[str, object] = {
    "r": 16,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "use_gradient_checkpointing": "unsloth",
}
"""The same of `get_peft_model`; other fields are peft's."""

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "load_in_8bit": (False,),
    "load_in_fp8": (False,),
    "full_finetuning": (False,),
    "float32_mixed_precision": (),
    "float8_kv_cache": (False,),
    "qat_scheme": (),
    "num_labels": (),
    "rope_scaling": (),
    "resize_model_vocab": (),
    "quantization_config": (),
    "unsloth_vllm_standby": (False,),
    "finetune_last_n_layers": (),
    "offload_layers": (False, 0),
    "checkpoint_skip_layers": (0,),
    "layers_to_transform": (),
    "layers_pattern": (),
    "rank_pattern": ({},),
    "target_parameters": ([],),
}
"""Arguments of both that change memory in a way that has no bound here, with what changes nothing, as null does."""

_FREE = frozenset(
    """
    model_name dtype load_in_16bit token device_map device_map_planner_kwargs fix_tokenizer trust_remote_code
    use_gradient_checkpointing revision use_exact_model_name offload_embedding random_state max_lora_rank
    disable_log_stats unsloth_tiled_mlp text_only attn_implementation cache_dir local_files_only tokenizer_name
    max_seq_length temporary_location enable_prefix_caching max_num_seqs conservativeness compilation_config
    enforce_eager max_loras max_logprobs
    """.split()  # noqa: SIM905
)
"""Those that change nothing, or save memory only, or that are read elsewhere."""

_PEFT = frozenset(
    """
    r lora_alpha lora_dropout target_modules bias use_rslora modules_to_save init_lora_weights loftq_config use_dora
    ensure_weight_tying task_type alpha_pattern
    """.split()  # noqa: SIM905
)

_TRAINED: Mapping[str, object] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "per_device_eval_batch_size": 4,
    "optim": "adamw_8bit",
}
"""Defaults of its `GRPOConfig` and `SFTConfig` that are not trl's, and change memory."""

_BETA = 0.001
"""Its default of `beta` with trl before 0.22 and with most losses, which needs a pass of the reference; else 0."""

_LOSSES = (None, "nll", "chunked_nll")
"""Losses of SFT that Unsloth computes without all logits; of another one trl keeps them."""

_DECIDED = ("bf16", "fp16", "gradient_checkpointing")
"""Keys of trl whatever a script states of them."""

_GROWS = ("add_new_tokens", "resize_token_embeddings")
"""Calls that grow the vocabulary; the first one trains the embeddings too."""

_EMBEDDINGS = ("embed_tokens", "lm_head")
"""Modules that are trained as a whole, also where they are among the targets of LoRA."""

_SFT_LENGTH = 1024
"""trl's `max_length` of SFT, which counts as not stated."""

_ENVIRONMENT = "UNSLOTH_"
_FREE_VARIABLES = tuple(
    f"{_ENVIRONMENT}{name}"
    for name in """
    DISABLE_STATISTICS SKIP_STATISTICS ENABLE_LOGGING COMPILE_DISABLE COMPILE_LOCATION COMPILE_OVERWRITE COMPILE_DEBUG
    IS_PRESENT USE_MODELSCOPE DISABLE_AUTO_UPDATES DISABLE_FAST_GENERATION STABLE_DOWNLOADS DISABLE_XET IS_KAGGLE
    KAGGLE_USE_TMP DATASET_NUM_PROC WARN_UNINITIALIZED LLAMA_CPP_PATH
    """.split()  # noqa: SIM905
)
"""Variables for logs, downloads, compiled code and generation of other loaders, or that nothing reads."""

_STANDBY, _STANDBY_SHARE = f"{_ENVIRONMENT}VLLM_STANDBY", 0.925
"""The variable by which vLLM sleeps while the model trains, and its part of a card then, at most (`load_vllm`)."""

_HINT = "Give the keys of a trial (model=NAME tuning=qlora ...) for what trl's own trainer needs."


@dataclass
class _Found:
    """What the calls of Unsloth say."""

    name: str
    """The script, for sentences."""
    values: dict[str, object]
    trains_again: bool
    notes: list[Note] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def refuse(self, key: str, value: object, problem: str, hint: str = "") -> None:
        self.faults.append(Fault(key=key, found=show(value), problem=problem, hint=hint))


def is_of_unsloth(loads: Sequence[ast.Call]) -> bool:
    """Return whether one of some calls of `from_pretrained` is that of `FastLanguageModel`."""
    return any(owner_name(call) == _OWNER for call in loads)


def with_unsloth(
    part: JobFile, tree: ast.Module, called: Callable[..., list[ast.Call]], arguments: Arguments
) -> JobFile:
    """Return what a script of trl says with the settings that Unsloth makes effective; `part` if it is not of Unsloth.

    Args:
        part: What the calls of trl say.
        tree: The script.
        called: Returns its calls by their names.
        arguments: Returns what a call says.
    """
    loads, adapts = called(LOADER), [call for call in called("get_peft_model") if owner_name(call) == _OWNER]
    if not is_of_unsloth(loads):
        return part
    if part.recipe is not None and (problem := _KERNELS.problem_of(part.recipe)):
        problem = f"trains by trl's {part.recipe.in_classes}Trainer, which {problem}"
        return replace(part, faults=(Fault(key=CONFIG, found=part.name, problem=problem, hint=_HINT),), earlier=())
    found = _Found(name=part.name, values=dict(part.values), trains_again=len(called(*TRAINERS)) > 1)
    of_loads = [pair for call in loads if owner_name(call) == _OWNER for pair in arguments(call, "model_name")]
    stated = _stated(found, of_loads, _LOADED)
    adapted = _stated(found, [pair for call in adapts for pair in arguments(call, "")], _ADAPTED)
    if not adapts:
        problem = "makes no adapter by get_peft_model, and quantised or frozen weights alone are not trained"
        found.refuse("tuning", found.name, problem, _HINT)
    _read_transformers(found, called, arguments)
    kernels = replace(_KERNELS, has_mixed_weights=_read_weights(found, stated))
    _read_adapter(found, adapted)
    _read_precision(found, stated)
    if is_online := part.recipe in (Recipe.GRPO, Recipe.RLOO):
        _read_rollout(found, stated)
        _widen_batch(found)
    else:
        _read_length(found, stated)
        if part.recipe is Recipe.SFT and (loss := found.values.get("loss_type")) not in _LOSSES:
            found.refuse("loss_type", loss, "is a loss of SFT whose memory with Unsloth has no bound here")
        if stated["fast_inference"] is True:
            problem = "makes an engine that keeps its part of the card next to SFT (vLLM), which has no bound here"
            found.refuse("fast_inference", True, problem, "Leave it out where nothing generates.")
    for call in called(*_GROWS):
        problem = "grows the vocabulary, and embeddings with new rows have no bound here"
        found.refuse(called_name(call), f"line {call.lineno % APART}", problem)
    variables = _variables(tree)
    if _STANDBY in variables and found.values.get("use_vllm") is True:
        found.values.update(vllm_enable_sleep_mode=True, vllm_gpu_memory_utilization=_STANDBY_SHARE)
    left = [name for name in variables if name not in (_STANDBY, *_FREE_VARIABLES)]
    problem = "is a variable of Unsloth that changes its memory in a way that has no bound here"
    found.faults += [Fault(key=name, found="set", problem=problem) for name in left]
    return replace(
        part,
        values=found.values,
        job={"num_processes": 1, **part.job},
        notes=(*_without(part.notes, found), *found.notes),
        faults=(*(each for each in part.faults if each.key not in _DECIDED), *found.faults),
        kernels=replace(kernels, first_trl=_FIRST_OF_GRPO) if is_online else kernels,
    )


def _stated(
    found: _Found, pairs: Sequence[tuple[str, object, int]], defaults: Mapping[str, object]
) -> dict[str, object]:
    """Return the arguments of some calls, with defaults; what has no bound is a fault."""
    values: dict[str, object] = {}
    for name, value, line in pairs:
        is_open, where = isinstance(value, ast.expr), f"line {line % APART}"
        if name == ANY:
            problem = f"passes arguments to Unsloth by ** in {where}, which are not in the file"
            found.faults.append(Fault(key=CONFIG, found=found.name, problem=problem, hint=_HINT))
        elif name in _NEUTRAL and value is not None and (is_open or value not in _NEUTRAL[name]):
            problem = "changes the memory of Unsloth in a way that has no bound here"
            found.refuse(name, where if is_open else value, problem, _HINT)
        elif name not in {*_NEUTRAL, *_FREE, *_PEFT, *_LOADED, *_ADAPTED}:
            found.refuse(name, where, "is an argument of Unsloth whose effect on memory is unknown here", _HINT)
        elif not is_open:
            if values.setdefault(name, value) != value and name in {*defaults} - {"lora_alpha"} and found.trains_again:
                found.faults.append(two_values(_KEYS.get(name, name), values[name], value, found.name))
        elif name in defaults:
            text = f"{name}={show(defaults[name])} (Unsloth's default; {where} has no literal)"
            found.notes.append(Note(key=_KEYS.get(name, ""), text=text, is_open=True))
    return {**defaults, **{name: value for name, value in values.items() if value is not None or name == "dtype"}}


def _read_transformers(found: _Found, called: Callable[..., list[ast.Call]], arguments: Arguments) -> None:
    """Read arguments of transformers, or else take Unsloth's defaults of trl's; and what trl's trainer took once."""
    own = called(*_ARGUMENTS)
    pairs = [pair for call in own for pair in arguments(call, "")]
    trainers = (pair for call in called("SFTTrainer", "UnslothTrainer") for pair in arguments(call, ""))
    pairs += [pair for pair in trainers if pair[0] in _OF_TRAINER]
    for name, value, line in pairs:
        if not isinstance(value, ast.expr):
            found.values.setdefault(name, value)
        elif (
            name not in found.values and (note := assumed_note(name, f"line {line % APART} has no literal")) is not None
        ):
            found.notes.append(note)
    if not own:
        found.values = {**_TRAINED, **found.values}


_KEYS = {
    "r": "lora_rank",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "max_seq_length": "max_length",
    "load_in_4bit": "tuning",
    "fast_inference": "use_vllm",
    "use_gradient_checkpointing": "gradient_checkpointing",
    "gpu_memory_utilization": "vllm_gpu_memory_utilization",
}
"""The key of a trial that settles an argument."""


def _read_weights(found: _Found, stated: Mapping[str, object]) -> bool:
    """Read the model and the bits of its weights; return whether Unsloth may load another checkpoint of it.

    Of most names it loads a checkpoint of its own (`get_model_name`), whose 4 bits leave some layers in 16 bits, but
    of a name that ends in ``-bnb-4bit`` itself.
    """
    name = given if isinstance(given := stated.get("model_name"), str) else ""
    lower = name.lower()
    is_4bit = stated["load_in_4bit"] is True and stated.get("load_in_16bit") is not True and not lower.endswith("-bf16")
    is_plain = lower.endswith(_PLAIN) and not lower.endswith(_OWN)
    if name:
        base = name[: -len(next((end for end in (_OWN, _PLAIN) if lower.endswith(end)), "")) or None]
        found.values["model_name_or_path"] = _SHORT_NAMES.get(base.lower().removeprefix("unsloth/"), base)
    found.values.pop("load_in_8bit", None)
    found.values.update(load_in_4bit=is_4bit, use_bnb_nested_quant=False)
    if lower.endswith(_PLAIN) and not is_4bit:
        problem = "of a checkpoint in 4 bits lets Unsloth choose another one; give a name without -bnb-4bit"
        found.refuse("load_in_4bit", False, problem)
    has_own = found.values["load_in_4bit"] is True and not is_plain
    if has_own:
        text = "linear layers in 16 bits as an upper bound (Unsloth's own 4-bit checkpoints keep some so)"
        found.notes.append(Note(key="", text=text))
    return has_own


_SHORT_NAMES = {
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-2-7b-chat": "meta-llama/Llama-2-7b-chat-hf",
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama-3-8b-instruct": "meta-llama/Meta-Llama-3-8B-Instruct",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "microsoft/phi-4": "unsloth/phi-4",
    "microsoft/phi-3.5-mini-instruct": "unsloth/Phi-3.5-mini-instruct",
}
"""What Unsloth loads of a model, where that has another name or Unsloth's own layout (`models/mapper.py`)."""
_OWN, _PLAIN = "-unsloth-bnb-4bit", "-bnb-4bit"


def _read_adapter(found: _Found, adapted: Mapping[str, object]) -> None:
    fields = {key: value for key, value in adapted.items() if key in _PEFT}
    targets = fields["target_modules"]
    whole = [each for each in _EMBEDDINGS if isinstance(targets, list) and each in targets]
    if isinstance(targets, list) and whole:
        fields["target_modules"] = [each for each in targets if each not in whole]
        fields["modules_to_save"] = [*(more if isinstance(more := fields.get("modules_to_save"), list) else []), *whole]
    values, notes = lora_values(fields, name=found.name)
    found.values.update(values)
    found.notes += notes
    found.values["gradient_checkpointing"] = adapted["use_gradient_checkpointing"] is not False
    found.values.pop("gradient_checkpointing_kwargs", None)


def _read_precision(found: _Found, stated: Mapping[str, object]) -> None:
    """Read the type, which is 16 bits of either kind: that of the weights decides, or the card."""
    dtype = show(stated.get("dtype", "null")).removeprefix("torch.")
    if dtype == "float32":
        found.refuse("dtype", dtype, "is a type whose memory with Unsloth has no bound here; 16 bits and null have")
    found.values.pop("torch_dtype", None)
    found.values.update(dtype="bfloat16", bf16=True, fp16=False)
    text = "bfloat16, also where float16 is stated or the card has no other type (as many bytes)"
    found.notes.append(Note(key="dtype", text=text))


def _read_rollout(found: _Found, stated: Mapping[str, object]) -> None:
    """Read how completions are generated: an engine is made where the model is loaded."""
    values = found.values
    if "beta" not in values:
        values["beta"] = _BETA
        found.notes.append(Note(key="beta", text=f"beta={_BETA} (Unsloth's default of most losses; else it is 0)"))
    for key in ("vllm_importance_sampling_correction", "off_policy_mask_threshold"):
        if values.get(key) not in (None, False):
            found.refuse(key, values[key], "makes Unsloth keep the logits of all tokens, which has no bound here")
    if stated["fast_inference"] is True:
        values.update(
            use_vllm=True,
            vllm_mode="colocate",
            vllm_gpu_memory_utilization=stated["gpu_memory_utilization"],
            vllm_max_model_length=stated["max_seq_length"],
            vllm_enable_sleep_mode=False,
            vllm_tensor_parallel_size=1,
        )
    elif values.get("use_vllm") is True and values.get("load_in_4bit") is True:
        problem = "without fast_inference=True is refused by Unsloth, which cannot send 4-bit weights to an engine"
        found.refuse("use_vllm", True, problem)


def _widen_batch(found: _Found) -> None:
    """Widen the micro-batch to a whole group, as `check_num_generations` in `models/rl.py` does."""
    values = found.values
    if values.get("steps_per_generation") is not None or values.get("generation_batch_size") is not None:
        return
    rows, steps = values.get("per_device_train_batch_size", 8), values.get("gradient_accumulation_steps", 1)
    group = values.get("num_generations", 8)
    if not (isinstance(rows, int) and isinstance(steps, int) and isinstance(group, int)) or group < 1:
        return
    if rows * steps % group:
        values["per_device_train_batch_size"] = group
        text = f"per_device_train_batch_size={group} (Unsloth widens {rows} to num_generations)"
        found.notes.append(Note(key="per_device_train_batch_size", text=text))


def _read_length(found: _Found, stated: Mapping[str, object]) -> None:
    """Read the longest row: that of the model, or a shorter one that the arguments state."""
    values = found.values
    most, own, given = stated["max_seq_length"], values.pop("max_seq_length", None), values.get("max_length")
    shorter = own if isinstance(own, int) and own > 0 else given if given != _SFT_LENGTH else None
    if isinstance(most, int):
        values["max_length"] = min(most, shorter) if isinstance(shorter, int) and shorter > 0 else most
    # Rows without padding have fewer tokens; the mask that they may need is counted.
    values.pop("padding_free", None)


def _variables(tree: ast.Module) -> list[str]:
    """Return the variables of Unsloth that the script names."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return sorted(each for each in texts if each.startswith(_ENVIRONMENT) and each.replace("_", "A").isalnum())


def _without(notes: Sequence[Note], found: _Found) -> tuple[Note, ...]:
    """Return the notes of trl's calls without those of keys that Unsloth decides."""
    decided = {*_DECIDED, "dtype", "tuning", *(note.key for note in found.notes if note.key)}
    if "model_name_or_path" in found.values:
        decided.add("model")
    return tuple(note for note in notes if note.key not in decided)
