"""Which trainer of trl a file is for, and values that decide how it is read.

Values of trl's files that decide how a file is read, with a fault for each that its library would not take.

What a key of the trial states is checked there; here are the keys that no key of the trial is.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from profiler.config.notes import Note
from profiler.config.options.reading import FileValues, show
from profiler.domain.errors import Fault
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import key_named

OTHER_TRAINERS = ("bco", "cpo", "gkd", "nash_md", "online_dpo", "orpo", "ppo", "prm", "tpo", "xpo")
"""Trainers of trl, in any version, that have no recipe here, as its command line names them."""

GENERATION_KEYS = frozenset(
    """
    num_generations max_completion_length reward_funcs use_vllm vllm_mode steps_per_generation generation_batch_size
    reward_weights scale_rewards num_iterations importance_sampling_level mask_truncated_completions epsilon_high
    """.split()  # noqa: SIM905
)
"""Keys of GRPO's arguments and script that trainers without generation do not have."""

SFT_KEYS = frozenset(
    """
    packing eval_packing packing_strategy completion_only_loss assistant_only_loss dataset_text_field dataset_kwargs
    max_seq_length
    """.split()  # noqa: SIM905
)
"""Keys that of trl's arguments only `SFTConfig` has; `max_seq_length` is the earlier name of its `max_length`."""


RLOO_KEYS = frozenset({"normalize_advantages", "reward_clip_range"})
"""Keys that of trl's arguments only `RLOOConfig` has."""


DPO_KEYS = frozenset(
    """
    discopop_tau f_divergence_type f_alpha_divergence_coef label_smoothing ld_alpha loss_weights use_weighting
    """.split()  # noqa: SIM905
)
"""Keys that of trl's arguments only `DPOConfig` has."""

KTO_KEYS = frozenset({"desirable_weight", "undesirable_weight"})
"""Keys that of trl's arguments only `KTOConfig` has."""

REWARD_KEYS = frozenset({"center_rewards_coefficient"})
"""Keys that of trl's arguments only `RewardConfig` has."""

NAMED_BY: Mapping[Recipe, frozenset[str]] = {
    Recipe.SFT: SFT_KEYS,
    Recipe.KTO: KTO_KEYS,
    Recipe.REWARD: REWARD_KEYS,
    Recipe.DPO: DPO_KEYS,
}
"""Keys that name the trainer of a file without generation."""

_OF_A_REFERENCE = frozenset({"precompute_ref_log_probs", "precompute_ref_batch_size"})
"""Keys of `DPOConfig` that `KTOConfig` has too."""


_LACKS: Mapping[Recipe, frozenset[str]] = {
    **dict.fromkeys((Recipe.GRPO, Recipe.RLOO), _OF_A_REFERENCE | {"max_length"}),
    **dict.fromkeys((Recipe.SFT, Recipe.REWARD), _OF_A_REFERENCE | {"beta"}),
}
"""Keys of several trainers that the configuration of another one does not have."""


_OF_PAIRS = frozenset({"max_completion_length"})
"""Keys of generation that the configurations of DPO, KTO, CPO and ORPO had as well, as the rest of `max_length`.

Source: `trl/trainer/dpo_config.py` and `kto_config.py` of trl 0.14 to 0.28.
"""

_LOSSES_OF_DPO = frozenset(
    """
    sigmoid hinge ipo exo_pair nca_pair robust bco_pair sppo_hard aot aot_pair aot_unpaired discopop apo_zero apo_down
    sigmoid_norm
    """.split()  # noqa: SIM905
)
"""Values of `loss_type` that `DPOConfig` alone has."""

_SAY_TRAINER = frozenset(
    """
    trainer trainer_type trainer_name method training_method algorithm algo rl_algorithm stage training_stage task
    train_stage training_type train_type objective recipe mode
    """.split()  # noqa: SIM905
)
"""Keys of users' own by which a file says its trainer."""

_SAID: Mapping[str, str] = {
    **dict.fromkeys(("rm", "reward_model", "reward_modeling"), Recipe.REWARD),
    "ipo": Recipe.DPO,
    **dict.fromkeys(("simpo", "alphapo"), "cpo"),
    "apo_zero_unpaired": Recipe.KTO,
}
"""Other words for trainers. IPO is a loss of that of DPO, SimPO and AlphaPO are of that of CPO."""

_LOSSES_OF_OTHERS = frozenset({"simpo", "alphapo", "cpo", "orpo", "kto", "apo_zero_unpaired"})
"""Values of `loss_type` that say a trainer of pairs: of `CPOConfig` and `KTOConfig` of trl 1.16, and of users."""


