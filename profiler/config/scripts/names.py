"""Names in the syntax tree of a Python script, those of the calls that configure a training, and what these say."""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeGuard

from profiler.config.files.file_kinds import assumed_note, assumed_value
from profiler.config.foreign_text import NoLiteralError, entries, parse_python
from profiler.config.notes import Note, not_counted
from profiler.config.options.reading import show
from profiler.config.trl.argument_keys import CONTAINERS, KEY_OF, LOADED
from profiler.config.trl_releases.facts import IS_LOADED, IS_WRAPPED
from profiler.domain.errors import Fault, shortened
from profiler.domain.trials.recipe import Recipe

Where = Callable[[int], str]
"""Returns how a sentence names a line of a script."""


APART = 1_000_000
"""Lines by which those of each module are moved."""

ModuleReader = Callable[[str], str | None]
"""Returns the text of a module of the user by its path, ``a/b.py``; None if there is none."""

OWN = "own "
"""What is before the name of a script's own class that has the name of one of trl's."""


def two_values(key: str, first: object, second: object, name: str, *, written: str = "") -> Fault:
    """Return the fault of a value that a script states twice.

    Args:
        key: The key of a trial that settles it; empty if none does.
        first: The value that it states first.
        second: The other one.
        name: The script.
        written: How the script writes the key, where none settles it.
    """
    problem = f"is {show(first)} and {show(second)} in {name}, and one value is allowed"
    hint = f"Give {key}= as well, or keep one training in the file." if key else ""
    return Fault(key=key or written, found=show(second), problem=problem, hint=hint)


def show_of(expression: ast.expr) -> str:
    """Return a short expression as a sentence shows it."""
    return shortened(ast.unparse(expression), _LONGEST)


_LONGEST = 40
"""Most characters of an expression in a sentence."""


def line_text(line: int, where: Where) -> str:
    """Return how a short sentence names a line: by its number, and that of a module by its file as well."""
    return f"line {line}" if line < APART else where(line)


def called_name(call: ast.Call) -> str:
    """Return `f` of ``f(...)`` and of ``x.f(...)``; empty if what is called has no name."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def owner_name(call: ast.Call) -> str:
    """Return `Auto` of ``transformers.Auto.from_pretrained(...)``; empty if the call has no owner."""
    match call.func:
        case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def has_name(base: ast.expr) -> TypeGuard[ast.Name | ast.Attribute]:
    """Return whether what a class derives from has a name."""
    return isinstance(base, ast.Name | ast.Attribute)


def plain_name(name: str) -> str:
    """Return the name that a script has for a variable, also where others of that name made another one of it."""
    return name.rpartition(".")[2]


def of_classes(derived: Mapping[str, str], recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """Return the recipes of the script's own classes by those of trl from which they derive."""
    return {name: recipes[base] for name, base in derived.items()}


def by_recipe(classes: Mapping[str, Recipe], recipe: Recipe) -> dict[str, Recipe]:
    """Return the classes of one recipe."""
    return {name: each for name, each in classes.items() if each is recipe}


def given_argument(call: ast.Call, name: str, place: int | None = None) -> list[ast.expr]:
    """Return the argument of a call that has a name or, without one, a place; nothing if it is absent or None."""
    found = [keyword.value for keyword in call.keywords if keyword.arg == name]
    found = found or ([] if place is None else call.args[place : place + 1])
    return [each for each in found if not (isinstance(each, ast.Constant) and each.value is None)]


def parse_script(text: str) -> ast.Module:
    """Return the syntax tree of a script without what follows its last training, where that is no part of a function.

    A notebook often loads what it has trained again, by the same names, to try it.

    Raises:
        ForeignTextError: It is not valid Python, or exceeds a limit.
    """
    tree = parse_python(text)
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        last = training_end(ast.Module(body=function.body, type_ignores=[]))
        function.body = [each for each in function.body if last is None or each.lineno <= last or not _loads(each)]
    end = training_end(tree)
    return tree if end is None else ast.Module(body=[each for each in tree.body if each.lineno <= end], type_ignores=[])


