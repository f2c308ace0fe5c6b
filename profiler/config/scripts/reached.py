"""Which calls of a script run, and what of a model reaches its trainer: which load, and how it is loaded."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from profiler.config.foreign_text import Element, bindings_of
from profiler.config.scripts.declared import TRAINING_ARGUMENTS, Declared
from profiler.config.scripts.evaluation import Evaluator
from profiler.config.scripts.names import (
    APART,
    LOADER,
    PREPARES,
    RECIPES,
    called_name,
    is_main,
    owner_name,
    plain_name,
)
from profiler.config.trl.argument_keys import OF_LOADING, READ_BY_TRL


@dataclass
class Reached:
    """The calls of a script by what is known of the conditions above them."""

    certain: list[ast.Call] = field(default_factory=list)
    """Those under no condition that is unknown."""
    possible: list[ast.Call] = field(default_factory=list)
    """Those under a condition that the file does not decide."""
    passed: list[tuple[ast.Call, str]] = field(default_factory=list)
    """Those that do not run, each with the options whose defaults say so."""
    sets: list[tuple[ast.Assign, bool]] = field(default_factory=list)
    """Assignments to attributes that may run, with whether they are certain to."""

    @property
    def calls(self) -> list[ast.Call]:
        """Every call that may run, in order."""
        return sorted([*self.certain, *self.possible], key=lambda call: (call.lineno, call.col_offset))

    def set_on(self, names: Collection[str]) -> Iterator[tuple[str, ast.expr, bool]]:
        """Yield each attribute that is set on what `names` stand for, with its value and whether it is certain."""
        for node, is_certain in sorted(self.sets, key=lambda each: each[0].lineno):
            match node.targets[0]:
                case ast.Attribute(value=value, attr=key) if ast.unparse(value) in names:
                    yield key, node.value, is_certain


def reached_calls(tree: ast.Module, evaluator: Evaluator) -> Reached:
    """Return the calls of a script."""
    found = Reached()
    left: list[tuple[ast.AST, bool, str | None]] = [(tree, True, None)]
    while left:
        node, is_certain, why = left.pop()
        if isinstance(node, ast.Call):
            if why is not None:
                found.passed.append((node, why))
            else:
                (found.certain if is_certain else found.possible).append(node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute) and why is None:
            found.sets.append((node, is_certain))
        if isinstance(node, ast.If | ast.IfExp) and why is None:
            left.extend(_branches(node, is_certain, evaluator))
        elif isinstance(node, ast.FunctionDef) and why is None:
            left.extend(_until_it_returns(node, is_certain, evaluator))
        else:
            left.extend((child, is_certain, why) for child in ast.iter_child_nodes(node))
    return found


def settled(tree: ast.Module, *, has_line: bool) -> ast.Module:
    """Return a script without what it takes from modules and does not use, with names of trl's arguments spelled out.

    By hand: with ``Kind = SFTConfig`` and ``Kind = TrainingArguments`` in two branches ``Kind()`` is ``SFTConfig()``.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and not has_line]
    of_line = {ast.unparse(each) for each in calls if called_name(each) in ("from_cli", "from_dotlist")}
    bound_to = [pair for node in ast.walk(tree) for pair in bindings_of(node) if isinstance(pair[1], ast.Call)]
    of_line |= {name for name, value in bound_to if ast.unparse(value) in of_line}
    for given in [node for node in ast.walk(tree) if isinstance(node, ast.keyword | ast.Assign)]:
        given.value = _simplified(given.value, of_line)
    while spare := _spare(tree):
        tree.body = [each for each in tree.body if each not in spare]
    bound: dict[str, list[str]] = {}
    for name, value in [pair for node in ast.walk(tree) for pair in bindings_of(node)]:
        bound.setdefault(name, []).append(value.id if isinstance(value, ast.Name) else "")
    of_trl = {name: [each for each in values if each in RECIPES] for name, values in bound.items()}
    plain = {name for name, values in bound.items() if {*values} <= {*RECIPES, TRAINING_ARGUMENTS}}
    for node in [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]:
        node.id = of_trl[node.id][0] if node.id in plain and of_trl[node.id] else node.id
    return tree