def said_trainers(values: Mapping[str, object]) -> list[str]:
    """Return the trainers that a user's own keys name: ``stage: rm`` and ``training.method: reward`` are the same.

    Args:
        values: The keys, or their paths.
    """
    texts = [value for key, value in values.items() if isinstance(value, str) and _says_trainer(key, value)]
    words = [re.sub(r"[_ -]?trainer$", "", each.lower()).replace("-", "_").replace(" ", "_") for each in texts]
    named = dict.fromkeys(_SAID.get(each, each) for each in words)
    return [each for each in named if each in OTHER_TRAINERS or each in set(Recipe)]


def _says_trainer(path: str, value: object) -> bool:
    key = path.rpartition(".")[2]
    return key in _SAY_TRAINER or (key == "loss_type" and value in _LOSSES_OF_OTHERS)


_OF_ANOTHER = f"is a trainer of trl that has no recipe here; the recipes are {', '.join(Recipe)}"


_FULL = re.compile(r"full(?:_?(?:ft|fine_?tun(?:e|ing)|param(?:eter)?s?|training))?(?:_config)?")
"""What users call the training of all weights, in a key, a section or a value."""


def says_full(values: Mapping[str, object]) -> str:
    """Return the path of a key by which a user's own file has full fine-tuning; empty if there is none."""
    for path, value in values.items():
        *sections, last = path.lower().split(".")
        is_said = isinstance(value, str) and _FULL.fullmatch(value.lower().replace("-", "_")) is not None
        is_on = value is True and _FULL.fullmatch(last) is not None
        if (is_said or is_on or any(map(_FULL.fullmatch, sections))) and not path.startswith(("data", "eval", "log")):
            return path
    return ""


class _Other(NamedTuple):
    """A trainer that has no recipe here."""

    trainer: str
    keys: frozenset[str]


OTHERS = (
    _Other(
        "PPOTrainer",
        frozenset(
            """
            total_episodes num_ppo_epochs num_mini_batches local_rollout_forward_batch_size num_sample_generations
            response_length rloo_k missing_eos_penalty whiten_rewards sft_model_path reward_model_path
            """.split()  # noqa: SIM905
        ),
    ),
    _Other(
        "DPOTrainer up to 0.28",
        frozenset(
            """
            reference_free rpo_alpha force_use_ref_model use_logits_to_keep use_num_logits_to_keep
            """.split()  # noqa: SIM905
        ),
    ),
    _Other("CPOTrainer", frozenset({"cpo_alpha", "simpo_gamma"})),
)
"""Keys that of trl's arguments only one other trainer has, with names of earlier versions."""


_OF_OLD_DPO = next(other.keys for other in OTHERS if other.trainer.startswith("DPO"))

_BESIDE_PAIRS = frozenset(
    ["max_length", "label_pad_token_id", "truncation_mode", "is_encoder_decoder", "generate_during_eval"]
)
"""Further keys of trainers of pairs, which `GRPOConfig` does not have."""

_WITHOUT_EFFECT = (None, False, "null", "false")
"""Values with which a key of an earlier `DPOConfig` changes nothing."""


def _generates(values: Mapping[str, object]) -> bool:
    """Return whether keys say that a trainer generates: those of pairs count unless another key says pairs.

    By hand: ``max_completion_length`` next to ``max_length``, which `GRPOConfig` does not have, is of pairs.
    """
    found = GENERATION_KEYS & values.keys() if str(values.get("loss_type")) not in _LOSSES_OF_OTHERS else frozenset()
    return bool(found - _OF_PAIRS) or (bool(found) and not _has_pairs(values))


def _has_pairs(values: Mapping[str, object]) -> bool:
    """Return whether a key, or a loss, is of a trainer of pairs and of none that generates."""
    loss = values.get("loss_type")
    losses = set(loss) if isinstance(loss, list) else {loss}
    keys = (DPO_KEYS | KTO_KEYS | _OF_A_REFERENCE | _BESIDE_PAIRS).union(*(other.keys for other in OTHERS))
    return not keys.isdisjoint(values) or not _LOSSES_OF_DPO.isdisjoint(map(str, losses))


