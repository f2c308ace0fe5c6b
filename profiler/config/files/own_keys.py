"""Keys that a user's own script gave to a recipe: which of them change nothing, and which would be lost.

Recipes have keys of the user's script next to trl's, and stay readable: of 506 public recipes with trl's
`model_name_or_path`, the largest share of such keys is 45 %. Files of scripts with keys of their own throughout have at
least 50 %, or state what trl has a key for under another name.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from profiler.config.options.reading import show
from profiler.config.trl.arguments.keys import KEY_OF, is_trl_key
from profiler.config.trl.config import TRL_DEFAULTS
from profiler.domain.errors import Fault

SHOWN = 6
"""Most unknown keys that a sentence names."""

_HINT = "Give the job by keys of a trial (model=NAME tuning=lora ...), or as a YAML file with trl's keys."

_OTHER_NAMES: Mapping[str, str] = {
    "model_name_or_path": (
        "model_name model_path model_id base_model base_model_name base_model_path pretrained_model "
        "pretrained_model_name_or_path pretrained_model_path pretrain"
    ),
    "per_device_train_batch_size": (
        "batch_size micro_batch_size train_batch_size per_device_batch_size mini_batch_size batch_size_per_device"
    ),
    "gradient_accumulation_steps": "grad_accum grad_accum_steps grad_accumulation_steps accumulation_steps",
    "num_generations": (
        "group_size num_samples_per_prompt samples_per_prompt num_return_sequences generations_per_prompt "
        "num_generations_per_prompt rollouts_per_prompt rollouts_per_example num_rollouts"
    ),
    "max_completion_length": "max_new_tokens max_response_length max_gen_length max_completion_tokens generate_max_len",
    "max_prompt_length": "max_prompt_len prompt_max_len max_prompt_tokens",
    "max_length": "max_seq_len max_sequence_length seq_length seq_len sequence_len sequence_length cutoff_len",
    "beta": "kl_beta kl_coef kl_coeff kl_penalty kl_weight kl_loss_coef init_kl_coef",
    "lora_r": "lora_rank",
    "lora_target_modules": "target_modules lora_modules",
    "use_peft": "use_lora use_qlora peft_config lora_config",
    "load_in_4bit": "use_4bit load_4bit",
    "optim": "optimizer",
    "dtype": "precision model_dtype",
    "attn_implementation": "attention_implementation attn_impl",
    "gradient_checkpointing": "use_gradient_checkpointing grad_checkpointing gradient_ckpt",
}
"""Names that own scripts give to what trl has a key for, from 120 public repositories."""

_KEY_BY_OTHER_NAME = {other: key for key, others in _OTHER_NAMES.items() for other in others.split()}

_SETTLES = {"use_peft": "tuning", "load_in_4bit": "tuning"}
"""Keys of a trial that settle keys of trl which no single key of a trial is."""

_SAME = (frozenset({"max_length", "max_seq_length"}), frozenset({"dtype", "torch_dtype"}))
"""trl's names of the same key in several versions."""


_MEMORY_WORDS: Mapping[str, str] = {
    "model_name_or_path": "model base_model pretrained policy checkpoint",
    "use_peft": "lora qlora peft adapter rank freeze dora target_modules tuning quantization quantize 4bit 8bit bnb",
    "per_device_train_batch_size": "batch micro minibatch",
    "gradient_accumulation_steps": "accum accumulation",
    "num_generations": "group rollouts generations samples_per_prompt",
    "max_completion_length": "new_tokens response_length completion max_tokens length seq_len max_len obs",
    "max_prompt_length": "prompt_length prompt_len pixels image_size",
    "dtype": "dtype precision half bfloat16 float16 fp8",
    "gradient_checkpointing": "checkpointing",
    "optim": "optimizer optim",
    "vllm_gpu_memory_utilization": "vllm gpu_memory max_model_len tensor_parallel",
    "num_processes": "num_gpus n_gpus gpus nodes world_size",
    "beta": "kl ref_model",
    "distributed_type": "fsdp deepspeed zero zero_stage offload",
}
"""Words in names of keys that may change memory, by trl's key for it."""

