"""What starts a training on a command line: one row per launcher, with its options that take no value.

Sources: `launch_command_parser` of accelerate 1.15, `get_args_parser` of `torch/distributed/run.py` in torch 2.9,
`deepspeed/launcher/runner.py` of DeepSpeed 0.18, `trl/cli/` of trl 1.16, `swift/cli/main.py` of ms-swift 4.6, and
`src/llamafactory/launcher.py` of LLaMA-Factory 0.9.6.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from profiler.config.files.arguments import Arguments, read_arguments, typed
from profiler.config.files.companion_files import DEEPSPEED_FIELDS, FSDP_FIELDS, PARALLELISM_FIELDS
from profiler.config.files.formats.axolotl import AXOLOTL
from profiler.config.files.formats.llama_factory import LLAMA_FACTORY
from profiler.config.files.formats.ms_swift import MS_SWIFT
from profiler.config.files.formats.openrlhf import COMMAND, MODULES, OPENRLHF
from profiler.config.files.formats.together import PROCESSES
from profiler.config.files.vocabulary import Vocabulary
from profiler.config.notes import Note
from profiler.config.shell.values import Item, Value


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A program that starts the one that trains."""

    name: str
    starts: tuple[re.Pattern[str], ...]
    """The words that call it."""
    flags: frozenset[str] = frozenset()
    """Its options without a value."""
    processes: Callable[[Arguments], object]
    """Returns how many processes it starts in all; None if the line leaves it open, and a text if it is undecided."""
    vocabulary: Vocabulary | None = None
    """The names of its own arguments; None if it starts a program of trl, or is trl."""
    commands: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Its commands that train, where `vocabulary` has its names, each with the keys that it states."""


def _product(arguments: Arguments, per_node: str, nodes: str) -> object:
    """Return the processes of all nodes."""
    if per_node in arguments.undecided or nodes in arguments.undecided:
        return arguments.undecided.get(per_node, arguments.undecided.get(nodes))
    counts = (arguments.values.get(per_node), arguments.values.get(nodes, 1))
    if counts[0] is None:
        return None
    first, second = counts
    if isinstance(first, int) and isinstance(second, int):
        return first * second
    return f"{first} x {second}"


def _of_torchrun(arguments: Arguments) -> object:
    found = _product(arguments, "nproc_per_node", "nnodes")
    return 1 if found is None else found  # torchrun's default of --nproc_per_node


def _of_deepspeed(arguments: Arguments) -> object:
    include = arguments.values.get("include", arguments.values.get("i"))
    if isinstance(include, str) and ":" in include:
        return sum(len(host.partition(":")[2].split(",")) for host in include.split("@"))
    return _product(arguments, "num_gpus", "num_nodes")


def _of_accelerate(arguments: Arguments) -> object:
    return arguments.undecided.get("num_processes", arguments.values.get("num_processes"))


def _called(*words: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(rf"(?:.*/)?{word}") for word in words)


ACCELERATE = Launcher(
    name="accelerate launch",
    starts=_called("accelerate", "launch"),
    flags=_words(
        """
        cpu debug downcast_bf16 dynamo_use_dynamic dynamo_use_fullgraph dynamo_use_regional_compilation
        enable_cpu_affinity fp8_use_autocast_during_eval help m module multi_gpu no_python no_tpu_cluster q quiet
        same_network tpu tpu_cluster tpu_use_sudo use_deepspeed use_fsdp use_megatron_lm use_parallelism_config
        """
    ),
    processes=_of_accelerate,
)

TORCHRUN = Launcher(
    name="torchrun",
    starts=_called("torchrun"),
    flags=_words("help m module no_python run_path standalone virtual_local_rank use_env"),
    processes=_of_torchrun,
)

DEEPSPEED = Launcher(
    name="deepspeed",
    starts=_called("deepspeed"),
    flags=_words("module m no_python no_local_rank no_ssh_check force_multi enable_each_rank_log bind_cores_to_rank"),
    processes=_of_deepspeed,
)

PYTHON = Launcher(
    name="python",
    starts=_called(r"python[0-9.]*"),
    flags=_words("u O OO B E s S I v q m b d i P x"),
    processes=lambda _: 1,
)

TRL = Launcher(name="trl", starts=_called("trl"), processes=lambda _: None)

_NODES = "NNODES"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def _of_variables(options: Arguments) -> object:
    return _product(options, PROCESSES, _NODES)


def _of_launcher(options: Arguments) -> object:
    """Return the processes of the launcher that starts a program's file or module; None if its options leave it open.

    DeepSpeed's takes the GPUs that it sees.
    """
    found = (_of_accelerate(options), _of_deepspeed(options), _product(options, "nproc_per_node", "nnodes"))
    return next((each for each in found if each is not None), None)


def _or_seen(found: object, options: Arguments) -> object:
    """Return one process per GPU that a command sees, where nothing else says how many there are."""
    visible = options.values.get(_VISIBLE)
    return len(str(visible).split(",")) if found is None and visible not in (None, "") else found


def _of_seen(options: Arguments) -> object:
    """Return the processes of axolotl and OpenRLHF: of the launcher, which takes the GPUs that it sees."""
    return _or_seen(_of_launcher(options), options)


def _of_llama_factory(options: Arguments) -> object:
    """Return the processes of LLaMA-Factory: of the launcher of its file, or of its command."""
    found = _of_launcher(options)
    return _or_seen(_of_variables(options) if found is None else found, options)


def _of_swift(options: Arguments) -> object:
    """Return the processes of ms-swift: of the launcher of its file, or by the variables of its own command."""
    found = _of_launcher(options)
    return _of_variables(options) if found is None else found


SWIFT = Launcher(
    name="swift",
    starts=_called("swift"),
    processes=_of_swift,
    vocabulary=MS_SWIFT,
    commands={"sft": {"rlhf_type": "sft"}, "rlhf": {"rlhf_type": "dpo"}, "pt": {"rlhf_type": "sft"}},
)
"""`swift rlhf` trains by DPO unless `--rlhf_type` says otherwise; `swift pt` is `swift sft` without a chat template."""

LLAMA_FACTORY_CLI = Launcher(
    name="llamafactory-cli",
    starts=_called("llamafactory-cli"),
    processes=_of_llama_factory,
    vocabulary=LLAMA_FACTORY,
    commands={"train": {}},
)

AXOLOTL_CLI = Launcher(
    name="axolotl",
    starts=_called("axolotl"),
    processes=_of_seen,
    vocabulary=AXOLOTL,
    commands={"train": {}},
)

OPENRLHF_CLI = Launcher(
    name="openrlhf",
    starts=(),
    processes=_of_seen,
    vocabulary=OPENRLHF,
    commands={each: {COMMAND: each} for each in MODULES},
)
"""Its modules, which DeepSpeed's launcher, torchrun or Python starts."""

