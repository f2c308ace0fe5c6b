"""The arguments of a program as `HfArgumentParser` reads them, and keys for `accelerate launch`.

The arguments of a program as `HfArgumentParser` of transformers reads them: ``--key value``, ``--key=value``, flags.

An option without a value is true, ``--no_key`` is false, and several values are a list. A dash in a name is an
underscore. Source: `transformers/hf_argparser.py` of transformers 5.23.

What a recipe of trl says to `accelerate launch` and to the environment.

`trl grpo --config recipe.yaml` passes keys that its arguments do not have to `accelerate launch`
(`trl/cli/commands/training.py` of trl 1.16), and sets the variables of `env` (`TrlParser.parse_args_and_config`).
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from profiler.config.files.companion_files import accelerate_part
from profiler.config.foreign_text import ForeignTextError, parse_json
from profiler.config.notes import Note
from profiler.config.options.reading import read_flag, show
from profiler.config.shell.values import Item, Value
from profiler.config.trl.argument_keys import FREE_KEYS, KEY_OF, MODEL_KEYS, NEUTRAL_VALUES
from profiler.config.trl.config import TRL_DEFAULTS
from profiler.config.trl.parts import JobFile
from profiler.domain.errors import Fault
from profiler.domain.trials.trial import key_named

_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_INT = re.compile(r"[+-]?[0-9](?:_?[0-9]){0,30}")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_WORDS = {"true": True, "false": False, "none": None, "null": None}
_NO = "no_"
_OWN_FLAGS = ("use_peft", "disable_dropout", "load_in_4bit", "packing")
"""Flags among the keys of trl that are no key of a trial."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What a line passes to a program."""

    values: Mapping[str, object] = field(default_factory=dict)
    undecided: Mapping[str, str] = field(default_factory=dict)
    """Options whose value the line does not state, with what it says: ``$MODEL``, or the values of several branches."""
    words: tuple[str, ...] = ()
    """What is neither an option nor its value."""
    unread: tuple[str, ...] = ()
    """Words whose text the line does not state, where further arguments may stand: ``$EXTRA_ARGS``."""

    def value(self, key: str) -> str:
        """Return the text of an option; empty if it is absent or has no one text."""
        found = self.values.get(key)
        return found if isinstance(found, str) else ""


def is_flag(key: str) -> bool:
    """Return whether a key of trl is true or false."""
    name = KEY_OF.get(key, "")
    default = TRL_DEFAULTS.get(name, key_named(name).default) if name else NEUTRAL_VALUES.get(key, (None,))[:1]
    only = default[0] if isinstance(default, tuple) and len(default) == 1 else default
    return key in _OWN_FLAGS or isinstance(only, bool)  # not by ==, because 1 == True


def typed(key: str, text: str) -> object:
    """Return the value of an argument's text."""
    if is_flag(key):
        flag = read_flag(text)
        return text if flag is None else flag
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if text[:1] in ("{", "["):
        try:
            return parse_json(text.encode())
        except ForeignTextError:
            return text
    return text


def read_arguments(items: Sequence[Item]) -> Arguments:
    """Return the arguments of a program; of an option that is repeated, the last value counts."""
    values: dict[str, object] = {}
    undecided: dict[str, str] = {}
    words: list[str] = []
    unread: list[str] = []
    left = list(items)
    while left:
        item = left.pop(0)
        option = _option(item)
        if option is None:
            (words if item.value.is_known else unread).append(item.value.text)
            continue
        key, text = option
        own: list[Item] = []
        while text is None and left and _option(left[0]) is None:
            own.append(left.pop(0))
        stated, further = _without_unknown_end(own)
        unread.extend(further)
        unclear = [each for each in (item, *stated) if not each.value.is_known or not each.is_certain]
        alike = _alike(key, unclear[-1].value) if unclear else None
        if unclear and alike is None:
            undecided[key] = _said(unclear, text)
            values.pop(key, None)
            continue
        undecided.pop(key, None)
        texts = [each.value.text for each in stated] if text is None else [text]
        key, value = _stated(key, texts if alike is None else [alike])
        values[key] = value
    return Arguments(values=values, undecided=undecided, words=tuple(words), unread=tuple(unread))


def _without_unknown_end(own: Sequence[Item]) -> tuple[Sequence[Item], list[str]]:
    """Return the values of an option, and the unknown words after stated ones, which may be further options."""
    known = [place for place, each in enumerate(own) if each.value.is_known]
    end = known[-1] + 1 if known else len(own)
    return own[:end], [each.value.text for each in own[end:]]


def full_names(arguments: Arguments, known: Collection[str] = ()) -> Arguments:
    """Return the arguments with the beginnings of names spelled out, as argparse takes them where only one fits.

    Args:
        arguments: The arguments.
        known: Further options of the program.
    """
    all_names = {*KEY_OF, *FREE_KEYS, *MODEL_KEYS, *NEUTRAL_VALUES, *known}

    def full(key: str) -> str:
        fitting = [name for name in all_names if name.startswith(key)] if key not in all_names else []
        return fitting[0] if len(fitting) == 1 else key

    return replace(
        arguments,
        values={full(key): value for key, value in arguments.values.items()},
        undecided={full(key): text for key, text in arguments.undecided.items()},
    )


