"""What releases of trl did otherwise than today's with a trial that a recipe describes: facts, with their sources.

Sources are named as in `facts.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from profiler.config.trl_releases.facts import (
    COPIED_ADAPTERS,
    FIRST_CARD,
    IS_LOADED,
    NEWEST,
    OLD_PART,
    RELEASES,
    UNSTATED_DTYPE,
    Described,
    Effect,
    Versions,
)
from profiler.domain.models.builtin_models import VISION_MODELS, find_builtin
from profiler.domain.trials.recipe import GENERATING, Recipe
from profiler.domain.trials.trial import ZERO_OF_WEIGHTS, Dtype, Logprobs, Tuning, VllmMode

_CONFIG, _TRAINER = "trl/trainer/grpo_config.py", "trl/trainer/grpo_trainer.py"
_RLOO_CONFIG, _RLOO_TRAINER = "trl/trainer/rloo_config.py", "trl/trainer/rloo_trainer.py"
_SFT_TRAINER, _MODELS = "trl/trainer/sft_trainer.py", "trl/models/utils.py"
_UTILS = "trl/trainer/utils.py"

_GRPO, _RLOO, _SFT = Recipe.GRPO, Recipe.RLOO, Recipe.SFT
_ONLY_GRPO, _ONLY_RLOO, _ONLY_SFT = frozenset({_GRPO}), frozenset({_RLOO}), frozenset({_SFT})
_PAIRED = frozenset({Recipe.DPO, Recipe.KTO})


def _prompts(it: Described) -> object:
    """Return the most tokens of a prompt. With images it follows from them (`profiler.config.models.context`)."""
    model = it.point.get("model")
    known = find_builtin(model) if isinstance(model, str) else None
    sees_images = known is not None and known.name in VISION_MODELS
    is_open = "max_prompt_length" not in it.point and "max_prompt_length" not in it.file
    return 512 if is_open and not sees_images else None


def _other_gpus(it: Described) -> object:
    is_open = it.point.get("use_vllm") is True and "vllm_mode" not in it.point
    return VllmMode.SERVER.value if is_open and not _is_shared(it) else None


def _is_shared(it: Described) -> bool:
    return it.file.get("vllm_device") == FIRST_CARD and it.point.get("use_vllm") is True


def _if_shared(mode: VllmMode) -> Callable[[Described], object]:
    return lambda it: mode.value if _is_shared(it) else None


def _shared_part(it: Described) -> object:
    return it.file.get("vllm_gpu_memory_utilization", OLD_PART) if _is_shared(it) else None


def _by_liger_kernel(it: Described) -> bool:
    return it.point.get("use_liger_kernel") is True


def _by_liger_loss(it: Described) -> bool:
    return it.file.get("use_liger_loss") is True


def _kernel_by(key: str) -> Callable[[Described], object]:
    """Return `use_liger_kernel` as another key sets it."""
    return lambda it: it.file.get(key)


_OF_LIGER_LOSS = f"{_CONFIG}, v0.25.0 to v0.27.0, __post_init__; use_liger_loss is removed in v0.28.0"
_OF_LIGER = f"{_SFT_TRAINER}, v0.14.0, v0.15.0, AutoLigerKernelForCausalLM; sft_config.py, v0.16.0, __post_init__"
_BY_NAME = "use_liger sets it where trl loads the model by its name"


def _kernel_by_name(it: Described) -> object:
    return it.job.get(IS_LOADED) is not True if it.file.get("use_liger") is True else None


def _never(_: Described) -> bool:
    return False


def _has_loss(it: Described, types: tuple[str | None, ...]) -> bool:
    return not _by_liger_kernel(it) and it.file.get("loss_type") in types


def _whole_groups(it: Described) -> object:
    rows, group = it.point.get("per_device_train_batch_size"), it.point.get("num_generations")
    return rows * group if isinstance(rows, int) and isinstance(group, int) else None


def _each_micro_batch(it: Described) -> object:
    return 1 if it.point.get("gradient_accumulation_steps") != 1 else None


_A_WEIGHT = 0.04
"""Any that is not 0 keeps the reference."""


def _compared(it: Described) -> object:
    """Return a weight that keeps the reference: the KL term was computed, and multiplied by 0."""
    return _A_WEIGHT if not it.point.get("beta") else None


def _loaded_wide(it: Described) -> object:
    is_quantised = it.point.get("tuning") == Tuning.QLORA or it.file.get("load_in_8bit") is True
    return "float32" if it.file.get("dtype") == UNSTATED_DTYPE and not is_quantised else None


def _row(it: Described) -> object:
    lengths = [it.point.get("max_prompt_length"), it.point.get("max_completion_length")]
    whole = [length for length in lengths if isinstance(length, int)]
    runs_here = it.point.get("use_vllm") is True and it.point.get("vllm_mode") == VllmMode.COLOCATE
    return sum(whole) if runs_here and len(whole) == len(lengths) else None


def _effect(
    key: str,
    versions: str,
    value: Callable[[Described], object],
    meaning: str,
    source: str,
    recipes: frozenset[Recipe] = frozenset({_GRPO}),
) -> Effect:
    return Effect(key=key, value=value, versions=Versions.of(versions), recipes=recipes, meaning=meaning, source=source)


_CUT, _GIVEN = "trl cuts prompts to it", "vLLM is given prompt and completion"
_WHOLE_LOGITS = "all but fused make the logits of all completions of a micro-batch at once"
_LABEL_LOGITS = "nll makes the logits of all tokens of a micro-batch at once"
_CHUNKS_OF_LOGITS = "chunked_nll makes those of 256 tokens at a time"


@dataclass(frozen=True, kw_only=True)
class LogprobsRow:
    """How some releases compute log-probabilities of completions or tokens of a micro-batch, without a fused head."""

    versions: Versions
    logprobs: Logprobs
    source: str


def _logprobs(versions: str, logprobs: Logprobs, source: str) -> LogprobsRow:
    return LogprobsRow(versions=Versions.of(versions), logprobs=logprobs, source=source)


LOGPROBS: tuple[LogprobsRow, ...] = (
    _logprobs("0.14", Logprobs.FULL, f"{_TRAINER}, v0.14.0, get_per_token_logps"),
    _logprobs(
        "0.15 to 0.19",
        Logprobs.SELECTIVE,
        f"{_UTILS}, v0.15.0, selective_log_softmax; {_TRAINER}, v0.16.0, logits / self.temperature",
    ),
    _logprobs(
        "0.20 to 0.22",
        Logprobs.SELECTIVE_ROW_ENTROPY,
        f"{_UTILS}, v0.20.0 to v0.22.2, entropy_from_logits: chunk_size of rows, which is 1",
    ),
    _logprobs(
        "0.23 to 0.29",
        Logprobs.SELECTIVE,
        f"{_UTILS}, v0.23.0, entropy_from_logits: chunk_size of tokens, which is 128",
    ),
    _logprobs(
        "1.0 to 1.9", Logprobs.SELECTIVE_IN_PLACE, f"{_TRAINER}, v1.0.0 to v1.9.0, logits.div_(temperature) of a slice"
    ),
    _logprobs(
        "1.10 to 1.13",
        Logprobs.SELECTIVE_KEPT,
        f"{_TRAINER}, 1.10.0 to 1.13.0, logits / temperature; outputs has the logits before",
    ),
    _logprobs(
        "1.14",
        Logprobs.SELECTIVE_KERNEL,
        f"{_TRAINER}, 1.14.0; kernels/logprob_entropy.py keeps logits and makes one gradient of them",
    ),
)
"""Read in `GRPOTrainer` and `RLOOTrainer`, which are alike; 1.15.0 has `add_fused_lm_head`.

