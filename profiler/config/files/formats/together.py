"""What several formats decide in the same way: lists in a text, files of DeepSpeed, models with images, one process."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

from profiler.config.notes import Note, not_counted
from profiler.config.options.reading import show
from profiler.domain.errors import Fault
from profiler.domain.models.builtin_models import VISION_MODELS, find_builtin
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Dtype, Logprobs

PROCESSES = "NPROC_PER_NODE"
"""The variable by which llamafactory-cli and swift read the number of processes of a node; a command states it."""

PREFERENCES: Mapping[object, Recipe] = {"dpo": Recipe.DPO, "kto": Recipe.KTO}
"""Trainers of preferences by their names in LLaMA-Factory, ms-swift and axolotl alike."""

PAIR_LOSSES = ("sigmoid", "hinge", "ipo", "robust", "exo_pair", "nca_pair", "apo_zero", "apo_down", "sppo_hard", "kto")
"""Their losses of ms-swift and trl that add a few numbers per row; `sft` selects logits, and some have no KL term."""

_IMAGES = re.compile(
    r"(?:^|[-_/.\d])(?:vl|vlm|omni|vision|llava|internvl\w*|intern-s1\w*|paligemma\w*|pixtral|idefics\w*|minicpm-[vo]|"
    r"smolvlm\w*|molmo\w*|florence\w*|ovis\w*|got-ocr\w*|audio|qwen3\.[5-9]\w*|llama-4|glm-4(?:\.\d)?v|gemma-?4|gemma-?3n|"
    r"mistral-small-3\.[1-9]|gemma-?3-(?:4|12|27)b)(?=$|[-_/.\d])",
    re.IGNORECASE,
)
"""Names of models with a tower for images or sound."""

_QUANTISED = re.compile(r"(?:^|[-_])(?:gptq|awq|aqlm|hqq|eetq|gguf|fp8|int[48]|bnb)(?=$|[-_])", re.IGNORECASE)
"""Names of checkpoints whose weights are quantised."""

EXPERTS = re.compile(r"mixtral|moe|deepseek-v[23]|gpt-oss|llama-4|(?:^|[-_])a\d+(?:\.\d+)?b(?:[-_]|$)", re.IGNORECASE)
"""Names of models with experts."""

_GATHERS = 3
"""The stage of ZeRO that shares weights."""

_STAGES = {"z0": 0, "zero0": 0, "zero1": 1, "z1": 1, "z2": 2, "zero2": 2, "z3": 3, "zero3": 3}
_SHIPPED = re.compile(r"(?:ds_)?(?:default-)?(z(?:ero)?[0-3])([_-]offload)?(?:_config)?(?:\.json)?")


def words(text: str) -> frozenset[str]:
    """Return the words of a table."""
    return frozenset(text.split())


def split(value: object) -> object:
    """Return the names in a text with commas, or a list as it is."""
    return [each.strip() for each in value.split(",") if each.strip()] if isinstance(value, str) else value


def shipped_deepspeed(value: object, bucket: int) -> Mapping[str, object] | None:
    """Return the file of DeepSpeed that the program ships under a name; None if it ships none of that name.

    Args:
        value: The name, or a path to it.
        bucket: Its `reduce_bucket_size` below stage 3, in elements.
    """
    found = _SHIPPED.fullmatch(PurePosixPath(value).name) if isinstance(value, str) else None
    if found is None:
        return None
    stage = _STAGES[found[1]]
    zero: dict[str, object] = {"stage": stage, "overlap_comm": False, "contiguous_gradients": True}
    if found[2]:
        zero["offload_optimizer"] = {"device": "cpu"}
        if stage == _GATHERS:
            zero["offload_param"] = {"device": "cpu"}
    zero["reduce_bucket_size"] = "auto" if stage == _GATHERS else bucket
    if stage == _GATHERS:
        zero["stage3_prefetch_bucket_size"] = "auto"
    return {"zero_optimization": zero, "bf16": {"enabled": "auto"}}


_OF_AXOLOTL: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "zero1": (1, ()),
    "zero2": (2, ("offload_optimizer",)),
    "zero3": (_GATHERS, ()),
    "zero3_bf16": (_GATHERS, ()),
    "zero3_bf16_cpuoffload_all": (_GATHERS, ("offload_optimizer", "offload_param")),
    "zero3_bf16_cpuoffload_params": (_GATHERS, ("offload_param",)),
}
"""Stage of each file of DeepSpeed that axolotl ships, and what the host holds (`deepspeed_configs/` of 0.18.0).

