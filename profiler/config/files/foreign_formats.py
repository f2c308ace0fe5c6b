"""Files of other programs, each known by its signature: one row per format, read where the row has its names.

A signature is found in the keys of a file (YAML, JSON or TOML), in the commands of a shell script, or in the imports of
a Python script. Each row names the source of its keys.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from profiler.config.files.formats.axolotl import AXOLOTL
from profiler.config.files.formats.llama_factory import LLAMA_FACTORY
from profiler.config.files.formats.ms_swift import MS_SWIFT
from profiler.config.files.formats.openrlhf import COMMAND, MODULES
from profiler.config.files.vocabulary import BY_KEYS, Vocabulary, part_by
from profiler.config.trl.parts import JobFile
from profiler.domain.errors import Fault

_MOST_DEPTH = 6
"""Deepest level at which a key is looked for."""

_SHOWN = 4
"""Most words of a signature that a sentence repeats."""

_HINT = (
    "Give the job by keys of a trial (model=NAME tuning=lora per_device_train_batch_size=N ...) or as a YAML file with "
    "trl's keys."
)


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Keys that only files of one format have: all of `required`, and one of `any_of` where that is not empty."""

    required: frozenset[str] = frozenset()
    any_of: frozenset[str] = frozenset()

    def found(self, keys: Collection[str]) -> list[str]:
        """Return the keys of the signature that are among `keys`; none if it does not match."""
        others = [key for key in keys if key in self.any_of]
        if not self.required <= set(keys) or (self.any_of and not others):
            return []
        return [*(key for key in keys if key in self.required), *others]


@dataclass(frozen=True, kw_only=True)
class Format:
    """Files of one program, which are read where `vocabulary` has its names."""

    name: str
    """Its name in a sentence, after "is of"."""
    keys: tuple[Keys, ...] = ()
    """Signatures of its files with keys; a nested key is ``section.key``, or ``*.key`` at any level."""
    suffixes: frozenset[str] = frozenset({".yaml", ".yml", ".json", ""})
    """How names of its files with keys end."""
    commands: re.Pattern[str] | None = None
    """What a shell script calls, and what is not read."""
    trains: re.Pattern[str] | None = None
    """What a shell script calls, and what `config/launch` reads; another of its commands in that script is let be."""
    modules: frozenset[str] = frozenset()
    """Modules that a Python script imports."""
    vocabulary: Vocabulary | None = None
    """Its names for keys of trl; None if its files are named and not read."""
    hint: str = _HINT


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _called(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.MULTILINE)


_OWN_LOOPS = ("open_instruct", "align_anything", "safe_rlhf", "fastchat", "llava")
"""Packages with trainers of their own whose arguments resemble those of transformers and trl."""