def _simplified(value: ast.expr, of_line: Collection[str]) -> ast.expr:
    """Return ``text.split(",")`` of its parts without spaces, and what a merge or a copy of entries has from a file."""
    match value:
        case ast.DictComp(generators=[ast.comprehension(iter=ast.Call(func=ast.Attribute(value=whole, attr="items")))]):
            texts = [ast.unparse(each) for each in (value.key, value.value, value.generators[0].target)]
            tests = {ast.unparse(each) for each in value.generators[0].ifs} <= {f"{texts[1]} is not None"}
            return whole if tests and texts[2] == f"({texts[0]}, {texts[1]})" else value
        case ast.ListComp(elt=made, generators=[ast.comprehension(target=ast.Name(id=name), iter=whole, ifs=tests)]):
            kept = {ast.unparse(each) for each in (made, *tests)} <= {name, f"{name}.strip()"}
            return whole if kept and isinstance(whole, ast.Call) and called_name(whole) == "split" else value
        case ast.Call(func=ast.Attribute(attr="merge"), args=[first, *more]) if {*map(ast.unparse, more)} <= {*of_line}:
            return ast.copy_location(ast.Call(ast.Name("deepcopy", ast.Load()), [first], []), value)
    return value


def _spare(tree: ast.Module) -> set[ast.AST]:
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    made = [each for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.lineno > APART]
    return {each for each in made if not each.decorator_list and each.name not in named}


def _branches(
    node: ast.If | ast.IfExp, is_certain: bool, evaluator: Evaluator
) -> Iterator[tuple[ast.AST, bool, str | None]]:
    """Return the parts of a condition, with whether they run."""
    evaluator.taken.clear()
    holds = evaluator.holds(node.test)
    why = " and ".join(dict.fromkeys(evaluator.taken))
    yield node.test, is_certain, None
    for branch, runs in ((_listed(node.body), True), (_listed(node.orelse), False)):
        is_passed = holds is not None and holds is not runs
        yield from (
            (each, is_certain and (holds is not None or is_main(node)), why if is_passed else None) for each in branch
        )


def _until_it_returns(
    function: ast.FunctionDef, is_certain: bool, evaluator: Evaluator
) -> Iterator[tuple[ast.AST, bool, str | None]]:
    """Return the parts of a function: of one that returns values, none runs after a condition that holds and returns.

    By hand: of ``if not is_small: return None`` and ``return BitsAndBytesConfig()`` the second one does not run.
    """
    values = [each for each in ast.walk(function) if isinstance(each, ast.Return) and each.value is not None]
    why: str | None = None
    for child in ast.iter_child_nodes(function):
        yield child, is_certain, why
        match child:
            case ast.If(test=test, body=[*_, ast.Return(value=ast.expr())], orelse=[]) if why is None and values[1:]:
                evaluator.taken.clear()
                if evaluator.holds(test):
                    why = " and ".join(dict.fromkeys(evaluator.taken))


def _listed(branch: "ast.expr | Sequence[ast.stmt]") -> "Sequence[ast.AST]":
    return [branch] if isinstance(branch, ast.AST) else branch


_ADAPTED = ("PeftModel", "PeftModelForCausalLM", "PeftMixedModel")
"""Classes of peft whose loader takes the model first, and an adapter."""

ADAPTS = "get_peft_model"
_WRAPPERS = (ADAPTS, PREPARES, "compile", "prepare")
"""Functions that return the model that is their first argument."""

_CASTS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32"}
"""Methods that return the model in another type."""

_MERGES = "merge_and_unload"

_SELF_METHODS = ("to", "cuda", "train", "eval", "cpu", _MERGES, *_CASTS)
"""Methods that return the model."""

_MOST_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class Load:
    """A call that loads weights which reach the trainer."""

    call: ast.Call
    cast: str
    """The type into which they are cast after the load, or `PREPARES`; empty if they are not."""
    line: int = 0
    """The line that calls `PREPARES`; 0 if none does."""


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """What the trainer of a script gets as its model."""

    loads: tuple[Load, ...]
    is_name: bool
    """Whether it can be a name, which the trainer loads itself."""
    is_certain: bool
    """Whether every value of it was found."""
    adapter_line: int | None
    """The line that loads an adapter which is not merged; None if there is none."""
    is_text: bool = False
    """Whether it is a name and nothing else."""
    is_wrapped: bool = False
    """Whether peft has put an adapter into it that is not merged."""
    unseen_line: int | None = None
    """The line where a trainer gets a model of a caller that is not in the script, which makes no adapter itself."""