def _loads(statement: ast.stmt) -> bool:
    """Return whether a statement gives a model that it loads a name."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(value, ast.Call) and called_name(value) == LOADER


def training_end(tree: ast.Module) -> int | None:
    """Return the line of the last statement that trains; None where no statement outside of functions makes a trainer.

    By hand: ``trainer = GRPOTrainer(...)`` in line 1, ``trainer.train()`` in line 2 and ``model = None`` in line 3
    return 2.
    """
    called = [
        (each, {called_name(node) for node in ast.walk(each) if isinstance(node, ast.Call)})
        for each in tree.body
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    makes = [each.lineno for each, names in called if any(name.endswith("Trainer") for name in names)]
    return max([*makes, *(each.lineno for each, names in called if "train" in names)]) if makes else None


def runs_always(body: list[ast.stmt], wanted: ast.Return) -> bool:
    """Return whether a statement runs whenever its function does."""
    return any(each is wanted or (isinstance(each, ast.With) and runs_always(each.body, wanted)) for each in body)


def is_main(node: ast.AST) -> TypeGuard[ast.If]:
    """Return whether a statement asks whether the script is started."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and ast.unparse(node.test.left) == "__name__"


RECIPES = {f"{recipe.in_classes}Config": recipe for recipe in Recipe}

TRAINERS = {**{f"{recipe.in_classes}Trainer": recipe for recipe in Recipe}, "UnslothTrainer": Recipe.SFT}

LOADER = "from_pretrained"
"""The method that loads a model."""

CAUSAL = ("ForCausalLM", "ForImageTextToText", "ForConditionalGeneration", "ForVision2Seq")

ANY = "**"
"""The name of arguments that are a mapping."""

_LOADED_BY = {"model_init_kwargs": ("dtype", "attn_implementation")}
"""What a mapping may state among what a script adds to it."""

SCORES = "ForSequenceClassification"
"""The end of classes of models that score rows."""
_SCORES_ROWS = "trains a model that scores rows, and recipe=reward alone has a formula for one"

NAMES_OF_MODELS = ("model", "model_name_or_path", "pretrained_model_name_or_path")

PREPARES = "prepare_model_for_kbit_training"
"""The function of peft that casts weights of 16 bits to float32 (`peft/utils/other.py`, 0.21)."""

QUANTISATION = "quantization_config"
MAKES_BITS = frozenset({"BitsAndBytesConfig", "get_quantization_config"})

RECOMPUTES = ("gradient_checkpointing_enable", PREPARES)
"""Functions that make a model compute layers again in its backward pass."""


