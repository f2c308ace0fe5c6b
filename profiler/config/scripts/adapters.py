"""What a trainer gets of what its script makes: adapters, quantised weights, references, transformers' arguments."""

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from profiler.config.files.companion_files import LORA_NAMES
from profiler.config.foreign_text import Element, bindings_of
from profiler.config.notes import Note, not_counted
from profiler.config.scripts.declared import TRAINING_ARGUMENTS, Declared
from profiler.config.scripts.names import (
    ANY,
    CAUSAL,
    LOADER,
    QUANTISES,
    Found,
    Where,
    called_name,
    given_argument,
    has_name,
    line_text,
    owner_name,
    plain_name,
)
from profiler.config.scripts.names import TRAINERS as TRAINERS_OF_TRL
from profiler.config.scripts.reached import Reached, TrainedModel
from profiler.config.scripts.variables import arguments_of
from profiler.config.trl.argument_keys import KEY_OF, OF_EARLY_TRAINERS, OF_OLD_TRAINERS
from profiler.config.trl.parts import JobFile
from profiler.config.trl_releases.facts import NEWEST, RELEASES, TRAINERS
from profiler.domain.errors import Fault
from profiler.domain.trials.recipe import Recipe

OLD_LENGTH = "max_seq_length"
"""The name of `max_length` in `SFTConfig` of trl 0.14 and 0.15."""

_CHANGES = ("replace",)
_COPIES = ("deepcopy", "copy", *_CHANGES)
"""Functions that return a copy of arguments, with what they state."""

_OF_SETATTR = 3
_SHOWS = ("print", "info", "debug", "warning", "log", "pprint")
"""Functions that show a value and hand it to nothing."""


_ASKED = ("r", "target_modules")
"""Arguments of `LoraConfig` without which an answer is of little use."""


def left_open(call: ast.Call, *, has_file: bool) -> list[str]:
    """Return the keys of a trial that a mapping may state, which a `LoraConfig` gets by ``**`` and which is not known.

    With a file of the script's own, which may have them, they are all that the call does not state.
    """
    named = {each.arg for each in call.keywords}
    return [LORA_NAMES[each] for each in (LORA_NAMES if has_file else _ASKED) if each not in named]


def unused_adapters(tree: ast.Module, calls: Sequence[ast.Call], reached: Reached) -> list[ast.Call]:
    """Return the calls whose value a script gives a name that nothing reads: ``# peft_config=peft_config``.

    Args:
        tree: The script.
        calls: Calls of `LoraConfig`.
        reached: The calls of the script.
    """
    shown = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called_name(node) in _SHOWS]
    left_out = {node for each in (*(call for call, _ in reached.passed), *shown) for node in ast.walk(each)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in left_out]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and node.value in calls]
    unused = [node.value for node in named if isinstance(node.targets[0], ast.Name) and node.targets[0].id not in read]
    return [call for call in calls if call in unused]


def of_trained(
    tree: ast.Module, made: Sequence[ast.Call], trained: TrainedModel | None, reached: Reached
) -> list[ast.Call]:
    """Return the calls of `BitsAndBytesConfig` that something gets, but for those of models that are not trained.

    These are in functions that only load such models, or have a name that nothing but loads of such models gets.
    """
    loads = [each.call for each in trained.loads] if trained is not None else []
    is_known = trained is not None and (trained.is_text or (bool(loads) and trained.is_certain))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    unused, found = unused_adapters(tree, made, reached), list[ast.Call]()
    for call in [each for each in made if each not in unused]:
        around = [each for each in functions if any(node is call for node in ast.walk(each))]
        inner = [*ast.walk(max(around, key=lambda each: each.lineno))] if around and (loads or is_known) else []
        loaded = [each for each in inner if isinstance(each, ast.Call) and called_name(each) == LOADER]
        own = [each for each in loaded if owner_name(each).endswith(CAUSAL)] or (
            _getting(tree, call) if is_known else []
        )
        found += [call] if not own or any(each in loads for each in own) else []
    return found


def read_bits(arguments: Sequence[tuple[str, object, int]], values: dict[str, object], where: Where) -> Iterator[Fault]:
    """State the type in which 4-bit weights are computed with by default, which is float32 (`BitsAndBytesConfig`).

    Yields a fault if the call does not say in the file whether weights have 4 bits.

    Args:
        arguments: Its arguments with their values, which are expressions where these are not in the file.
        values: What is stated.
        where: How sentences name a line.
    """
    if not {ANY, "bnb_4bit_compute_dtype"} & {name for name, _, _ in arguments}:
        values.setdefault("bnb_4bit_compute_dtype", "float32")
    lines = [line for name, value, line in arguments if name in (ANY, *QUANTISES) and isinstance(value, ast.expr)]
    if lines and not any(values.get(each) for each in QUANTISES):
        problem = f"is that of weights which are quantised by what is not in the file ({where(lines[0])})"
        yield Fault(key="tuning", found="null", problem=problem, hint="Give tuning=qlora, tuning=lora or tuning=full.")