def trained_model(
    tree: ast.Module, expressions: list[ast.expr], reached: Reached, *, is_quantised: bool
) -> TrainedModel:
    """Return what the expressions are that trainers get as their model, by all assignments of what may run.

    Args:
        tree: The script.
        expressions: What trainers get.
        reached: The calls of the script.
        is_quantised: Whether its weights are: what prepares them counts also under a condition that is not known.
    """
    found = _Search(tree, reached, is_quantised=is_quantised).find(expressions)
    makes_adapter = any(called_name(each) in _MAKE_ADAPTERS for each in reached.calls)
    return found if makes_adapter else replace(found, unseen_line=_unseen_line(tree, expressions))


class _Search:
    def __init__(self, tree: ast.Module, reached: Reached, *, is_quantised: bool) -> None:
        self._passed, self._possible = {call for call, _ in reached.passed}, reached.possible
        self._is_quantised = is_quantised
        self._adapted = [each for each in reached.calls if owner_name(each) in _ADAPTED and called_name(each) == LOADER]
        self._assigned: dict[str, list[ast.expr]] = {}
        self._returned: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            for name, value in bindings_of(node):
                self._assigned.setdefault(name, []).append(value)
            if isinstance(node, ast.FunctionDef):
                values = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
                self._returned.setdefault(node.name, []).extend(each for each in values if each is not None)
        self._loads: dict[ast.Call, str] = {}
        self._adapter_line: int | None = None
        self._prepared_line = 0
        self._is_wrapped = False
        self._merges = any(isinstance(each, ast.Attribute) and each.attr == _MERGES for each in ast.walk(tree))
        self._is_name, self._is_text, self._is_certain = False, True, True
        self._seen: set[tuple[int, int | None, str]] = set()

    def find(self, expressions: list[ast.expr]) -> TrainedModel:
        """Return what the expressions are."""
        for expression in expressions:
            self._follow(expression, None, "")
        for call in () if expressions else self._adapted:  # The trainer gets its model in a dictionary.
            self._follow_call(call, None, "")
        loads = tuple(Load(call=call, cast=cast, line=self._prepared_line) for call, cast in self._loads.items())
        return TrainedModel(
            loads=loads,
            is_name=self._is_name,
            is_certain=self._is_certain and bool(expressions),
            is_text=self._is_name and self._is_text and self._is_certain and not loads,
            adapter_line=None if self._merges else self._adapter_line,
            is_wrapped=self._is_wrapped and not self._merges,
        )

    def _follow(self, expression: ast.expr, element: int | None, cast: str) -> None:
        """Look at the value of an expression, or at one element of it where it is a tuple."""
        key = (id(expression), element, cast)
        if key in self._seen or len(self._seen) > _MOST_STEPS:
            return
        self._seen.add(key)
        match expression:
            case ast.Tuple(elts=elements) if element is not None and element < len(elements):
                self._follow(elements[element], None, cast)
            case ast.IfExp(body=first, orelse=second):
                self._follow(first, element, cast)
                self._follow(second, element, cast)
            case ast.Constant(value=str()) | ast.JoinedStr():
                self._is_name = True
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
                self._follow_all(self._assigned.get(name, ()), cast)
            case ast.Call():
                self._follow_call(expression, element, cast)
            case _:
                # An attribute of parsed arguments is a name or unknown.
                self._is_name = self._is_name or isinstance(expression, ast.Attribute)
                named = _OF_NAMES.search(expression.attr.lower()) if isinstance(expression, ast.Attribute) else None
                self._is_text = self._is_text and named is not None
                self._is_certain = self._is_certain and isinstance(expression, ast.Attribute)

    def _follow_all(self, values: "list[ast.expr] | tuple[()]", cast: str) -> None:
        if not values:
            self._is_certain = False
        for value in values:
            element = value.element if isinstance(value, Element) else None
            self._follow(value.whole if isinstance(value, Element) else value, element, cast)

    def _follow_call(self, call: ast.Call, element: int | None, cast: str) -> None:
        if call in self._passed:
            return
        match call.func:
            case ast.Attribute(attr=name) if name == LOADER and call.args and owner_name(call) in _ADAPTED:
                self._adapter_line, self._is_wrapped = call.lineno, True
                self._follow(call.args[0], None, cast)
            case ast.Attribute(attr=name) if name == LOADER:
                # The name of a model is often bound again to what casts it.
                self._loads[call] = self._loads.get(call) or cast
            case ast.Attribute(value=inner, attr=name) if name in _SELF_METHODS:
                self._follow(inner, element, cast or _CASTS.get(name, "") or _type_of(call))
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _WRAPPERS and call.args:
                prepares = name == PREPARES and (call not in self._possible or self._is_quantised)
                if prepares:
                    self._prepared_line = call.lineno
                self._is_wrapped = self._is_wrapped or name == ADAPTS
                self._follow(call.args[0], None, cast or (PREPARES if prepares else ""))
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name) if self._returned.get(name):
                for value in self._returned[name]:
                    self._follow(value, element, cast)
            case _:
                self._is_certain = False