@dataclass
class Found:
    """What the calls of a script say so far."""

    values: dict[str, object] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    """Keys of trl that are stated by no literal, with their line."""
    expressions: dict[str, ast.expr] = field(default_factory=dict)
    """What states them."""
    unread: dict[str, object] = field(default_factory=dict)
    """What is stated and reaches no trainer."""
    notes: list[Note] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    earlier: list[Fault] = field(default_factory=list)
    """What only a trainer of an earlier release takes."""
    job: dict[str, object] = field(default_factory=dict)
    """What else decides how trl reads the values."""

    def state_loaded(self, *, is_wrapped: bool) -> None:
        """Leave out what trl reads where it loads a model by its name: the script has loaded it, and may adapt it."""
        self.values.pop("model_init_kwargs", None)
        self.job |= {IS_LOADED: True, IS_WRAPPED: is_wrapped}

    def chosen(self, recipes: Sequence[Recipe], recipe: str, name: str) -> Recipe:
        """Return the recipe that the user chooses, and name those that are not answered."""
        others = " and ".join(each for each in recipes if each != recipe)
        text = f"the training of {name} by {recipe} (it also trains by {others}, which recipe= chooses)"
        self.notes.append(Note(key="", text=text))
        return Recipe(recipe)

    def refuse_second(self, key: str, first: object, second: object, name: str) -> None:
        """Refuse a key that the script `name` states twice."""
        self.faults.append(two_values(KEY_OF.get(key, ""), first, second, name, written=key))

    def refuse_apart(self, configs: Sequence[ast.Call], trainers: Sequence[ast.Call], where: Where) -> None:
        """Refuse keys that some of several trainings state and others do not: together they would be none of these.

        Args:
            configs: The calls that make the arguments of trainers.
            trainers: The calls of trainers. One alone may have its arguments in branches.
            where: How sentences name a line.
        """
        stated = [{keyword.arg: keyword.value for keyword in call.keywords if keyword.arg} for call in configs]
        keys = dict.fromkeys(key for each in stated for key in each if key in KEY_OF)
        for key in keys if min(len(configs), len(trainers)) > 1 else ():
            has = [call for call, each in zip(configs, stated, strict=True) if key in each]
            if len(has) < len(configs):
                lacks = next(call for call in configs if call not in has)
                problem = f"is of one training ({where(has[0].lineno)}) and not of another one ({where(lacks.lineno)})"
                own, value = KEY_OF[key], next(each[key] for each in stated if key in each)
                hint = f"Give {own}= as well, or keep one training in the file."
                self.faults.append(Fault(key=own, found=show_of(value), problem=problem, hint=hint))

    def state_entries(self, key: str, expression: ast.expr, read: Callable[[ast.expr], Mapping[str, object]]) -> None:
        """Read the entries of a mapping of which others are no literals, by what returns them or raises."""
        found: dict[str, object] = {}
        try:
            found |= read(expression) if key in CONTAINERS else {}
        except NoLiteralError:  # what it adds may state more: ``{"key": value, **other()}``
            written = dict(entries(expression))
            with suppress(NoLiteralError):
                found |= read(ast.Dict(keys=[ast.Constant(each) for each in written], values=[*written.values()]))
            stated = {LOADED.get(each, each) for each in found}
            found |= dict.fromkeys([each for each in _LOADED_BY.get(key, ()) if each not in stated], expression)
        unread = {LOADED.get(name, name): each for name, each in found.items() if isinstance(each, ast.expr)}
        self.lines |= {name: getattr(each, "lineno", expression.lineno) for name, each in unread.items()}
        known = {name: each for name, each in found.items() if not isinstance(each, ast.expr)}
        if known:
            self.values.setdefault(key, known)

    def refuse_set(self, key: str, where: str) -> None:
        """Leave out a value over which a script sets what is not in the file: neither it nor trl's default is right."""
        known = self.values.pop(key, None)
        if known is not None and key in KEY_OF:
            hint = f"Give {KEY_OF[key]}= as well."
            problem = f"is set to what is not in the file ({where})"
            self.faults.append(Fault(key=KEY_OF[key], found=show(known), problem=problem, hint=hint))

    def refuse_scoring(self, call: ast.Call, classes: object, where: Where) -> None:
        """Refuse a trained model that scores rows in another recipe, which counts logits of the whole vocabulary."""
        if classes is CAUSAL and owner_name(call).endswith(SCORES):
            self.faults.append(Fault(key="config", found=where(call.lineno), problem=_SCORES_ROWS))

    def turn_off(self, notes: Iterator[Note]) -> None:
        """State keys as false that notes say are so: ``key=false (why)``."""
        for note in notes:
            self.notes.append(note)
            self.values[note.text.partition("=")[0]] = False

    def read_type(self, call: ast.Call, cast: str, line: int, where: Where) -> bool:
        """Read the type of loaded weights, which is that of a later cast; return whether it is the checkpoint's."""
        stated = {keyword.arg for keyword in call.keywords}
        if cast == PREPARES and self.is_float32(line, where):
            self.values["dtype"] = "float32"
        elif cast not in ("", PREPARES):
            self.values["dtype"] = cast
        else:
            return self.values.get("dtype") != "auto" and not stated & {"torch_dtype", "dtype", None}
        return False

    def state_recomputed(self, calls: Sequence[ast.Call], possible: Sequence[ast.Call], where: Where) -> None:
        """Read that a script makes its model compute layers again, where the arguments of the trainer do not say it.

        Args:
            calls: Calls of `gradient_checkpointing_enable` and of peft's `prepare_model_for_kbit_training`.
            possible: Those under a condition that is not known.
            where: How sentences name a line.
        """
        key = "gradient_checkpointing"
        for call in calls:
            if called_name(call) == PREPARES and call in possible and self.values.get("load_in_4bit") is not True:
                continue  # what asks for it is most often whether weights are quantised
            asked = given_argument(call, "use_gradient_checkpointing", 1) if called_name(call) == PREPARES else []
            if key in (*self.values, *self.lines) or any(
                isinstance(each, ast.Constant) and not each.value for each in asked
            ):
                continue
            self.values[key] = True
            self.notes.append(Note(key=key, text=f"{key}=true ({where(call.lineno)} makes the model do it)"))

    def note_defaults(self, argument: str, value: object, taken: Sequence[str], where: str) -> None:
        """Name the options whose defaults say what an argument is."""
        if taken:
            key = "model" if argument in NAMES_OF_MODELS else KEY_OF.get(argument, "")
            text = f"{argument}={show(value)} (the default of {' and '.join(dict.fromkeys(taken))} in {where})"
            self.notes.append(Note(key=key, text=text))

    def state_several(self, key: str, values: Sequence[object], name: str) -> None:
        """Refuse a key that several calls of a function state otherwise."""
        known = [each for each in values if each is not None]
        others = [each for each in known if each != known[0]]
        if any(isinstance(each, ast.expr) for each in known):
            return
        if others:
            self.refuse_second(key, known[0], others[0], name)
        elif known and len(known) == len(values):
            self.values.setdefault(key, known[0])

    def refuse_adapter(self, which: str, names: str) -> None:
        """Refuse an adapter of which the script does not say all."""
        hint = f"Give tuning=lora with lora_rank= and lora_target_modules={names}."
        fault = Fault(key="tuning", found="null", problem=f"is that of the adapter {which}", hint=hint)
        self.faults.append(fault)

    def assumed(self, name: str, where: Where) -> Iterator[Note]:
        """Return the notes of what is stated without effect, and of what no literal states."""
        unread = self.unread.items()
        stated = [f"{key}={show(value)}" for key, value in unread if not isinstance(value, ast.expr)]
        if stated:
            why = f"{name} does not read them where it loads the model"
            yield Note(key="", text=f"no effect of {', '.join(stated)}: {why}")
        known = {KEY_OF.get(key, key) for key, value in self.values.items() if value is not None}
        unstated = [pair for pair in self.lines.items() if KEY_OF.get(pair[0], pair[0]) not in known]
        notes = (assumed_note(key, f"{where(line)} has no literal") for key, line in unstated)
        yield from (note for note in notes if note is not None)

    def read_reward_model(self, call: ast.Call, literal_or: Callable[[ast.expr, object], object]) -> None:
        """Read a model that scores completions."""
        model = literal_or(call.args[0], None) if call.args else None
        note = not_counted(f"the reward model of line {call.lineno % APART}")
        if isinstance(model, str):
            self.values["reward_model_name_or_path"] = model
            note = Note(key="", text=f"the reward model {model} in the policy's dtype")
        self.notes.append(note)

    def read_rewards(self, call: ast.Call, literal_or: Callable[[ast.expr, object], object]) -> None:
        """Read the models among what a trainer gets as rewards."""
        for functions in given_argument(call, "reward_funcs", 1):
            each = functions.elts if isinstance(functions, ast.List | ast.Tuple) else [functions]
            names = [literal_or(one, None) for one in each]
            self.values["reward_funcs"] = models = [name for name in names if isinstance(name, str)]
            # `GRPOTrainer` loads every text as a model, also one without a slash.
            loaded = self.values.get("reward_model_name_or_path", [])
            if models:
                known = loaded if isinstance(loaded, list) else [loaded]
                self.values["reward_model_name_or_path"] = [*known, *models]

    def state_rest(self, literal_or: Callable[[ast.expr, object], object], where: Where) -> None:
        """Read the length of completions that is what prompts of an open length leave of a stated one."""
        prompt, completion = "max_prompt_length", "max_completion_length"
        match self.expressions.get(completion):
            case ast.BinOp(left=whole, op=ast.Sub(), right=rest) as stated:
                most, assumed = literal_or(whole, None), assumed_value(prompt)
                alike = prompt in self.expressions and ast.dump(rest) == ast.dump(self.expressions[prompt])
                if alike and isinstance(most, int) and isinstance(assumed, int) and most > assumed:
                    self.values[completion] = most - assumed
                    text = f"{completion}={most - assumed} ({where(stated.lineno)} has {most} less {prompt})"
                    self.notes.append(Note(key=completion, text=text, is_open=True))

    def is_float32(self, line: int, where: Where) -> bool:
        """Return whether peft's `prepare_model_for_kbit_training` casts all weights, and name what it casts of others.

        It casts every weight of 16 bits that is not quantised.
        """
        if self.values.get("load_in_4bit") is not True:
            self.notes.append(Note(key="dtype", text=f"dtype=float32 ({where(line)} casts all weights to it)"))
            return True
        what = f"embedding, norms and head in float32, to which {where(line)} casts them"
        self.notes.append(not_counted(f"{what} (the figure may be too low)"))
        return False


ASKS_FOR_BFLOAT16 = ("is_bf16_supported", "is_bfloat16_supported")
"""What is true on every card since Ampere; the other value has as many bytes."""

ASKS_FOR_GPU = ("cuda", "is_available")
"""What is true where memory of a GPU is asked for."""

ASKS_FOR_ADAPTER = "is_adapter_model"
"""What alignment-handbook asks before it loads an adapter's base; an answer is for a model of which none is known."""

LOADS = ("safe_load", "full_load", "load", "load_config", "load_yaml")
"""Functions that return the content of a file with keys."""

COPIES = ("deepcopy", "to_container", "to_object", "snapshot_download", "Path", "list")
"""Functions that return what they get: two of OmegaConf, one whose folder has the model of its name, a path, a list."""

QUANTISES = ("load_in_4bit", "load_in_8bit")
"""Fields of `ModelConfig` that quantise weights, which are off by default."""