def adapter_notes(
    reached: Reached, calls: Sequence[ast.Call], unused: Sequence[ast.Call], bits: Sequence[ast.Call], where: Where
) -> Iterator[Note]:
    """Yield the note of an adapter that is not trained, or of one whose condition is unknown on a given command line.

    Args:
        reached: The calls of the script.
        calls: Those of `LoraConfig` that count.
        unused: Those whose adapter no trainer gets.
        bits: Those that quantise weights.
        where: How sentences name a line.
    """
    for call, why in reached.passed:
        if called_name(call) == "LoraConfig" and not calls and why:
            yield Note(key="tuning", text=f"tuning=full (by {why}, {where(call.lineno)} makes no adapter)")
            return
    for call in unused[:1] if not calls else ():
        yield Note(key="tuning", text=f"tuning=full (no trainer gets the adapter of {where(call.lineno)})")
    for what, made in (("an adapter", calls), ("quantised weights", bits)):
        for call in [call for call in made if call in reached.possible][:1]:
            text = f"{what} ({where(call.lineno)} is under a condition that is not known)"
            yield Note(key="tuning", text=text)


def second_models(
    tree: ast.Module, call: ast.Call, where: Where, literal_or: Callable[[ast.expr, object], object]
) -> Iterator[Fault]:
    """Refuse a reference that trl keeps because it is given, where it would have none of its own."""
    given = [each for each in given_argument(call, "ref_model", 1) if not is_nothing(tree, each)]
    if any(literal_or(each, each) is not None for each in given):
        problem = "is a second model, which trl keeps where it would need none, and which has no formula here"
        yield Fault(key="ref_model", found=where(call.lineno), problem=problem, hint="Leave it out.")