LAUNCHERS = (ACCELERATE, TORCHRUN, DEEPSPEED, TRL, SWIFT, LLAMA_FACTORY_CLI, AXOLOTL_CLI, PYTHON)
"""The first that fits is meant."""

_MODULES = {
    "accelerate.commands.launch": ACCELERATE,
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "deepspeed.launcher.runner": DEEPSPEED,
}
"""Launchers that Python starts as a module."""

_MODULES_OF_COMMANDS = {
    "axolotl.cli.train": (AXOLOTL_CLI, "train"),
    "swift.cli.sft": (SWIFT, "sft"),
    "swift.cli.rlhf": (SWIFT, "rlhf"),
    **{f"{COMMAND}.{each}": (OPENRLHF_CLI, each) for each in MODULES},
}
"""Commands that Python, or a launcher, starts as a module."""

_FILE_OF_SWIFT = re.compile(r".*\bswift\b.*/cli/(sft|rlhf)\.py\W*")
"""The file of a command of ms-swift, also where Python says in which folder it is."""

_FILE_OF_LLAMA_FACTORY = re.compile(r"(?:.*/)?src/train\.py")
_FOLDER_OF_LLAMA_FACTORY = re.compile(r".*llama[-_]?factory.*/src/.*", re.IGNORECASE)
_OF_LLAMA_FACTORY = frozenset({"--stage", "--finetuning_type"})
"""Arguments that tell its file from a user's own of that name, where the name of its folder does not.

Its file of releases before 0.8, `src/train_bash.py`, has other defaults, and is not read.
"""