def recipe_of(values: Mapping[str, object]) -> tuple[Recipe, list[Fault]]:
    """Return the recipe that a file is for, and a fault if it is for a trainer that has none.

    A file without a key of any trainer is taken for GRPO.
    """
    generates, said = _generates(values), said_trainers(values)
    for key in () if generates else sorted({*_SAY_TRAINER, "loss_type"} & values.keys()):
        if any(each in OTHER_TRAINERS for each in said_trainers({key: values[key]})):
            return Recipe.GRPO, [Fault(key=key, found=show(values[key]), problem=_OF_ANOTHER)]
    for other in OTHERS:
        found = sorted(
            key for key in values if key in other.keys and not (key in _OF_OLD_DPO and values[key] in _WITHOUT_EFFECT)
        )
        if found and not generates:
            return Recipe.GRPO, [_no_recipe(found[0], other.trainer)]
    if any(key in RLOO_KEYS for key in values):
        return Recipe.RLOO, []
    if generates:
        return Recipe.GRPO, []
    if len(said) == 1:
        return Recipe(said[0]), []
    for recipe, keys in NAMED_BY.items():
        if any(key in keys for key in values):
            return recipe, []
    if any(key in _OF_A_REFERENCE | _OF_OLD_DPO for key in values) or (GENERATION_KEYS & values.keys()):
        return Recipe.DPO, []
    if "max_length" in values:
        return Recipe.DPO if "beta" in values else Recipe.SFT, []
    return Recipe.GRPO, []


def recipe_by_name(stem: str, folder: str, values: Mapping[str, object]) -> tuple[Recipe | None, tuple[Fault, ...]]:
    """Return the trainer that a file's name says, or else its folder is called by, and a fault if it has no recipe.

    Only where no key says it: those of DPO, KTO, ORPO and a reward model are mostly the same, and so are those that all
    trainers have.

    Args:
        stem: The file's name, of which one word may be a trainer.
        folder: The name of the folder that it is in.
        values: Its keys.
    """
    of_one = frozenset(RLOO_KEYS).union(*NAMED_BY.values())
    if _generates(values) or said_trainers(values) or not of_one.isdisjoint(values):
        return None, ()
    words = set(re.split(r"[^a-z]+", stem.lower()))
    trainers = (*Recipe, *OTHER_TRAINERS)
    found = [each for each in trainers if set(each.split("_")) <= words] or [
        each for each in trainers if each == folder
    ]
    # `online_dpo` is another trainer than `dpo`.
    found = [each for each in found if not any(each != other and each in other.split("_") for other in found)]
    if len(found) == 1 and found[0] in OTHER_TRAINERS:
        problem = f"is for {found[0]} by its name, which has no recipe here"
        hint = f"Give recipe={'|'.join(Recipe)} if it is for one of these."
        return None, (Fault(key="recipe", found=stem, problem=problem, hint=hint),)
    named = Recipe(found[0]) if len(found) == 1 else None
    # What a name says counts only of a trainer that has the keys.
    lacks = _LACKS.get(named, frozenset()) if named is not None else frozenset()
    if named is not None and named.facts.has_rollout and not _OF_PAIRS.isdisjoint(values):
        lacks -= {"max_length"}
    return (named if lacks.isdisjoint(values) else None), ()


def trainer_is_known(values: Mapping[str, object]) -> bool:
    """Return whether a key says which trainer a file is for."""
    own = (GENERATION_KEYS | RLOO_KEYS | _OF_A_REFERENCE).union(*NAMED_BY.values())
    keys = own | {"max_length"}.union(*(other.keys for other in OTHERS))
    return bool(said_trainers(values)) or not keys.isdisjoint(values)


