"""A Python script that trains with trl, read without running it: the literal arguments of the calls that configure it.

A name stands for a literal if the file binds it once, outside of conditions and loops. What is no literal becomes an
assumption, with its line. Of a value from the command line or the environment that is the script's own default.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from profiler.config.files.companion_files import LORA_NAMES, lora_values, with_inner_deepspeed
from profiler.config.files.foreign_formats import foreign_module
from profiler.config.foreign_text import MOST_DEPTH, parse_python
from profiler.config.notes import Note, not_counted
from profiler.config.options.reading import show
from profiler.config.scripts.defaults import OutsideValues
from profiler.config.scripts.models import LOADER, Load, trained_model
from profiler.config.scripts.names import bound_once, called_name, imported, owner_name
from profiler.config.trials.specification import DEFAULT_LORA_RANK
from profiler.config.trl.arguments.keys import KEY_OF, NEUTRAL_VALUES
from profiler.config.trl.config import PEFT_TARGETS, TRL_DEFAULTS
from profiler.config.trl.parts import Part
from profiler.domain.errors import Fault
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import key_named

_RECIPES = {"GRPOConfig": Recipe.GRPO, "RLOOConfig": Recipe.RLOO, "SFTConfig": Recipe.SFT}

_TRAINERS = {"GRPOTrainer": Recipe.GRPO, "RLOOTrainer": Recipe.RLOO, "SFTTrainer": Recipe.SFT}

_OTHER_CONFIGS = frozenset(
    """
    DPOConfig KTOConfig RewardConfig PPOConfig ORPOConfig CPOConfig BCOConfig OnlineDPOConfig GKDConfig
    NashMDConfig XPOConfig PRMConfig AsyncGRPOConfig AsyncGRPOTrainer A2POConfig GMPOConfig GOLDConfig IWOPDConfig
    SDFTConfig SDPOConfig TPOConfig DistillationConfig ServerDistillationConfig AsyncDistillationConfig
    """.split()  # noqa: SIM905
)
"""Arguments of trl's trainers that have no recipe here."""

_UNSLOTH = ("FastLanguageModel", "FastModel", "FastVisionModel")

_CAUSAL = ("ForCausalLM", "ForImageTextToText", "ForConditionalGeneration", "ForVision2Seq")

_BITSANDBYTES = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
"""trl's names of the fields of `BitsAndBytesConfig`."""

_LOADED = {
    "pretrained_model_name_or_path": "model_name_or_path",
    "torch_dtype": "dtype",
    "dtype": "dtype",
    "attn_implementation": "attn_implementation",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
}
"""trl's names of the arguments of `from_pretrained`."""

_DEFAULTS: Mapping[str, object] = {
    **TRL_DEFAULTS,
    "lora_rank": DEFAULT_LORA_RANK,
    "lora_target_modules": PEFT_TARGETS,
}
"""What is assumed where the script has no literal."""

_NAMES_OF_MODELS = ("model", "model_name_or_path", "pretrained_model_name_or_path")

_PATCHES_TRL = "unsloth"
"""The module that changes trl's trainers where it is imported."""

_ASKS_FOR_BFLOAT16 = ("is_bf16_supported", "is_bfloat16_supported")
"""What is true on every card since Ampere; the other value has as many bytes."""

_MOST_DIGITS = 15
"""Longest number that arithmetic may make."""

_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: left // right,
}


class _NoLiteralError(ValueError):
    """An expression whose value is not in the file."""


def script_part(name: str, text: str) -> Part:
    """Return what the calls in a script of trl say.

    Raises:
        ForeignTextError: It is not valid Python, or exceeds a limit.
    """
    return _Script(name, parse_python(text)).part()


@dataclass
class _Found:
    """What the calls say so far."""

    values: dict[str, object] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    """Keys of trl that are stated by no literal, with their line."""
    notes: list[Note] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