A row stands for releases that need as much. 0.15 to 0.19 compute no entropy, and 0.15 has no temperature: they need at
most 128 x 3 values per entry of the vocabulary less than stated.
"""


LABEL_LOSSES: tuple[LogprobsRow, ...] = (
    _logprobs("0.14", Logprobs.NLL, f"{_SFT_TRAINER}, v0.14.0, has no compute_loss of its own"),
    _logprobs("0.15 to 0.21", Logprobs.NLL_ACCURACY, f"{_SFT_TRAINER}, v0.15.2 to v0.21.0, shift_logits"),
    _logprobs("0.22", Logprobs.NLL_ROW_ENTROPY, f"{_SFT_TRAINER}, v0.22.2; {_UTILS}, entropy_from_logits of rows"),
    _logprobs("0.23 to 1.2", Logprobs.NLL_ACCURACY, f"{_SFT_TRAINER}, v0.23.1 to v1.2.0, shift_logits"),
    _logprobs("1.3 to 1.5", Logprobs.NLL_TWO_COPIES, f"{_SFT_TRAINER}, v1.3.0 to v1.5.0, shift_logits twice"),
    _logprobs("1.6", Logprobs.NLL_ENTROPY, f"{_SFT_TRAINER}, v1.6.0, shift_logits without a copy of its own"),
    _logprobs("1.7", Logprobs.CHUNKED_NLL, f"{_SFT_TRAINER}, 1.7.1, _chunk; sft_config.py, loss_type"),
    _logprobs("1.8 to 1.12", Logprobs.CHUNKED_NLL_MASKED, f"{_SFT_TRAINER}, 1.8.0 to 1.12.0, _chunk: entropy * valid"),
    _logprobs("1.13 to 1.14", Logprobs.CHUNKED_NLL_CAST, f"{_SFT_TRAINER}, 1.13.0, 1.14.2, _chunk: w.to(h.dtype)"),
)
"""Read in `SFTTrainer`. From 1.7 on `loss_type` is ``chunked_nll`` unless stated, and 1.15.0 has `add_fused_lm_head`.