_PROGRAMS = (SWIFT, LLAMA_FACTORY_CLI, AXOLOTL_CLI)
"""Programs that a launcher starts by their path: ``torchrun $(which swift) sft``."""

_MODULE = ("m", "module")

ACCELERATE_OPTIONS = frozenset(
    {
        *("config_file", "num_processes", "num_machines", "mixed_precision", "use_deepspeed", "use_fsdp", "multi_gpu"),
        *("cpu", "main_process_port", "main_process_ip", "machine_rank", "gpu_ids", "dynamo_backend", "rdzv_backend"),
        *DEEPSPEED_FIELDS,
        *FSDP_FIELDS,
        *PARALLELISM_FIELDS,
    }
) - {"gradient_accumulation_steps"}
"""Options of `accelerate launch` that `trl grpo` passes on."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """What a line starts: a launcher with its options, a program, and the arguments of that."""

    launcher: Launcher
    options: Arguments
    program: str
    """A file, a module, or a command of trl; empty if there is none."""
    arguments: tuple[Item, ...]
    is_module: bool = False
    is_stated: bool = True
    """Whether the line says what the program is."""
    by: Launcher | None = None
    """What starts a command of another program, whose options these are; None where it is the launcher."""
    trainer: str = ""
    """The recipe that counts in a script of several."""
    notes: tuple[Note, ...] = ()
    """What the script leaves open."""

    @property
    def said(self) -> str:
        """The launcher and the program."""
        return f"{self.launcher.name} {self.program}"


def started(items: Sequence[Item], environment: Mapping[str, Value]) -> Started | None:
    """Return what the words of a command start; None if no launcher is among them.

    Args:
        items: The words.
        environment: The variables that the command gets.
    """
    texts = [item.value.text for item in items]
    for place in range(len(texts)):
        for launcher in LAUNCHERS:
            count = len(launcher.starts)
            words = texts[place : place + count]
            if len(words) == count and all(p.fullmatch(w) for p, w in zip(launcher.starts, words, strict=True)):
                own = items[place + count :]
                if launcher.commands:
                    return _command(launcher, own, environment)
                found = _program(launcher, own)
                return _with_variables(found, environment) if found.by is not None else found
        if texts[place].endswith(".py") and "run" in texts[:place] and "uv" in texts[:place]:
            return _program(PYTHON, items[place:])
    return None


def _command(launcher: Launcher, items: Sequence[Item], environment: Mapping[str, Value]) -> Started:
    """Return a command of a program that trains by itself; its options are variables of the environment."""
    program = items[0].value.text if items else ""
    found = Started(launcher=launcher, options=read_arguments(()), program=program, arguments=tuple(items[1:]))
    return _with_variables(found, environment)


def _with_variables(found: Started, environment: Mapping[str, Value]) -> Started:
    """Return a command with the variables of the environment that say how many processes it has, as options."""
    known = {name: value for name, value in environment.items() if name in (PROCESSES, _NODES, _VISIBLE)}
    values = {name: typed(name, value.text) if name != _VISIBLE else value.text for name, value in known.items()}
    undecided = {name: value.text for name, value in known.items() if not value.is_known}
    stated = {key: value for key, value in values.items() if key not in undecided}
    own = found.options
    options = replace(own, values={**stated, **own.values}, undecided={**undecided, **own.undecided})
    return replace(found, options=options)


def _program(launcher: Launcher, items: Sequence[Item]) -> Started:
    """Return the program after a launcher's own options."""
    place, is_module = 0, False
    # Words that only a branch has are its options, as long as the program follows for certain.
    ends = {place for place, item in enumerate(items) if item.is_certain and item.value.text.endswith((".py", ".yaml"))}
    while place < len(items):
        text = items[place].value.text
        is_left_out = not items[place].is_certain and any(end > place for end in ends)
        if text == "--" or not (text.startswith("-") or is_left_out):
            break
        if not text.startswith("-"):
            place += 1
            continue
        name = text.lstrip("-").partition("=")[0].replace("-", "_")
        is_module = is_module or name in _MODULE
        place += 1 if "=" in text or name in launcher.flags or launcher is TRL else 2
    options = read_arguments(items[:place])
    place += place < len(items) and items[place].value.text == "--"
    if place >= len(items):
        return Started(launcher=launcher, options=options, program="", arguments=())
    value, rest = items[place].value, tuple(items[place + 1 :])
    inner = _MODULES.get(value.text) if is_module and launcher is PYTHON else None
    if inner is not None:
        return _program(inner, rest)
    swift = _FILE_OF_SWIFT.fullmatch(value.text)
    if swift is not None:
        return Started(launcher=SWIFT, options=options, program=swift[1], arguments=rest, by=launcher)
    if _is_llama_factory(value.text, rest):
        return Started(launcher=LLAMA_FACTORY_CLI, options=options, program="train", arguments=rest, by=launcher)
    if is_module and value.text in _MODULES_OF_COMMANDS:
        command, program = _MODULES_OF_COMMANDS[value.text]
        return Started(launcher=command, options=options, program=program, arguments=rest, by=launcher)
    own = next((each for each in _PROGRAMS if rest and each.starts[0].fullmatch(value.text)), None)
    if own is not None and not is_module:
        program, arguments = rest[0].value.text, rest[1:]
        return Started(launcher=own, options=options, program=program, arguments=arguments, by=launcher)
    return Started(
        launcher=launcher,
        options=options,
        program=value.text,
        arguments=rest,
        is_module=is_module,
        is_stated=value.is_known,
    )