def _type_of(call: ast.Call) -> str:
    """Return the type in ``model.to(torch.bfloat16)`` or ``model.to(dtype=torch.bfloat16)``; empty if there is none."""
    named = [each.value for each in call.keywords if each.arg == "dtype"]
    for argument in (*named, *call.args):
        match argument:
            case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in _CASTS.values():
                return name
    return ""


_MAKE_ADAPTERS = ("LoraConfig", "get_peft_config", "get_peft_model")

_OF_NAMES = re.compile(r"name|path|id$|dir|checkpoint|repo")
"""Words in names of variables that hold the name of a model and not a model."""


def _unseen_line(tree: ast.Module, expressions: Sequence[ast.expr]) -> int | None:
    """Return the line where a trainer gets a parameter as its model that has no value in the script.

    By hand: ``model`` in ``def train(model): SFTTrainer(model=model)`` is one.
    """
    bound = {name for node in ast.walk(tree) for name, _ in bindings_of(node)}
    given = [each for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for each in _without_value(node)]
    texts = {each.arg for each in given if each.annotation is not None and "str" in ast.unparse(each.annotation)}
    unseen = {each.arg for each in given} - bound - texts
    for each in expressions:
        if isinstance(each, ast.Name) and each.id in unseen and not _OF_NAMES.search(each.id.lower()):
            return each.lineno
    return None


def _without_value(function: ast.FunctionDef) -> Sequence[ast.arg]:
    """Return the parameters of a function that have no default."""
    first, own = [*function.args.posonlyargs, *function.args.args], function.args
    named = [each for each, value in zip(own.kwonlyargs, own.kw_defaults, strict=True) if value is None]
    return [*first[: len(first) - len(own.defaults)], *named]


_SHOW = ("print", "debug", "info", "warning")


def unread_of_loading(tree: ast.Module, declared: Declared) -> frozenset[str]:
    """Return the fields of the script's `ModelConfig` that say how a model is loaded and that nothing reads.

    trl's trainers get no `ModelConfig`: of one that the script does not hand on, nothing reaches them. Nothing is
    returned where the script gives it to a function that is not known, or does not use it at all.
    """
    names = {name for name, kind in declared.parsed.items() if kind.of_trl == "ModelConfig"}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=made) if ast.unparse(made).startswith("ModelConfig("):
                names.add(name)
    read: set[str] = set()
    known = 0
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=field) if name in names:
                read.add(field)
                known += 1
            case ast.FormattedValue(value=ast.Name(id=name)) if name in names:
                known += 1
            case ast.Call():
                for found in _read_by(node, names, declared.functions):
                    read.update(found)
                    known += 1
    loads = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    every = sum(node.id in names for node in loads)
    if not read or known < every:
        return frozenset()
    return frozenset(field for field, readers in OF_LOADING.items() if read.isdisjoint(readers))


def _read_by(
    call: ast.Call, names: Collection[str], functions: Mapping[str, ast.FunctionDef]
) -> Iterator[Collection[str]]:
    """Return what a call reads of each `ModelConfig` that is its argument, where that is known."""
    name = called_name(call)
    given: list[tuple[ast.expr, str]] = [(each.value, each.arg or "") for each in call.keywords]
    parameters = [each.arg for each in functions[name].args.args] if name in functions else []
    given += [(each, parameters[at] if at < len(parameters) else "") for at, each in enumerate(call.args)]
    for value, parameter in given:
        if not (isinstance(value, ast.Name) and value.id in names):
            continue
        match name, call.args:
            case "getattr", [_, ast.Constant(value=str(field)), *_]:
                yield {field}
            case _ if name in READ_BY_TRL:
                yield READ_BY_TRL[name]
            case _ if name in _SHOW or plain_name(parameter) in map(plain_name, names):
                yield ()