Up to 1.6 the loss is that of transformers (`ForCausalLMLoss`). 0.15 to 0.21 compute no entropy: with one row they need
at most 128 x 3 values per entry of the vocabulary less in forward, which is below backward from 192 tokens on.
"""

_STATED_LOSSES: tuple[LogprobsRow, ...] = (
    _logprobs("1.4 to 1.6", Logprobs.CHUNKED_NLL, f"{_SFT_TRAINER}, 1.4.0 to 1.6.0, _chunk: as 1.7"),
    _logprobs("1.7 to 1.14", Logprobs.NLL_ENTROPY, f"{_SFT_TRAINER}, v1.7.0 to 1.14.0, as 1.6"),
)
"""The same for a `loss_type` that is not the default of its release."""


def _effects_on_label_loss() -> Iterator[Effect]:
    """Return what releases do with a loss of labels, unless Liger or a fused head computes it."""
    for row in (*LABEL_LOSSES, *_STATED_LOSSES):
        is_chunked = row.logprobs.chunked_loss is not None
        stated: tuple[str | None, ...] = ("chunked_nll" if is_chunked else "nll",)
        yield Effect(
            key="logprobs",
            value=partial(_if_it_has, stated if row in _STATED_LOSSES else (None, *stated), row.logprobs),
            versions=row.versions,
            recipes=_ONLY_SFT,
            meaning=_CHUNKS_OF_LOGITS if is_chunked else _LABEL_LOGITS,
            source=row.source,
        )


def _if_it_has(types: tuple[str | None, ...], logprobs: Logprobs, it: Described) -> object:
    # With `use_liger`, 0.15 computes no accuracy, also where the kernels are not there.
    made = Logprobs.NLL if it.file.get("use_liger") is True else logprobs
    return made.value if _has_loss(it, types) else None


def _effects_on_logprobs() -> Iterator[Effect]:
    """Return what releases do with log-probabilities, unless Liger computes the loss, which makes no logits."""
    by_liger = (
        (Versions.of("0.14 to 0.24"), _by_liger_loss, _ONLY_GRPO),
        (Versions.of("0.25 to 1.14"), _by_liger_kernel, _ONLY_GRPO),
        (Versions.of("0.22 to 1.14"), _never, _ONLY_RLOO),
    )
    for row, (versions, is_liger, recipes) in product(LOGPROBS, by_liger):
        both = row.versions & versions
        if both is not None:
            yield Effect(
                key="logprobs",
                value=partial(_unless, is_liger, row.logprobs),
                versions=both,
                recipes=recipes,
                meaning=_WHOLE_LOGITS,
                source=row.source,
            )


def _unless(is_liger: Callable[[Described], bool], logprobs: Logprobs, it: Described) -> object:
    return None if is_liger(it) else logprobs.value


_WIDE_COPY = f"{COPIED_ADAPTERS}, both in float32 under ZeRO-3"
_SAVED_BY = f"{COPIED_ADAPTERS}; a trainer that gets peft_config needs none"
_COPIES = 'v0.27.0, v0.29.0 and v1.2.0 of the trainers, model.add_adapter("ref", default_config)'
_FLOAT32_NORMS = "norms and adapters over weights in 4 bits in float32"
_PREPARES = f"peft_module_casting_to_bf16 in {_MODELS}, v0.14.0 to v0.25.1, called by {_SFT_TRAINER} to v0.21.0"
_SHARED = f"vllm_device={FIRST_CARD} trains too"

EFFECTS: tuple[Effect, ...] = (
    _effect("max_prompt_length", "0.14 to 0.25", _prompts, _CUT, f"{_CONFIG}, v0.14.0 to v0.25.1"),
    _effect(
        "dtype",
        "0.14 to 0.26",
        _loaded_wide,
        "transformers 4 loads weights in float32 where no type is stated",
        "from_pretrained in transformers/modeling_utils.py, v4.57.3 and v5.0.0; trl 0.27 is the first for both",
        frozenset(Recipe),
    ),
    _effect("max_prompt_length", "0.22 to 0.26", _prompts, _CUT, f"{_RLOO_CONFIG}, v0.22.0 to v0.26.2", _ONLY_RLOO),
    _effect(
        "vllm_mode",
        "0.14 to 0.29",
        _other_gpus,
        "vLLM has GPUs of its own",
        f"{_CONFIG}: vllm_device to v0.17.0, vllm_mode from v0.18.0; v1.0.0 has colocate",
        GENERATING,
    ),
    _effect(
        "vllm_mode",
        "0.14 to 0.15",
        _if_shared(VllmMode.COLOCATE),
        _SHARED,
        f"{_TRAINER}, v0.15.2, __init__",
        GENERATING,
    ),
    _effect("vllm_gpu_memory_utilization", "0.14 to 0.15", _shared_part, _SHARED, f"{_CONFIG}, v0.15.2", GENERATING),
    _effect(
        "vllm_mode",
        "0.16 to 0.17",
        _if_shared(VllmMode.SERVER),
        "vLLM is a server, whatever vllm_device is",
        f"{_CONFIG}, v0.16.1, __post_init__",
        GENERATING,
    ),
    _effect(
        "per_device_train_batch_size",
        "0.14",
        _whole_groups,
        "a batch counts prompts, each with all its completions",
        f"{_TRAINER}, v0.14.0, compute_loss: num_return_sequences",
    ),
    _effect(
        "steps_per_generation",
        "0.14 to 0.16",
        _each_micro_batch,
        "each micro-batch is generated alone",
        f"{_TRAINER}, v0.16.0, _prepare_inputs; v0.17.0 generates for all of a step",
    ),
    _effect(
        "beta",
        "0.14 to 0.15",
        _compared,
        "a reference is kept also for beta=0",
        f"{_TRAINER}, v0.14.0 and v0.15.2, create_reference_model; v0.16.0 asks for beta",
    ),
    _effect("vllm_max_model_length", "0.18 to 0.25", _row, _GIVEN, f"{_TRAINER}, v0.18.0 to v0.25.1, max_model_len"),
    _effect("vllm_max_model_length", "0.22 to 0.26", _row, _GIVEN, f"{_RLOO_TRAINER}, v0.22.0, v0.26.2", _ONLY_RLOO),
    _effect("use_liger_kernel", "0.25 to 0.27", _kernel_by("use_liger_loss"), "use_liger_loss sets it", _OF_LIGER_LOSS),
    _effect("use_liger_kernel", "0.14 to 0.15", _kernel_by_name, _BY_NAME, _OF_LIGER, _ONLY_SFT),
    _effect("use_liger_kernel", "0.16 to 0.17", _kernel_by("use_liger"), "use_liger sets it", _OF_LIGER, _ONLY_SFT),
    _effect(
        "dtype", "0.14 to 0.21", partial(Described.float32_norms, of_peft=False), _FLOAT32_NORMS, _PREPARES, _ONLY_SFT
    ),
    _effect("dtype", "0.22 to 0.25", Described.float32_norms, _FLOAT32_NORMS, _PREPARES, frozenset({_SFT, _GRPO})),
    _effect("dtype", "0.22 to 0.26", Described.float32_norms, _FLOAT32_NORMS, _PREPARES, _ONLY_RLOO),
    _effect("ref_adapter", f"0.27 to {NEWEST}", lambda it: it.copies_adapters or None, _SAVED_BY, _COPIES, GENERATING),
    _effect("ref_adapter", f"1.15 to {NEWEST}", lambda it: it.copies_adapters or None, _SAVED_BY, _COPIES, _PAIRED),
    *_effects_on_logprobs(),
    *_effects_on_label_loss(),
)
"""In the order in which they are applied."""


@dataclass(frozen=True, kw_only=True)
class Uncounted:
    """What some releases need in addition to today's, without a formula here."""

    applies: Callable[[Described], bool]
    """Whether it does."""
    versions: Versions
    recipes: frozenset[Recipe]
    meaning: str
    source: str