FORMATS = (
    Format(
        name="ms-swift on Megatron",
        # swift/megatron/arguments/ of ms-swift 4.6: its trainers are not those of trl or transformers.
        keys=(
            Keys(
                any_of=_words("mcore_model mcore_adapter mcore_adapters micro_batch_size"),
                required=_words("tuner_type"),
            ),
        ),
        commands=_called(r"\bmegatron +(?:sft|pt|rlhf|export)\b", r"\bswift[./](?:cli[./]_?)?megatron\b"),
    ),
    Format(
        name="LLaMA-Factory",
        keys=(
            Keys(any_of=_words("finetuning_type lora_target infer_backend export_legacy_format")),
            Keys(
                required=_words("stage"),
                any_of=_words("template cutoff_len dataset_dir adapter_name_or_path quantization_bit plot_loss"),
            ),
            Keys(
                required=_words("template"),
                any_of=_words(
                    "model_name_or_path cutoff_len export_dir adapter_name_or_path dataset_dir quantization_bit"
                ),
            ),
            Keys(required=_words("model model_class")),
        ),
        commands=_called(
            r"\bllamafactory-cli\b", r"\bllama_?factory[./][\w./]+", r"--finetuning_type\b", r"\bsrc/train_bash\.py"
        ),
        trains=_called(
            r"\bllamafactory-cli +train\b",
            r"\bsrc/train\.py\b.*--finetuning_type",
            r"(?i:llama[-_]?factory)\S*/src/train\.py",
        ),
        modules=_words("llamafactory llmtuner"),
        vocabulary=LLAMA_FACTORY,
    ),
    Format(
        name="axolotl",
        # utils/schemas/config.py of axolotl 0.13.
        keys=(
            Keys(
                required=_words("base_model"),
                any_of=_words(
                    "sequence_len sample_packing lora_target_linear dataset_prepared_path pad_to_sequence_len "
                    "lora_model_dir micro_batch_size val_set_size tokenizer_type base_model_config"
                ),
            ),
            Keys(required=_words("sequence_len micro_batch_size")),
        ),
        commands=_called(
            r"\baxolotl +(?:preprocess|inference|merge-\w+|evaluate|lm-eval|quantize)\b",
            r"-m +axolotl(?!\.cli\.train\b)[\w.]*",
        ),
        trains=_called(r"\baxolotl +train\b", r"-m +axolotl\.cli\.train\b"),
        modules=_words("axolotl"),
        vocabulary=AXOLOTL,
    ),
    Format(
        name="ms-swift",
        keys=(
            Keys(
                any_of=_words(
                    "train_type tuner_type rlhf_type sft_type template_type external_plugins split_dataset_ratio"
                )
            ),
        ),
        commands=_called(
            r"\bswift +(?:infer|export|deploy|rollout|app|eval|sample|merge-lora)\b",
            r"\bswift[./](?:cli|llm|pipelines|megatron)\b",
            r"\bllm_(?:sft|dpo|infer)\.py",
            r"--(?:rlhf_type|train_type|tuner_type|sft_type|external_plugins)\b",
        ),
        trains=_called(
            r"\b(?i:swift)\}?\"? +(?:sft|pt|rlhf)\b", r"(?:-m +swift\.cli\.|\bswift\b.*/cli/)(?:sft|rlhf)\b"
        ),
        modules=_words("swift"),
        vocabulary=MS_SWIFT,
    ),
    Format(
        name="OpenRLHF",
        # openrlhf/cli/*.py of OpenRLHF 0.8. It reads no files: only its commands are read.
        keys=(
            Keys(
                any_of=_words(
                    "micro_train_batch_size micro_rollout_batch_size actor_num_gpus_per_node actor_num_nodes "
                    "reward_pretrain prompt_max_len generate_max_len vllm_num_engines"
                )
            ),
        ),
        commands=_called(
            r"\bopenrlhf(?:_agent)?[./][\w./]+",
            r"\btrain_ppo_ray\b",
            r"--(?:actor_num_gpus_per_node|micro_train_batch_size)\b",
        ),
        trains=_called(rf"\b{re.escape(COMMAND)}\.(?:{'|'.join(MODULES)})\b"),
        modules=_words("openrlhf"),
        hint="python -m profiler.run gpus=1xCARD runs the command itself on an emulated card (docs/scripts.md).",
    ),
    Format(
        name="slime",
        # slime/utils/arguments.py: Megatron-LM's arguments, and its own of SGLang.
        commands=_called(r"--(?:hf-checkpoint|rollout-num-gpus|num-rollout)\b", r"\bslime/train(?:_async)?\.py"),
        modules=_words("slime"),
    ),
    Format(
        name="SkyRL",
        keys=(Keys(any_of=_words("trainer.policy generator.n_samples_per_prompt generator.num_inference_engines")),),
        commands=_called(r"\bskyrl(?:_train|_tx)?\.\w[\w.]*", r"\btrainer\.policy\.model\.path="),
        modules=_words("skyrl skyrl_train"),
    ),
    Format(
        name="AReaL",
        keys=(Keys(required=_words("allocation_mode gconfig")),),
        commands=_called(r"\bareal\.(?:launcher|infra)[\w.]*"),
        modules=_words("areal"),
    ),
    Format(
        name="ROLL",
        keys=(Keys(required=_words("actor_train actor_infer")),),
        commands=_called(r"\bstart_(?:rlvr|agentic|sft|dpo)\w*_pipeline\.py"),
    ),
    Format(
        name="NeMo-RL",
        # examples/configs/*.yaml of NeMo-RL 0.4.
        keys=(
            Keys(
                any_of=_words(
                    "policy.dtensor_cfg policy.megatron_cfg policy.train_global_batch_size "
                    "policy.max_total_sequence_length policy.generation grpo.num_prompts_per_step "
                    "grpo.num_generations_per_prompt loss_fn.reference_policy_kl_penalty"
                )
            ),
            Keys(required=_words("policy cluster"), any_of=_words("grpo sft dpo rm distillation loss_fn")),
            Keys(required=_words("defaults policy")),
        ),
        commands=_called(
            r"\bnemo_rl\b", r"\bnemo-rl\b", r"\brun_grpo_\w+\.py", r"\bpolicy\.(?:model_name|generation)[\w.]*"
        ),
        modules=_words("nemo_rl"),
    ),
    Format(
        name="prime-rl",
        # configs/ and examples/ of prime-rl 0.2 to 0.5.
        keys=(
            Keys(
                any_of=_words(
                    "orchestrator trainer_gpu_ids inference_gpu_ids max_async_level max_off_policy_steps "
                    "oversampling_factor weight_broadcast"
                )
            ),
            Keys(required=_words("env sampling"), any_of=_words("rollouts_per_example batch_size")),
            Keys(required=_words("model optim"), any_of=_words("ckpt data max_steps model.name")),
            Keys(required=_words("model data"), any_of=_words("max_steps ckpt optim")),
        ),
        suffixes=frozenset({".toml"}),
        commands=_called(
            r"\buv +run +(?:[\w=/.-]+ +)*(?:rl|sft|trainer|orchestrator|inference) +@", r"\bprime_rl\b", r"\bprime-rl\b"
        ),
        modules=_words("prime_rl zeroband"),
    ),
    Format(
        name="torchtune",
        # recipes/configs/ of torchtune 0.6: each component is named by `_component_`.
        keys=(Keys(any_of=_words("*._component_")),),
        commands=_called(r"\btune +(?:run|download|cp|ls|validate)\b", r"-m +torchtune[\w.]*"),
        modules=_words("torchtune"),
    ),
    *(
        Format(name=each, commands=_called(rf"-(?:m|-module)[ =]+{each}\.[\w.]+|\b{each}/[\w/]+\.py\b"))
        for each in _OWN_LOOPS
    ),
    Format(
        name="Unsloth",
        # `FastLanguageModel.from_pretrained` of 2026.1, less what `ModelConfig` has, and `UnslothTrainingArguments`.
        keys=(
            *(
                Keys(any_of=frozenset({each, f"*.{each}"}))
                for each in ("fast_inference", "embedding_learning_rate", "full_finetuning")
            ),
            Keys(required=_words("model_name max_seq_length load_in_4bit")),
        ),
        commands=_called(r"\bunsloth-cli\.py", r"\bunsloth +(?:train|studio)\b"),
        modules=_words("unsloth"),
    ),
    Format(
        name="trl's AsyncGRPOTrainer",
        # trl/experimental/async_grpo/async_grpo_config.py of trl 1.16.
        keys=(
            Keys(
                any_of=_words(
                    "max_inflight_tasks max_staleness queue_maxsize weight_sync_steps weight_sync_timeout token_budget "
                    "fork_threshold_tokens heartbeat_stale_after_s"
                )
            ),
        ),
        modules=_words("trl.experimental.async_grpo"),
        hint="It packs completions into rows of token_budget tokens; recipe=grpo vllm_mode=server is the nearest.",
    ),
    Format(
        name="EasyR1",
        # examples/config.yaml of EasyR1 0.3.
        keys=(Keys(any_of=_words("worker.actor worker.rollout worker.ref")),),
        commands=_called(r"\bverl\.trainer\.main\b", r"\bworker\.(?:actor|rollout)\.[\w.]+"),
        hint="A fork of verl: give the job by verl's keys (config=verl actor_rollout_ref.model.path=NAME ...).",
    ),
    Format(name="verl", modules=_words("verl")),
    Format(
        name="verl's SFT trainer",
        # trainer/config/sft_trainer.yaml of verl 0.4 to 0.7.
        keys=(Keys(any_of=_words("model.partial_pretrain")),),
    ),
)
"""The first that matches is meant."""