class _Script:
    """One script."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self._name, self._tree = name, tree
        self._literals = dict(bound_once(tree))
        self._outside = OutsideValues(tree)
        self._taken: list[str] = []
        self._calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self._found = _Found()

    def part(self) -> Part:
        found = self._found
        recipe = self._recipe()
        for call in self._called(*_RECIPES):
            self._read(call, {})
        for call in self._called("BitsAndBytesConfig"):
            self._read(call, _BITSANDBYTES, only=True)
        self._read_adapter()
        self._read_models()
        faults = [*self._foreign(), *found.faults]
        if recipe is None and not faults:
            problem = "calls neither GRPOConfig nor SFTConfig, so what it trains is not in the file"
            faults.append(Fault(key="config", found=self._name, problem=problem))
        part = Part(
            name=self._name,
            values=found.values,
            recipe=recipe,
            notes=(*found.notes, *self._assumed()),
            faults=tuple(faults),
        )
        return with_inner_deepspeed(part)

    def _recipe(self) -> Recipe | None:
        names = {**_RECIPES, **_TRAINERS}
        recipes = list(dict.fromkeys(names[called_name(call)] for call in self._called(*names)))
        if len(recipes) > 1:
            problem = f"trains by {' and '.join(recipes)}, and one recipe is allowed"
            self._found.faults.append(Fault(key="config", found=self._name, problem=problem))
        return recipes[0] if recipes else None

    def _foreign(self) -> Iterator[Fault]:
        others = list(dict.fromkeys(called_name(call) for call in self._called(*_OTHER_CONFIGS)))
        for other in others:
            problem = f"calls {other}, whose trainer has no recipe here; the recipes are {', '.join(Recipe)}"
            yield Fault(key="config", found=self._name, problem=problem)
        if not others:
            yield from self._of_other_program()

    def _of_other_program(self) -> Iterator[Fault]:
        """Return a fault if another program trains, or changes trl's trainers where it is imported, as Unsloth does."""
        unsloth = next((owner_name(call) for call in self._calls if owner_name(call) in _UNSLOTH), None)
        if unsloth is not None:
            problem = f"loads its model by Unsloth's {unsloth}, whose kernels have no formula here"
            yield Fault(key="config", found=self._name, problem=problem)
            return
        trained = {called_name(call) for call in self._called(*_RECIPES, *_TRAINERS)}
        names = list(imported(self._tree))
        modules = {module for module, name in names if not trained or name in trained or module == _PATCHES_TRL}
        other = foreign_module(modules)
        if other is not None:
            problem = f"trains with {other.name}, which it imports, and that is not read"
            yield Fault(key="config", found=self._name, problem=problem, hint=other.hint)

    def _called(self, *names: str) -> list[ast.Call]:
        return [call for call in self._calls if called_name(call) in names]

    def _read_adapter(self) -> None:
        calls = self._called("LoraConfig")
        if not calls:
            return
        fields: dict[str, object] = {}
        open_keys = set()
        for call in calls:
            for key, value, line in self._arguments(call):
                if not isinstance(value, ast.expr):
                    self._state(fields, key, value)
                elif key in LORA_NAMES:
                    open_keys.add(LORA_NAMES[key])
                    self._found.lines[LORA_NAMES[key]] = line
        stated, notes = lora_values(fields, name=self._name)
        self._found.values.update({key: value for key, value in stated.items() if key not in open_keys})
        self._found.notes.extend(notes)

    def _read_models(self) -> None:
        for call in self._called(LOADER):
            if owner_name(call).endswith("ForSequenceClassification"):
                self._read_reward_model(call)
        self._read_trained_model()
        for call in self._called(*_TRAINERS):
            if "model_name_or_path" in self._found.values:
                continue
            self._read(call, {"model": "model_name_or_path"}, first="model", only=True)
        for call in self._called("GRPOTrainer"):
            self._read_rewards(call)

    def _read_reward_model(self, call: ast.Call) -> None:
        model = self._literal_or_none(call.args[0]) if call.args else None
        if isinstance(model, str):
            self._found.values["reward_model_name_or_path"] = model
            self._found.notes.append(Note(key="", text=f"the reward model {model} in the policy's dtype"))
        else:
            self._found.notes.append(not_counted(f"the reward model of line {call.lineno}"))

    def _read_trained_model(self) -> None:
        """Read the loads that reach the trainer, or, where that cannot be seen, all loads of language models."""
        trained = trained_model(self._tree, [found for call in self._called(*_TRAINERS) for found in _model_of(call)])
        if trained.adapter_line is not None and "use_peft" not in self._found.values:
            self._found.faults.append(self._adapter_fault(trained.adapter_line))
        loads = trained.loads
        if not loads and not (trained.is_certain and trained.is_name):
            causal = [call for call in self._called(LOADER) if owner_name(call).endswith(_CAUSAL)]
            loads = tuple(Load(call=call, cast="") for call in causal)
        if loads and not trained.is_name:
            # trl ignores them for a model that is already loaded.
            self._found.values.pop("model_init_kwargs", None)
        for load in loads:
            self._read(load.call, _LOADED, first="pretrained_model_name_or_path", only=True)
            self._read_type(load)

    def _adapter_fault(self, line: int) -> Fault:
        problem = f"is that of the adapter which line {line} of {self._name} loads, and its file says what it is"
        hint = "Give tuning=lora with lora_rank= and lora_target_modules= of its adapter_config.json."
        return Fault(key="tuning", found="null", problem=problem, hint=hint)

    def _read_type(self, load: Load) -> None:
        """Read the type of the weights of a load: that of a later cast, or of the checkpoint if none is stated."""
        if load.cast:
            self._found.values["dtype"] = load.cast
        elif not {keyword.arg for keyword in load.call.keywords} & {"torch_dtype", "dtype", None}:
            self._state(self._found.values, "dtype", "auto")

    def _read_rewards(self, call: ast.Call) -> None:
        arguments = [keyword.value for keyword in call.keywords if keyword.arg == "reward_funcs"] or call.args[1:2]
        for argument in arguments:
            each = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
            names = [self._literal_or_none(one) for one in each]
            models = [name for name in names if isinstance(name, str)]
            self._found.values["reward_funcs"] = models
            # `GRPOTrainer` loads every text as a model, also one without a slash.
            loaded = self._found.values.get("reward_model_name_or_path")
            if models:
                known = loaded if isinstance(loaded, list) else [loaded] if loaded is not None else []
                self._found.values["reward_model_name_or_path"] = [*known, *models]

    def _read(self, call: ast.Call, names: Mapping[str, str], *, first: str = "", only: bool = False) -> None:
        """Read the arguments of a call.

        Args:
            call: The call.
            names: trl's names of arguments that are called otherwise there.
            first: The name of its first argument without a keyword; empty where that needs no memory.
            only: Whether no other arguments than those in `names` matter.
        """
        for argument, value, line in self._arguments(call, first=first):
            if only and argument not in names:
                continue
            key = names.get(argument, argument)
            if isinstance(value, ast.expr):
                self._found.lines[key] = line
            else:
                self._state(self._found.values, key, value)

    def _arguments(self, call: ast.Call, *, first: str = "") -> Iterator[tuple[str, object, int]]:
        """Return each argument with its value, or with its expression where that is no literal, and its line."""
        named = [(keyword.arg, keyword.value) for keyword in call.keywords]
        for argument, expression in [*[(first, value) for value in call.args[:1] if first], *named]:
            self._taken = []
            try:
                value = self._value(expression)
            except _NoLiteralError:
                value = expression
            else:
                self._note_defaults(argument, value, expression.lineno)
            if argument is not None:
                yield argument, value, expression.lineno
            elif isinstance(value, Mapping):
                for key, inner in value.items():
                    yield str(key), inner, expression.lineno
            else:
                where = f"{called_name(call)}, line {expression.lineno} of {self._name}"
                self._found.notes.append(Note(key="", text=f"trl's defaults for what ** adds to {where}"))

    def _note_defaults(self, argument: str | None, value: object, line: int) -> None:
        if self._taken and argument is not None:
            of = " and ".join(dict.fromkeys(self._taken))
            key = "model" if argument in _NAMES_OF_MODELS else KEY_OF.get(argument, "")
            text = f"{argument}={show(value)} (the default of {of} in line {line} of {self._name})"
            self._found.notes.append(Note(key=key, text=text))

    def _state(self, values: dict[str, object], key: str, value: object) -> None:
        if value is None:
            return
        known = values.setdefault(key, value)
        if known != value and (key in KEY_OF or key in NEUTRAL_VALUES):
            problem = f"is {show(known)} and {show(value)} in {self._name}, and one value is allowed"
            self._found.faults.append(Fault(key=key, found=show(value), problem=problem))

    def _assumed(self) -> Iterator[Note]:
        for key, line in self._found.lines.items():
            if self._found.values.get(key) is not None:
                continue
            where = f"line {line} of {self._name} has no literal"
            if key in KEY_OF:
                name = KEY_OF[key]
                default = _DEFAULTS.get(name, key_named(name).default)
                yield Note(key=name, text=f"{name}={show(default)} ({where})")
            elif key in NEUTRAL_VALUES:
                yield Note(key="", text=f"{key}={show((*NEUTRAL_VALUES[key], None)[0])} ({where})")
            elif key in ("load_in_4bit", "generation_batch_size", "deepspeed", "fsdp"):
                yield Note(key="", text=f"no {key} ({where})")

    def _literal_or_none(self, expression: ast.expr) -> object:
        try:
            return self._value(expression)
        except _NoLiteralError:
            return None

    def _value(self, expression: ast.expr, depth: int = 0) -> object:
        """Return the value of a literal, of a name of one, of `torch.bfloat16`, or of arithmetic with whole numbers.

        Of a value from outside of the script it is the default, which `_taken` then names.

        Raises:
            _NoLiteralError: It is none of these.
        """
        if depth > MOST_DEPTH:
            raise _NoLiteralError
        outside = self._outside.find(expression)
        if outside is not None:
            self._taken.append(outside.name)
            return self._value(outside.default, depth + 1)
        match expression:
            case ast.Constant(value=value):
                return value
            case ast.Call(func=ast.Name(id="int" | "float" as kind), args=[inner], keywords=[]):
                return self._number(kind, self._value(inner, depth + 1))
            case ast.Name(id=name) if name in self._literals:
                return self._value(self._literals[name], depth + 1)
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                return name
            case ast.IfExp(test=ast.Call() as test, body=body) if called_name(test) in _ASKS_FOR_BFLOAT16:
                return self._value(body, depth + 1)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [self._value(item, depth + 1) for item in items]
            case ast.Dict(keys=keys, values=values) if None not in keys:
                pairs = zip([key for key in keys if key is not None], values, strict=True)
                return {show(self._value(key, depth + 1)): self._value(value, depth + 1) for key, value in pairs}
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if all(each.arg for each in keywords):
                return {str(each.arg): self._value(each.value, depth + 1) for each in keywords}
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                positive = self._value(operand, depth + 1)
                if isinstance(positive, int | float):
                    return -positive
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return self._calculated(type(op), self._value(left, depth + 1), self._value(right, depth + 1))
        raise _NoLiteralError

    def _number(self, kind: str, value: object) -> int | float:
        if not isinstance(value, int | float | str) or len(str(value)) > _MOST_DIGITS:
            raise _NoLiteralError
        try:
            return int(value) if kind == "int" else float(value)
        except ValueError as error:
            raise _NoLiteralError from error

    def _calculated(self, operator: type[ast.operator], left: object, right: object) -> int:
        if not isinstance(left, int) or not isinstance(right, int) or (operator is ast.FloorDiv and right == 0):
            raise _NoLiteralError
        if max(abs(left), abs(right)) >= 10**_MOST_DIGITS:
            raise _NoLiteralError
        return _ARITHMETIC[operator](left, right)


def _model_of(call: ast.Call) -> list[ast.expr]:
    """Return the argument of a trainer that is its model."""
    return [keyword.value for keyword in call.keywords if keyword.arg == "model"] or call.args[:1]