def short_prompts(point: Mapping[str, object], recipe: Recipe) -> dict[str, object]:
    """Return the tokens of prompts where the file states none and its rows have no more than prompts usually have.

    It is half of a row. By hand, rows of 256 tokens, of which 256 would be the prompt: 128.
    """
    longest, usual = point.get("max_length"), key_named("max_prompt_length").default
    is_open = recipe.facts.has_prompts and not recipe.facts.has_rollout and "max_prompt_length" not in point
    if not is_open or not isinstance(longest, int) or not isinstance(usual, int) or not 1 < longest <= usual:
        return {}
    return {"max_prompt_length": longest // 2}


def trainer_notes(values: Mapping[str, object], recipe: Recipe) -> tuple[Note, ...]:
    """Return the note that a file is taken for one of a trainer, unless a key of it says so."""
    text = f"recipe={recipe} (no key of the file is of one trainer alone)"
    return () if trainer_is_known(values) else (Note(key="recipe", text=text),)


def _no_recipe(key: str, trainer: str) -> Fault:
    return Fault(
        key="config",
        found=key,
        problem=f"is a key of trl's {trainer}, which has no recipe here; the recipes are {', '.join(Recipe)}",
    )


_FLAGS = ("use_peft", "load_in_4bit", "packing", "eval_on_start", "use_bnb_nested_quant")
"""Flags that trl's parser also reads from a text (`string_to_bool` in `trl/scripts/_hf_argparser.py`, trl 1.16)."""

_STRATEGIES = ("no", "steps", "epoch")
"""`IntervalStrategy` of transformers 5.23."""

_SHARDS = {"full_shard": True, "shard_grad_op": False}
_FSDP_OPTIONS = (*_SHARDS, "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap")
"""`FSDPOption` of transformers 5.23."""

_NO_FILE = "is a file that is not here, and it says how GPUs share memory"
_STATE_IT = "Give it as well, as config=FILE, or write its keys in the recipe."


def checked_values(
    flat: Mapping[str, object],
) -> tuple[dict[str, object], dict[str, object], tuple[Fault, ...]]:
    """Return the keys with flags as true or false, how they say that processes share the work, and every fault.

    Args:
        flat: The keys of a file of trl.
    """
    reader = FileValues(flat)
    checked = dict(flat)
    for key in _FLAGS:
        if flat.get(key) is not None:
            checked[key] = reader.flag(key)
    for key in ("eval_strategy", "evaluation_strategy"):
        strategy = reader.one_of(key, _STRATEGIES)
        if strategy is not None:
            checked[key] = strategy
    batch = flat.get("generation_batch_size")
    if batch is not None and (not isinstance(batch, int) or isinstance(batch, bool) or batch < 1):
        reader.fail("generation_batch_size", "must be a whole number of at least 1")
        del checked["generation_batch_size"]
    job = {**_fsdp_job(reader), **_deepspeed_job(reader)}
    return checked, job, reader.faults


def _deepspeed_job(reader: FileValues) -> dict[str, object]:
    """Return the file of DeepSpeed that is named; a configuration in its place is read before."""
    value = reader.value("deepspeed")
    if isinstance(value, str) and value:
        return {"deepspeed_file": value}
    if value not in (None, False, "", {}) and not isinstance(value, Mapping):
        reader.fail("deepspeed", "must be a file or a section of DeepSpeed's keys")
    return {}


def _fsdp_job(reader: FileValues) -> dict[str, object]:
    """Return how FSDP shards by `fsdp` and `fsdp_config`, as `_process_fsdp_args` of transformers 5.23 reads them."""
    options = _fsdp_options(reader)
    if not options:
        return {}
    if isinstance(reader.value("fsdp_config"), str) and reader.value("fsdp_config"):
        reader.fail("fsdp_config", _NO_FILE, _STATE_IT)
        return {"distributed_type": "fsdp"}
    sharding = next((_SHARDS[each] for each in options if each in _SHARDS), None)
    return {
        "distributed_type": "fsdp",
        "fsdp_version": reader.one_of(_named(reader, "version"), (1, 2)),
        "fsdp_reshard_after_forward": _reshards(reader, sharding),
        "fsdp_activation_checkpointing": _optional_flag(reader, "activation_checkpointing"),
        "fsdp_cpu_ram_efficient_loading": reader.flag(_named(reader, "cpu_ram_efficient_loading")),
        "fsdp_offload_params": "offload" in options
        or any(reader.flag(_named(reader, key)) for key in ("cpu_offload", "offload_params")),
    }


def _fsdp_options(reader: FileValues) -> list[str]:
    """Return the options of `fsdp`; empty if FSDP is off."""
    value = reader.value("fsdp")
    if value in (None, False, "", []):
        return []
    if value is True:
        return ["full_shard"] if not reader.section("fsdp_config") else ["auto_wrap"]
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    options = [show(each).lower() for each in words] if isinstance(words, list) else ["?"]
    if not set(options) <= set(_FSDP_OPTIONS):
        reader.fail("fsdp", f"must be true, or options of {', '.join(_FSDP_OPTIONS)}")
    elif set(options) & {"no_shard", "hybrid_shard", "hybrid_shard_zero2"}:
        reader.fail("fsdp", f"has no formula here; only {' or '.join(_SHARDS)}")
    return options


def _reshards(reader: FileValues, stated: bool | None) -> bool | None:
    key = _named(reader, "reshard_after_forward")
    return stated if reader.value(key) is None else reader.reshards(key, default=True)


def _optional_flag(reader: FileValues, name: str) -> bool | None:
    key = _named(reader, name)
    return None if reader.value(key) is None else reader.flag(key)


def _named(reader: FileValues, name: str) -> str:
    """Return the path of a key of `fsdp_config`, which may begin with ``fsdp_``."""
    prefixed = f"fsdp_config.fsdp_{name}"
    return (
        prefixed
        if reader.value(f"fsdp_config.{name}") is None and reader.value(prefixed) is not None
        else f"fsdp_config.{name}"
    )