_OF_VERL = re.compile(
    r"\bactor_rollout_ref\.|\bverl\.(?!trainer\.main\b)\w+\.\w|\bverl/trainer/\w+\.py|\bmain_(?:ppo|dapo)"
)
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")
_CONTINUED = re.compile(r"\\\r?\n")


def foreign_part(name: str, values: Mapping[str, object], formats: Sequence[Format] = FORMATS) -> JobFile | None:
    """Return what a file with keys of another program says; None if no signature matches.

    Args:
        name: The file.
        values: Its keys.
        formats: The formats.
    """
    keys, suffix = list(_key_names(values)), PurePosixPath(name).suffix
    for each in formats:
        if suffix not in each.suffixes:
            continue
        found = next((found for signature in each.keys if (found := signature.found(keys))), None)
        if found and each.vocabulary is not None:
            return part_by(each.vocabulary, name, values)
        if found:
            shown = ", ".join(key.removeprefix("*.") for key in found[:_SHOWN])
            problem = f"is a file of {each.name}, by its {_plural('key', found[:_SHOWN])} {shown}, and that is not read"
            return JobFile(name=name, faults=(Fault(key="config", found=name, problem=problem, hint=each.hint),))
    return None


def foreign_script(name: str, text: str) -> Fault | None:
    """Return the fault of a shell script that runs another program; None for a script of verl or trl."""
    return None if is_of_verl(text) else _foreign_call("config", name, _commands(text))