_WORD_OF = dict(
    sorted(
        ((word, key) for key, words in _MEMORY_WORDS.items() for word in words.split()), key=lambda each: -len(each[0])
    )
)
"""The longest word first, because it is the more exact one."""

_NO_MEMORY = re.compile(
    r"(?:^|_)(?:path|dir|file|files|folder|url|name|id|project|entity|steps|every|interval|limit|lr|learning|rate|reward|"
    r"rewards|weight|coef|penalty|temperature|clip|epsilon|seed|patien\w*|ratio|log|logging|eval|save|wandb|data|dataset|"
    r"column|field|revision|warmup|scheduler|prompt_template|system|mask|shuffle|streaming|min|top|bonus|score|cosine)(?:_|$)"
)
"""Words in names of keys that say where, when, or by which number."""


def memory_key(name: str) -> str:
    """Return the key of a trial that a key of unknown meaning may stand for, by its name; empty if none."""
    last = name.rpartition(".")[2].lower()
    known = _KEY_BY_OTHER_NAME.get(last)
    if known is None and _NO_MEMORY.search(last):
        return ""
    words = f"_{last}_"
    found = known or next((key for word, key in _WORD_OF.items() if f"_{word}_" in words), "")
    return _SETTLES.get(found, KEY_OF.get(found, found)) if found else ""


def unknown_leaves(values: Mapping[str, object], is_known: Callable[[str], bool]) -> list[str]:
    """Return the unknown keys; of a section that is unknown, each key in it as ``section.key``."""
    return [leaf for key, value in values.items() if not is_known(str(key)) for leaf in _leaves(str(key), value)]


def _leaves(name: str, value: object) -> list[str]:
    if not isinstance(value, Mapping) or not value:
        return [name]
    return [leaf for key, inner in value.items() for leaf in _leaves(f"{name}.{key}", inner)]


def mostly_unknown(
    name: str, unknown: Sequence[str], *, known: int, program: str, is_certain: bool = False
) -> Fault | None:
    """Return the fault of a file of which half of the keys are unknown in files of `program`; None if fewer are.

    Args:
        name: The file.
        unknown: Its keys that are unknown.
        known: The number of the others.
        program: The program that it seems to be for.
        is_certain: Whether it has a key that only files of `program` have; then more than half must be unknown.
    """
    if not unknown or len(unknown) < known + is_certain:
        return None
    shown = ", ".join(unknown[:SHOWN]) + (", ..." if len(unknown) > SHOWN else "")
    problem = f"has {len(unknown)} of {known + len(unknown)} keys that {program} does not have ({shown})"
    return Fault(key="config", found=name, problem=f"{problem}, so it is no file of {program}", hint=_HINT)


def renamed_keys(name: str, values: Mapping[str, object]) -> Iterator[Fault]:
    """Return a fault per key of a file of trl that has another name there, and whose meaning would be lost.

    The fault has the key of the trial, so that the same key on the command line settles it.
    """
    for other, value in values.items():
        key = _KEY_BY_OTHER_NAME.get(str(other))
        if key is None or is_trl_key(str(other)) or _states(values, key) or _changes_nothing(key, value):
            continue
        settled_by = _SETTLES.get(key, KEY_OF.get(key, key))
        problem = f"is {other} in {name}, and trl's key is {key}, so the file is of a script with keys of its own"
        yield Fault(
            key=settled_by, found=show(value), problem=problem, hint=f"Give {settled_by}= as well, or rename it."
        )


def _changes_nothing(key: str, value: object) -> bool:
    """Return whether a value says what trl does without the key."""
    is_off = value is None or (value is False and TRL_DEFAULTS.get(key) is not True)
    return is_off or TRL_DEFAULTS.get(key) == value


def _states(values: Mapping[str, object], key: str) -> bool:
    names = next((names for names in _SAME if key in names), frozenset({key}))
    return any(values.get(each) is not None for each in names)