def _option(item: Item) -> tuple[str, str | None] | None:
    """Return the name of an option, with the value that it has after ``=``; None for any other word."""
    found = _OPTION.fullmatch(item.value.text)
    return (found[1].replace("-", "_"), found[2]) if found is not None else None


def _stated(key: str, texts: Sequence[str]) -> tuple[str, object]:
    if not texts:
        base = key.removeprefix(_NO)
        return (base, False) if key.startswith(_NO) and is_flag(base) else (key, True)
    values = [typed(key, text) for text in texts]
    return key, values[0] if len(values) == 1 else values


def _alike(key: str, value: Value) -> str | None:
    """Return one of several weights of the reference, which need the same memory where none is 0; None of others."""
    texts = [each.rpartition("=")[2] for each in value.alternatives] if key == "beta" and not value.is_known else []
    return texts[0] if texts and all(_FLOAT.fullmatch(each) and float(each) for each in texts) else None


def _said(unclear: Sequence[Item], text: str | None) -> str:
    """Return what the line says of a value that it does not state."""
    value = unclear[-1].value
    if value.is_known:
        return f"{value.text}, in one branch"
    if value.alternatives:
        return " or ".join(each.partition("=")[2] if text is not None else each for each in value.alternatives)
    return text if text is not None else value.text


_PROCESSES = 8
"""`num_processes` of each file in `trl/accelerate_configs/`, trl 1.16."""


def _zero(stage: int) -> dict[str, object]:
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": stage}}


def _fsdp(version: int, reshards: object) -> dict[str, object]:
    inner = {"fsdp_version": version, "fsdp_reshard_after_forward": reshards}
    return {"distributed_type": "FSDP", "fsdp_config": inner}


ACCELERATE_CONFIGS: Mapping[str, Mapping[str, object]] = {
    "single_gpu": {"distributed_type": "NO"},
    "multi_gpu": {"distributed_type": "MULTI_GPU"},
    "zero1": _zero(1),
    "zero2": _zero(2),
    "zero3": _zero(3),
    "fsdp1": _fsdp(1, "FULL_SHARD"),
    "fsdp2": _fsdp(2, reshards=True),
}
"""What of each file in `trl/accelerate_configs/` of trl 1.16 decides memory; all have `mixed_precision: bf16`."""

_OF_TRL = re.compile(
    rf"(?:^|/)(?:examples|trl)/accelerate_configs/(?:deepspeed_)?({'|'.join(ACCELERATE_CONFIGS)})\.yaml$"
)
"""A path to such a file in trl's repository, where those of DeepSpeed were called `deepspeed_zero1.yaml` before 1.0."""


def of_trl(file: str) -> Mapping[str, object] | None:
    """Return what decides memory of accelerate's file that trl has under a name or a path; None if it has none."""
    found = _OF_TRL.search(file)
    name = file if found is None else found[1]
    if name not in ACCELERATE_CONFIGS:
        return None
    return {"num_processes": _PROCESSES, "mixed_precision": "bf16", **ACCELERATE_CONFIGS[name]}


_FILE = (".yaml", ".yml", ".json")

_ALLOC_CONF = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def launch_part(name: str, values: Mapping[str, object]) -> JobFile:
    """Return how processes share the work, as the recipe `name` says it to `accelerate launch`."""
    part = _config_part(name, values.get("accelerate_config"))
    if values.get("num_processes") is None or part.job.get("num_processes") == 1:
        return part
    return JobFile(
        name=name,
        values=part.values,
        job={**part.job, "num_processes": values["num_processes"]},
        notes=part.notes,
        faults=part.faults,
    )


def _config_part(name: str, config: object) -> JobFile:
    if config is None:
        return JobFile(name=name)
    content = of_trl(config) if isinstance(config, str) else None
    if content is not None:
        return accelerate_part(f"accelerate_config={config}", content)
    if isinstance(config, str) and config.endswith(_FILE):
        return JobFile(name=name, job={"accelerate_file": config})
    problem = f"must be a file, or one of {', '.join(ACCELERATE_CONFIGS)}"
    return JobFile(name=name, faults=(Fault(key="accelerate_config", found=show(config), problem=problem),))


def environment_notes(name: str, values: Mapping[str, object]) -> Iterator[Note]:
    """Return a note if the recipe sets how torch allocates, which a key of the trial counts."""
    env = values.get("env")
    for variable in _ALLOC_CONF if isinstance(env, Mapping) else ():
        if isinstance(env, Mapping) and env.get(variable):
            text = f"{variable}={show(env[variable])} of {name} (alloc_conf= counts it)"
            yield Note(key="alloc_conf", text=text, is_counted=False)
            return