def foreign_command(text: str) -> Fault | None:
    """Return the fault of a command that runs another program; None if it may be one of trl."""
    return _foreign_call("launch", text, text)


def is_of_verl(text: str) -> bool:
    """Return whether a shell script runs verl's trainer."""
    return _OF_VERL.search(_commands(text)) is not None


def _commands(text: str) -> str:
    """Return a script without comments, each command in a line."""
    return _CONTINUED.sub(" ", _COMMENT.sub("", text))


def _foreign_call(key: str, found: str, commands: str) -> Fault | None:
    for each in FORMATS:
        if each.trains is not None and each.trains.search(commands) is not None:
            continue
        match = each.commands.search(commands) if each.commands is not None else None
        if match is not None:
            what = "that" if each.trains is None else "this way to start it"
            problem = f"runs {each.name} ({' '.join(match[0].split())}), and {what} is not read"
            return Fault(key=key, found=found, problem=problem, hint=each.hint)
    return None


_OTHER_LOADERS = ("FastModel", "FastVisionModel")
"""Unsloth's loaders of all models but text, which run code of transformers that it compiles."""

_PATCHES_TRL = "unsloth"
"""The module that changes trl's trainers where it is imported."""


def other_program(
    names: Collection[tuple[str, str]], owners: Collection[str], trained: Collection[str]
) -> tuple[str, str] | None:
    """Return why a script is not read that another program trains or changes, with a hint; None if trl may train it.

    Args:
        names: Modules that it imports, with the names that it takes from them.
        owners: Classes whose methods it calls.
        trained: Names of its calls that configure and make trainers of trl.
    """
    loader = next((each for each in owners if each in _OTHER_LOADERS), None)
    if loader is not None:
        problem = f"loads its model by Unsloth's {loader}, whose kernels have no formula and no bound here"
        return problem, f"Give {BY_KEYS} for what trl's own trainer needs."
    made = {*trained, *(name for _, name in names if name.endswith("Trainer"))}  # a script may have both
    modules = [each for each, name in names if not trained or name in made or each.split(".")[0] == _PATCHES_TRL]
    starts = {".".join(module.split(".")[:depth]) for module in modules for depth in range(1, _MOST_DEPTH)}
    other = next((each for each in FORMATS if each.modules & starts), None)
    if other is None:
        return None
    how = "none of its loads of a model is here" if _PATCHES_TRL in other.modules else "that is not read"
    return f"trains with {other.name}, which it imports, and {how}", other.hint


def _key_names(values: Mapping[str, object]) -> Iterator[str]:
    """Return each key, ``section.key`` of the second level, and ``*.key`` of all levels below the first."""
    level: list[Mapping[str, object]] = [values]
    for depth in range(_MOST_DEPTH):
        inner = [(str(key), value) for each in level for key, value in each.items()]
        yield from (key if depth == 0 else f"*.{key}" for key, _ in inner)
        if depth == 0:
            yield from (f"{key}.{second}" for key, value in inner if isinstance(value, Mapping) for second in value)
        level = [value for _, value in inner if isinstance(value, Mapping)]


def _plural(word: str, names: Collection[object]) -> str:
    return word if len(names) == 1 else f"{word}s"