Two more compile the model, which has no formula here.
"""


def of_axolotl(value: object) -> Mapping[str, object] | None:
    """Return the file of DeepSpeed that axolotl ships under a name; None if it ships none of that name."""
    found = _OF_AXOLOTL.get(PurePosixPath(value).stem) if isinstance(value, str) and value.endswith(".json") else None
    if found is None:
        return None
    stage, moved = found
    zero: dict[str, object] = {"stage": stage, "overlap_comm": True}
    zero.update({key: {"device": "cpu"} for key in moved})
    if stage == _GATHERS:
        zero.update(sub_group_size=0, reduce_bucket_size="auto", stage3_prefetch_bucket_size="auto")
        zero.update(stage3_max_live_parameters=0, stage3_max_reuse_distance=0)
    return {"zero_optimization": zero, "bf16": {"enabled": "auto"}}


def types_of_axolotl(
    leaves: Mapping[str, object], types: Mapping[str, object], attention: object, *, counts: bool
) -> Mapping[str, object]:
    """Return types with those of full training, where they are counted: with its own losses, and not with DeepSpeed."""
    is_counted = counts and leaves.get("deepspeed") is None and types["bf16"] is True
    keeps = is_counted and types["dtype"] == Dtype.BFLOAT16.value and _keeps_float32(leaves, attention)
    return {**types, "dtype": Dtype.BFLOAT16_LAYERS.value} if keeps else types


def said_of_types(leaves: Mapping[str, object], types: Mapping[str, object], attention: object) -> Iterator[Note]:
    """Name what full training by axolotl keeps in float32, or that it is not counted."""
    if types["dtype"] == Dtype.BFLOAT16_LAYERS.value:
        what = "axolotl keeps embeddings, LM head and norms in float32"
        yield Note(key="dtype", text=f"dtype={types['dtype']} ({what})")
    elif types["dtype"] == Dtype.BFLOAT16.value and _keeps_float32(leaves, attention):
        yield not_counted("that axolotl keeps embeddings and norms in float32 (the figure may be too low)")


def _keeps_float32(leaves: Mapping[str, object], attention: object) -> bool:
    """Return whether nothing makes bfloat16 of what is float32 (`_configure_embedding_dtypes` in `loaders`)."""
    stays = leaves.get("deepspeed") is None or keeps_types(leaves)
    return stays and leaves.get("adapter") not in ("lora", "qlora") and attention in (None, "sdpa", "eager")


def keeps_types(leaves: Mapping[str, object]) -> bool:
    """Return whether stage 3 leaves types (`_cast_module_mixed_precision` in DeepSpeed's `runtime/engine.py`, 0.19)."""
    file = of_axolotl(leaves.get("deepspeed")) or leaves.get("deepspeed")
    zero = file.get("zero_optimization") if isinstance(file, Mapping) else None
    return isinstance(zero, Mapping) and zero.get("stage") == _GATHERS


def absent_deepspeed(
    program: str, ships: Callable[[object], object | None], leaves: Mapping[str, object]
) -> Iterator[Fault | Note]:
    """Refuse a file of DeepSpeed that is not here, because it says how memory is shared; name one that is shipped.

    Args:
        program: The program.
        ships: Returns the file that the program ships under a name, or None.
        leaves: Keys of the file; the content of a file of DeepSpeed that is here has taken the place of its name.
    """
    file = leaves.get("deepspeed")
    if isinstance(file, str) and ships(file) is not None:
        yield Note(key="", text=f"deepspeed={file} as {program} ships it")
    elif isinstance(file, str) and file:
        problem = f"is not here, and says how memory is shared; the files that {program} ships are known by their names"
        yield refused("deepspeed", file, problem, f"Give it as well: config={PurePosixPath(file).name}.")


def only_text(key: str, program: str, leaves: Mapping[str, object]) -> Iterator[Fault | Note]:
    """Refuse a model with towers, of which the program freezes and adapts other parts than trl, and a quantised one.

    Args:
        key: The program's key of the model.
        program: Its name.
        leaves: Keys of the file.
    """
    model = leaves.get(key)
    known = find_builtin(model) if isinstance(model, str) else None
    has_tower = known is not None and known.name in VISION_MODELS
    if isinstance(model, str) and (has_tower or _IMAGES.search(model)):
        problem = f"sees images or hears, and in {program} other parts of its towers are frozen and adapted than in trl"
        yield Fault(key="model", found=model, problem=problem, hint="Only models of text are read from such files.")
    if isinstance(model, str) and _QUANTISED.search(model):
        problem = "is a checkpoint that is quantised already, by its name, and has no formula here"
        yield Fault(key="model", found=model, problem=problem)


def one_process(program: str, leaves: Mapping[str, object]) -> Iterator[Fault | Note]:
    """Name one process as an assumption, where no launcher says how many there are."""
    if leaves.get(PROCESSES) is None:
        text = f"num_processes=1 (a file of {program} does not state it)"
        yield Note(key="num_processes", text=text)


def of_pairs(program: str, logprobs: Logprobs, *, has_liger: bool) -> Iterator[Fault | Note]:
    """Name the loss of a trainer of preferences, and refuse it with Liger's kernels, of which it runs others."""
    if has_liger:
        yield refused(
            "use_liger_kernel", True, f"has no formula here with preferences in {program}", "Set it to false."
        )
    made = "prompts too" if logprobs.pair_loss is not None and logprobs.pair_loss.of_prompts else "completions"
    yield Note(key="logprobs", text=f"logprobs={logprobs} (in {program} preferences have logits of {made})")


def float32_adapters(program: str) -> Note:
    """Return the note of adapters over quantised weights, which trl makes bfloat16 (`SFTTrainer` of trl 1.16)."""
    what = "that adapters, their gradients and their optimizer state are float32 over 4-bit weights"
    return not_counted(f"{what} in {program} (trl makes them bfloat16)")


def scaled_in_four_bits(program: str, types: Mapping[str, object]) -> Iterator[Fault]:
    """Refuse fp16 over 4-bit weights: `program` scales gradients of float32 adapters, and trl has none in float32."""
    if types.get("fp16") is True:
        problem = f"scales gradients of float32 adapters over 4-bit weights in {program}, {_NO_FORMULA}"
        yield refused("fp16", True, problem, IN_BFLOAT16)


_NO_FORMULA = "which has no formula here"

IN_BFLOAT16 = "fp16=false bf16=true dtype=bfloat16 answers the same job in bfloat16, whose tensors are as large."
"""What answers a job that scales gradients. All three: without `bf16` there is no autocast at all."""


def refused(key: str, value: object, problem: str, hint: str = "") -> Fault:
    """Return the fault of a key."""
    return Fault(key=key, found=show(value), problem=problem, hint=hint)