def _is_narrow_qlora(it: Described) -> bool:
    return it.point.get("tuning") == Tuning.QLORA and it.point.get("dtype") != Dtype.FLOAT32_NORMS


def _is_whole_under_zero(it: Described) -> bool:
    return it.job.get("zero_stage") == ZERO_OF_WEIGHTS and it.has_adapted_reference


def _is_dft(it: Described) -> bool:
    return not _by_liger_kernel(it) and it.file.get("loss_type") == "dft"


def _uncounted(
    versions: str, applies: Callable[[Described], bool], meaning: str, source: str, *recipes: Recipe
) -> Uncounted:
    return Uncounted(
        applies=applies, versions=Versions.of(versions), recipes=frozenset(recipes), meaning=meaning, source=source
    )


_LIGER, _WHOLE = "that Liger computes the loss", "a reference model with LoRA under ZeRO-3"
_HELD = "the logits of one micro-batch while a sharded reference scores the next"
_ASKS_FIRST = "is_deepspeed_zero3_enabled; v0.19.0 asks for the adapter first"
_DFT_LOGITS = "the logits of all tokens, and their gradients, with loss_type=dft"

UNCOUNTED: tuple[Uncounted, ...] = (
    _uncounted("0.22 to 0.25", _is_narrow_qlora, _FLOAT32_NORMS, _PREPARES, _GRPO),
    _uncounted("0.22 to 0.26", _is_narrow_qlora, _FLOAT32_NORMS, _PREPARES, _RLOO),
    _uncounted("0.14 to 0.25", _is_narrow_qlora, _FLOAT32_NORMS, _PREPARES, _SFT),
    _uncounted("0.14 to 0.21", _is_narrow_qlora, "adapters in float32", f"{_TRAINER}, v0.21.0, get_peft_model", _GRPO),
    _uncounted("0.14 to 0.18", _is_whole_under_zero, _WHOLE, f"{_TRAINER}, v0.14.0 to v0.18.2, {_ASKS_FIRST}", _GRPO),
    _uncounted(f"0.27 to {NEWEST}", lambda it: it.copies_wide_adapters, _WIDE_COPY, _COPIES, _GRPO, _RLOO),
    _uncounted("0.15 to 1.14", lambda it: it.scores_sharded_reference, _HELD, f"logits in {_TRAINER}", _GRPO, _RLOO),
    _uncounted("0.17 to 0.24", _by_liger_loss, _LIGER, f"{_TRAINER}, v0.17.0, use_liger_loss", _GRPO),
    _uncounted("0.25 to 1.14", _by_liger_kernel, _LIGER, f"{_TRAINER}, v0.25.0 to 1.14.0, use_liger_kernel", _GRPO),
    _uncounted("0.23 to 1.14", _is_dft, _DFT_LOGITS, f"{_SFT_TRAINER}, v0.23.1 to 1.14.0, dft_loss", _SFT),
)


LAST_WITH_LOGITS = LOGPROBS[-1].versions.last
"""The last release whose log-probabilities need the logits of all completions."""

LAST_WITH_LABEL_LOGITS = next(row.versions.last for row in LABEL_LOSSES[::-1] if row.logprobs.label_loss is not None)
"""The last release whose `SFTTrainer` needs the logits of all tokens by default."""

FIRST_FUSED = RELEASES[RELEASES.index(LAST_WITH_LOGITS) + 1]
"""The first release whose log-probabilities need no logits of all completions."""