def given_adapters(tree: ast.Module, trainers: Iterable[ast.Call], adapted: Iterable[ast.Call]) -> Sequence[ast.expr]:
    """Return what a script gives as the configuration of an adapter where it makes none itself, by `LoraConfig` or trl.

    Args:
        tree: The script.
        trainers: Calls of trainers, with `peft_config`.
        adapted: Calls of peft's `get_peft_model`, whose second argument it is.
    """
    made = {called_name(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    if made & {"LoraConfig", "get_peft_config"}:
        return ()
    given = [each.value for call in trainers for each in call.keywords if each.arg == "peft_config"]
    return [*given, *(call.args[1] for call in adapted if not owner_name(call) and call.args[1:])]


def apart(calls: Sequence[ast.Call], reached: Reached, where: Where) -> str:
    """Return which of several trainers gets an adapter, each under a condition that is not known; empty if all do.

    Args:
        calls: Those of trainers.
        reached: The calls of the script.
        where: How sentences name a line.
    """
    trainers = [each for each in calls if each in reached.possible]
    has = [bool(given_argument(each, "peft_config")) for each in trainers]
    if len(set(has)) < len((True, False)):
        return ""
    gets, lacks = (where(trainers[has.index(each)].lineno) for each in (True, False))
    return f"that one trainer gets ({gets}) and another one does not ({lacks})"


def is_nothing(tree: ast.Module, expression: ast.expr) -> bool:
    """Return whether a name stands for None in what a function returns: ``model, None`` for ``model, ref = load()``.

    A parameter stands for what the only call of its function gives.
    """
    name = expression.id if isinstance(expression, ast.Name) else ""
    for function in [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]:
        names = [each.arg for each in function.args.args]
        calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and called_name(each) == function.name]
        if name in names and len(calls) == 1:
            given = given_argument(calls[0], name, names.index(name))
            return not given or is_nothing(tree, given[0])
    found: list[ast.expr | None] = []
    for each, value in [pair for node in ast.walk(tree) for pair in bindings_of(node)]:
        if each == name and isinstance(value, Element) and isinstance(value.whole, ast.Call):
            found += _returned(tree, called_name(value.whole), value.element)
    return bool(found) and all(isinstance(each, ast.Constant) and each.value is None for each in found)


def _returned(tree: ast.Module, name: str, place: int) -> Iterator[ast.expr | None]:
    """Yield what each statement of a function returns at a place; None where that is no tuple."""
    for function in [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == name]:
        for node in [each for each in ast.walk(function) if isinstance(each, ast.Return)]:
            is_there = isinstance(node.value, ast.Tuple) and place < len(node.value.elts)
            yield node.value.elts[place] if is_there and isinstance(node.value, ast.Tuple) else None


def of_old_trainer(call: ast.Call, where: Where) -> Iterator[Fault]:
    """Refuse a trainer of preferences that takes what only one before 0.16 takes: that makes all logits.

    Source: `DPOTrainer.__init__` and `KTOTrainer.__init__` of trl 0.14 and 1.16. Of several calls of a script, one may
    be for another release (`except TypeError`).
    """
    for each in [each for each in call.keywords if each.arg in OF_OLD_TRAINERS][:1]:
        problem = (
            f"is an argument of {called_name(call)} of trl before 0.16, which is another one without a recipe here"
        )
        hint = f"Give trl={NEWEST} for what that of today needs."
        yield Fault(key=each.arg or "", found=line_text(call.lineno, where), problem=problem, hint=hint)


def given_in_vain(trainers: Sequence[ast.Call], where: Where) -> Iterator[str]:
    """Yield why a script cannot run that gives a trainer of trl what only its arguments have, in every release."""
    for call in [each for each in trainers if called_name(each) in TRAINERS_OF_TRL]:
        for each in [one.arg for one in call.keywords if one.arg in KEY_OF and one.arg not in OF_EARLY_TRAINERS][:1]:
            yield f"gives {each} to {called_name(call)} ({where(call.lineno)}), which has no such argument"


_OFF_IN_PLAIN = ("gradient_checkpointing", "bf16")
"""Keys that transformers' arguments leave off, and that are on in trl's from 0.22 and 0.19 on.

Source: `SFTTrainer.__init__` of trl 0.14 to 1.16, which makes ``SFTConfig(**args.to_dict())`` of them.
"""


def plain_arguments(
    declared: Declared, trainers: Sequence[ast.Call], known: Mapping[str, object], where: Where
) -> Iterator[Note]:
    """Yield a note per key that is off because a trainer of trl gets the arguments of transformers.

    Args:
        declared: What the script declares.
        trainers: Calls of trainers.
        known: Keys that are stated.
        where: How sentences name a line.
    """
    names = (TRAINING_ARGUMENTS, *declared.derived(TRAINING_ARGUMENTS))
    others = {name for name, kind in declared.parsed.items() if kind.of_trl != TRAINING_ARGUMENTS}
    made = declared.made_by(names) - others
    given = [each for call in trainers for each in given_argument(call, "args", 1)]
    if given and all(
        ast.unparse(each) in made or (isinstance(each, ast.Call) and called_name(each) in names) for each in given
    ):
        for key in [each for each in _OFF_IN_PLAIN if each not in known]:
            line = where(given[0].lineno)
            yield Note(
                key=KEY_OF.get(key, key), text=f"{key}=false (of {TRAINING_ARGUMENTS}, which {line} gives the trainer)"
            )


def names_of_arguments(
    tree: ast.Module, trainers: Sequence[ast.Call], configs: Sequence[ast.Call], declared: Declared
) -> set[str]:
    """Return what a script calls the arguments of its trainer, on which it may set more.

    By hand: ``def make(): cfg = SFTConfig(); return cfg`` and ``args = make()`` are ``cfg`` and ``args``.

    Args:
        tree: The script.
        trainers: Calls of trainers, of which own ones may change what they get.
        configs: Calls that make arguments.
        declared: What a parser of the script fills.
    """
    called = set(map(called_name, trainers))
    own = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name in called]
    given = [each for node in own for each in ast.walk(node) if isinstance(each, ast.arg)]
    found = declared.made_by({*map(called_name, configs)}) | {
        each.arg for each in given if plain_name(each.arg) == "args"
    }
    found |= {ast.unparse(each) for call in trainers for each in given_argument(call, "args") if has_name(each)}
    bound = [
        (ast.unparse(node.targets[0]), _made_of(node.value, tree))
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and has_name(node.targets[0])
    ]
    before = 0
    while before < len(found):
        before = len(found)
        found |= {name for name, sources in bound if sources & found}
        found |= {source for name, sources in bound if name in found for source in sources}
    return found


def _made_of(value: ast.expr, tree: ast.Module) -> set[str]:
    """Return the names that a value is, is a copy of, or that a function of the script returns as it."""
    if has_name(value):
        return {ast.unparse(value)}
    if not isinstance(value, ast.Call):
        return set()
    if called_name(value) in _COPIES and value.args:
        return _made_of(value.args[0], tree)
    own = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == called_name(value)]
    ends = [each.value for function in own for each in ast.walk(function) if isinstance(each, ast.Return)]
    return {ast.unparse(each) for each in ends if each is not None and has_name(each)}