@dataclass(frozen=True, kw_only=True)
class OutsideValue:
    """A value that the script takes from outside."""

    name: str
    """An option, ``--rows``, or an environment variable, ``$ROWS``."""
    default: ast.expr | None
    """None where the script states none."""
    keys: tuple[str, ...] = ()
    """The names of an option as arguments of a command line have them: ``max_rows``; none of a variable."""
    is_off: bool = False
    """Whether the option stands for false where it is passed."""


class OutsideValues:
    """The values that a script takes from outside, where each has one default."""

    def __init__(self, tree: ast.Module, functions: Mapping[str, ast.FunctionDef]) -> None:
        """Read the options of argparse in `tree`.

        Args:
            tree: The script.
            functions: Its functions by name.
        """
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self._options: dict[str, OutsideValue | None] = {}
        for call in calls:
            for name, found in _declared_option(call):
                self._options[name] = None if name in self._options else found
        self._namespaces = _namespaces(tree, functions)

    def options(self) -> Iterator[tuple[str, OutsideValue]]:
        """Return every option that is declared once, with the name of its attribute."""
        for name, found in self._options.items():
            if found is not None:
                yield name, found

    def is_namespace(self, name: str) -> bool:
        """Return whether a name stands for what argparse returns."""
        return name in self._namespaces

    def find(self, expression: ast.expr) -> OutsideValue | None:
        """Return what `expression` reads; None unless it is an option or a variable with a default."""
        match expression:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in self._namespaces:
                return self._options.get(name)
            case ast.Call(args=[name, default], keywords=[]) if _reads_environment(expression):
                variable = f"${ast.literal_eval(name)}" if isinstance(name, ast.Constant) else "an environment variable"
                return OutsideValue(name=variable, default=default)
        return None


def _declared_option(call: ast.Call) -> Iterator[tuple[str, OutsideValue]]:
    """Return the attribute of an `add_argument` call with its option."""
    match call.func:
        case ast.Attribute(attr="add_argument"):
            pass
        case _:
            return
    flags = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    named = {each.arg: each.value for each in call.keywords if each.arg is not None}
    long = [flag for flag in flags if flag.startswith("--")]
    if not long:
        return
    stated = named.get("dest")
    name = stated.value if isinstance(stated, ast.Constant) else long[0].removeprefix("--").replace("-", "_")
    default = named.get("default", _of_switch(named.get("action")))
    yield (
        str(name),
        OutsideValue(
            name=long[0],
            default=None if default is None else _as_argparse_does(named.get("type"), default),
            keys=tuple(flag.lstrip("-").replace("-", "_") for flag in flags if flag.startswith("-")),
            is_off=_is_store_false(named.get("action")),
        ),
    )


def _is_store_false(action: ast.expr | None) -> bool:
    return isinstance(action, ast.Constant) and action.value == "store_false"


def _as_argparse_does(kind: ast.expr | None, default: ast.expr) -> ast.expr:
    """Return a default after the type of its option: argparse converts one that is text."""
    match kind, default:
        case ast.Name(id="int" | "float"), ast.Constant(value=str()):
            return ast.Call(func=kind, args=[default], keywords=[])
    return default


def _of_switch(action: ast.expr | None) -> ast.expr | None:
    """Return the default of a switch, which argparse knows."""
    match action:
        case ast.Constant(value="store_true"):
            return ast.Constant(value=False)
        case ast.Constant(value="store_false"):
            return ast.Constant(value=True)
    return None


def _namespaces(tree: ast.Module, functions: Mapping[str, ast.FunctionDef]) -> set[str]:
    """Return the names of what `parse_args` returns, also where functions of the script return or get it."""
    found: set[str] = set()
    returned = {
        name: [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
        for name, node in functions.items()
    }
    before = -1
    while before < len(found):
        before = len(found)
        makers = {name for name, values in returned.items() if len(values) == 1 and _parses(values[0], found, ())}
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if _parses(value, found, makers):
                    found.add(name)
                case ast.Call(func=ast.Name(id=name), args=args) if name in functions:
                    pairs = zip(functions[name].args.args, args, strict=False)
                    found.update(each.arg for each, value in pairs if _parses(value, found, makers))
                case ast.Assign(
                    targets=[ast.Tuple(elts=[ast.Name(id=name), _])],
                    value=ast.Call(func=ast.Attribute(attr="parse_known_args")),
                ):
                    found.add(name)
    return found


def _parses(value: ast.expr | None, namespaces: Collection[str], makers: Collection[str]) -> bool:
    """Return whether an expression is what `parse_args` returns."""
    match value:
        case ast.Call(func=ast.Attribute(attr="parse_args")):
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in makers
        case ast.Name(id=name):
            return name in namespaces
    return False


def _reads_environment(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Attribute(attr="environ") | ast.Name(id="environ"), attr="get"):
            return True
        case ast.Attribute(attr="getenv") | ast.Name(id="getenv"):
            return True
    return False