def _is_llama_factory(file: str, arguments: Sequence[Item]) -> bool:
    names = {each.value.text for each in arguments}
    is_named = _FOLDER_OF_LLAMA_FACTORY.fullmatch(file) is not None or names >= _OF_LLAMA_FACTORY
    return _FILE_OF_LLAMA_FACTORY.fullmatch(file) is not None and is_named


def accelerate_values(options: Mapping[str, object], stated: Mapping[str, object]) -> dict[str, object]:
    """Return accelerate's configuration: its file's keys, under those of the line.

    Args:
        options: Options of `accelerate launch`.
        stated: Keys of its configuration file; empty without one.
    """
    values = dict(stated)
    for key in ("num_processes", "num_machines", "mixed_precision"):
        if options.get(key) is not None:
            values[key] = options[key]
    for switch, kind, section, fields in (
        ("use_deepspeed", "DEEPSPEED", "deepspeed_config", DEEPSPEED_FIELDS),
        ("use_fsdp", "FSDP", "fsdp_config", FSDP_FIELDS),
    ):
        if options.get(switch):
            values["distributed_type"] = kind
        own = {key: value for key, value in options.items() if key in fields}
        inner = values.get(section, {})
        if own and values.get("distributed_type") == kind and isinstance(inner, Mapping):
            values[section] = {**inner, **own}
    sizes = {key: value for key, value in options.items() if key in PARALLELISM_FIELDS}
    inner = values.get("parallelism_config") or {}
    if sizes and isinstance(inner, Mapping) and (inner or options.get("use_parallelism_config")):
        values["parallelism_config"] = {**inner, **sizes}
    if options.get("cpu"):
        values["use_cpu"] = True
    several = isinstance(values.get("num_processes"), int) and values.get("num_processes") != 1
    if "distributed_type" not in values:
        values["distributed_type"] = "MULTI_GPU" if several or options.get("multi_gpu") else "NO"
    return values


def with_words(arguments: Arguments) -> Arguments:
    """Return arguments with what the parser of the alignment handbook takes after a recipe: ``job.yaml beta=0.1``."""
    if not any(each.endswith((".yaml", ".yml")) for each in arguments.words):
        return arguments
    said, unread = (_pairs(each) for each in (arguments.words, arguments.unread))
    values = {**{key: typed(key, text) for key, text in said.items()}, **arguments.values}
    return replace(arguments, values=values, undecided={**unread, **arguments.undecided})


def _pairs(words: Sequence[str]) -> dict[str, str]:
    pairs = (each.partition("=") for each in words)
    return {key: text for key, is_pair, text in pairs if is_pair and key.isidentifier()}