def sets_on(
    reached: Reached, names: Collection[str], where: Where, found: Found
) -> Iterator[tuple[str, ast.expr, bool]]:
    """Yield what a script sets on its arguments: attributes, and those of `setattr` and of a changed copy.

    What it sets by names that are not in the file is named as not counted.
    """
    yield from reached.set_on(names)
    for call in reached.calls:
        is_own, is_certain = bool(call.args) and ast.unparse(call.args[0]) in names, call in reached.certain
        if is_own and called_name(call) in _CHANGES:
            yield from ((each.arg, each.value, is_certain) for each in call.keywords if each.arg is not None)
        if is_own and called_name(call) == "setattr" and len(call.args) == _OF_SETATTR:
            if isinstance(call.args[1], ast.Constant):
                yield str(call.args[1].value), call.args[2], is_certain
            else:
                found.notes.append(not_counted(f"what {where(call.lineno)} sets on the arguments"))


def _getting(tree: ast.Module, made: ast.Call) -> list[ast.Call]:
    """Return the loads that get what a call makes, by its name; none if anything else reads the name."""
    names = {each for node in ast.walk(tree) for each, value in bindings_of(node) if value is made}
    read = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    read = [node for node in read if node.id in names]
    loads = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and called_name(each) == LOADER]
    getting = [each for each in loads if any(keyword.value in read for keyword in each.keywords)]
    return getting if len(getting) == len(read) else []


_PIN = re.compile(r"\btrl(?:\[[\w,-]*\])?==(\d+\.\d+)")


def with_pin(part: JobFile, text: str, name: str = "") -> JobFile:
    """Return what a script says, with the release that its text, or the file of requirements `name`, installs."""
    pins, has_own = set(_PIN.findall(text)), name and any(" installs trl " in note.text for note in part.notes)
    if len(pins) != 1 or part.recipe is None or part.kernels is not None or has_own or "logprobs" in part.trial:
        return part
    name = name or part.name
    pin, known = pins.pop(), TRAINERS[part.recipe]
    if pin in RELEASES and pin in known:
        note = Note(key="", text=f"{name} installs trl {pin} (trl={pin} answers for that alone)")
        return replace(part, notes=(*part.notes, note))
    if known.first == RELEASES[0]:
        return part
    problem = f"is the release that {name} installs, whose {part.recipe.in_classes}Trainer is another one"
    hint = f"Give trl={NEWEST} for what that of today needs."
    fault = Fault(key="trl", found=pin, problem=f"{problem} without a recipe here; that of {known} has one", hint=hint)
    return replace(part, earlier=(*part.earlier, fault))


def of_run(names: Iterable[tuple[str, str]], tree: ast.Module, reached: Reached) -> list[tuple[str, str]]:
    """Return names that a script imports, without those of Unsloth for a load under a condition that does not hold."""
    passed = any(owner_name(call).startswith("Fast") and called_name(call) == LOADER for call, _ in reached.passed)
    above = {each.module for each in tree.body if isinstance(each, ast.ImportFrom)}
    return [each for each in names if not (passed and each[0].startswith("unsloth") and each[0] not in above)]


def has_more(call: ast.Call) -> bool:
    """Return whether a call passes on a mapping by ``**``."""
    return any(each.arg is None for each in call.keywords)


def given_several(tree: ast.Module, expression: ast.expr, calls: Sequence[ast.Call]) -> list[ast.expr]:
    """Return what each of several calls of a function gives the parameter that an expression is; nothing else."""
    name = expression.id if isinstance(expression, ast.Name) else ""
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        given = [arguments_of(function, each) for each in calls if called_name(each) == function.name]
        if name in {each.arg for each in function.args.args} and given[1:] and all(name in each for each in given):
            return [each[name] for each in given]
    return []


def sets_with_effect(
    sets: Iterable[tuple[str, ast.expr, bool]], recipe: Recipe | None, found: Found, where: Where
) -> Iterator[tuple[str, ast.expr, bool]]:
    """Yield what a script sets on its arguments, without what counts only where they are made.

    `SFTConfig` of trl 0.16 to 0.19 copies `max_seq_length` to `max_length` when it is made (`__post_init__` of
    `trl/trainer/sft_config.py`), and later ones do not have it: set afterwards, it counts with trl 0.14 and 0.15 alone.
    By hand, ``args.max_length = 1024`` and ``args.max_seq_length = 8192``: rows of 1,024 tokens.
    """
    every = list(sets)
    is_stated = "max_length" in {**found.values, **found.lines, **{key: None for key, _, _ in every}}
    for key, value, is_certain in every:
        if key != OLD_LENGTH or recipe is not Recipe.SFT:
            yield key, value, is_certain
        elif is_stated:
            text = f"max_length ({OLD_LENGTH}, which {where(value.lineno)} sets, counts up to trl 0.15 alone)"
            found.notes.append(Note(key="max_length", text=text))
        else:
            problem = f"is set after the arguments are made ({where(value.lineno)}), which trl 0.14 and 0.15 alone take"
            hint = "Give max_length= as well, which is 1024 by default in later releases."
            found.faults.append(Fault(key="max_length", found=OLD_LENGTH, problem=problem, hint=hint))
