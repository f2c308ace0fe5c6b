"""What a script is made of: modules of its own, other names of trl's classes, and cells that are not valid Python."""

import ast
import copy
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from profiler.config.foreign_text import MOST_NODES, Element, ForeignTextError, bindings_of, parse_python
from profiler.config.notes import Note, not_counted
from profiler.config.scripts.names import APART, LOADER, RECIPES, TRAINERS, ModuleReader, Where, called_name, has_name
from profiler.config.scripts.variables import without_aliases


def add_modules(tree: ast.Module, read: ModuleReader | None, where: Callable[[int], str]) -> Callable[[int], str]:
    """Add to a script what it takes from modules of its own, and return how sentences name a line of both.

    Args:
        tree: The script. Names that are found in a module are no longer imported, and ``module.NAME`` is one name.
        read: Returns the text of a module; None if none is read.
        where: How sentences name a line of the script.
    """
    if read is None:
        return where
    modules = _Modules(tree, read)
    modules.add()

    def said(line: int) -> str:
        return where(line) if line < APART else f"line {line % APART} of {modules.names[line // APART - 1]}"

    return said


class _Modules:
    """The modules of a script's own."""

    def __init__(self, tree: ast.Module, read: ModuleReader) -> None:
        self.names: list[str] = []
        self._tree, self._read = tree, read
        self._defined: dict[str, dict[str, list[ast.stmt]]] = {}
        self._asked: list[ast.stmt] = [each for each in ast.walk(tree) if isinstance(each, ast.Import | ast.ImportFrom)]
        self._added: set[int] = set()

    def add(self) -> None:
        """Add the statements of modules that bind what the script names."""
        while self._asked and len(self.names) < _MOST_MODULES:
            match self._asked.pop(0):
                case ast.ImportFrom() as node:
                    self._add_names(node)
                case ast.Import(names=names):
                    for each in names:
                        if each.asname or "." not in each.name:
                            self._add_whole(each.name.replace(".", "/"), each.asname or each.name)

    def _of(self, path: str) -> dict[str, list[ast.stmt]]:
        if path.partition("/")[0] in _LIBRARIES:
            return {}
        if path not in self._defined:
            paths = (f"{path}.py", f"{path}/__init__.py")
            self.names.append(name := next((each for each in paths if self._read(each) is not None), paths[0]))
            self._defined[path] = stated = _defined(self._read(name) or "", len(self.names))
            for each in [one for found in stated.values() for one in found if name == paths[1]]:
                if isinstance(each, ast.ImportFrom) and each.level:  # ``from .configs import Options``
                    each.module, each.level = f"{path}.{each.module or ''}".rstrip("."), 0
        return self._defined[path]

    def _add_names(self, node: ast.ImportFrom) -> None:
        path = (node.module or "").replace(".", "/")
        stated = self._of(path)
        named = {each.name for each in node.names if each.asname is None}
        if "*" in named and stated:
            named = {"*", *(each.id for each in ast.walk(self._tree) if isinstance(each, ast.Name))}
        left = [each for each in ("*", *stated) if each in named and stated]
        for each in node.names:
            if not stated and path.partition("/")[0] not in _LIBRARIES:
                self._add_whole(f"{path}/{each.name}", each.asname or each.name)
        node.names = [each for each in node.names if each.name not in left]
        while left:
            for statement in stated.get(left.pop(), ()):  # once, also where several modules import it
                if id(statement) not in self._added:
                    self._added.add(id(statement))
                    self._tree.body.append(statement)
                    self._asked += [statement] if isinstance(statement, ast.ImportFrom) else []
                    left += [each.id for each in ast.walk(statement) if isinstance(each, ast.Name)]

    def _add_whole(self, path: str, bound: str) -> None:
        """Add what the script names as an attribute of a module, under the name ``module.NAME``."""
        used = {
            node.attr
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == bound
        }
        stated = self._of(path) if used else {}
        plain = {name for name, found in stated.items() if not isinstance(found[0], ast.ClassDef | ast.ImportFrom)}
        left, taken, found = list(used & plain), set[str](), dict[int, ast.stmt]()
        while left:
            taken.add(name := left.pop())
            for statement in stated[name]:
                found[id(statement)] = statement
                names = {each.id for each in ast.walk(statement) if isinstance(each, ast.Name)}
                left += (names & plain) - taken
        renamed = {name: f"{bound}.{name}" for name in plain}
        self._tree.body += [_Renamed(renamed).visit(copy.deepcopy(each)) for each in found.values()]
        _OneName(bound, used & plain).visit(self._tree)


class _Renamed(ast.NodeTransformer):
    """Gives names of a module the name of that module too, where they are not a function's own."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Rename a name."""
        return ast.copy_location(ast.Name(id=self._names.get(node.id, node.id), ctx=node.ctx), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Rename a function, and what is not its own in it."""
        own = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
        own |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        node.name = self._names.get(node.name, node.name)
        return _Renamed({name: new for name, new in self._names.items() if name not in own}).generic_visit(node)


class _OneName(ast.NodeTransformer):
    """Makes one name of ``module.NAME``."""

    def __init__(self, bound: str, names: Collection[str]) -> None:
        self._bound, self._names = bound, names

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Replace an attribute of the module."""
        match node:
            case ast.Attribute(value=ast.Name(id=self._bound), attr=name) if name in self._names:
                return ast.copy_location(ast.Name(id=f"{self._bound}.{name}", ctx=node.ctx), node)
        self.generic_visit(node)
        return node


_MOST_MODULES = 20
"""How many modules are read."""

_LIBRARIES = (
    *("", "trl", "transformers", "peft", "torch", "datasets", "accelerate", "unsloth", "vllm", "bitsandbytes"),
    *sys.stdlib_module_names,
)


def _defined(text: str, number: int) -> dict[str, list[ast.stmt]]:
    """Return the statements of a module that bind each name, their lines moved; none if it is not valid Python."""
    found: dict[str, list[ast.stmt]] = {}
    try:
        tree = parse_python(text)
    except ForeignTextError:
        return found
    without_aliases(tree)
    for each in tree.body:
        ast.increment_lineno(each, number * APART)
        for name in dict.fromkeys(_bound_by(each)):
            found.setdefault(name, []).append(each)
    return found


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    """Return the names that a statement binds, also in its branches."""
    match statement:
        case ast.ImportFrom(names=names):
            yield from (each.asname or each.name for each in names)
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (each.id for each in targets if isinstance(each, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.If(body=body, orelse=other) if "__name__" not in ast.unparse(statement.test):  # not at an import
            for each in (*body, *other):
                yield from _bound_by(each)


_OPTIONS = "_options_of_fire"


def spell_out(tree: ast.Module) -> None:
    """Replace what a script leaves to fire or to ``**kwargs`` by what it stands for.

    By hand: ``def main(rows=4): f(batch=rows)`` with ``fire.Fire(main)`` is ``f(batch=options.rows)`` with an option of
    argparse. If that is the only call of ``f``, its ``GRPOConfig(**kwargs)`` is ``GRPOConfig(batch=options.rows)``.
    """
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    calls: dict[str, list[ast.Call]] = {}
    for node in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
        match node.func:
            case ast.Attribute(value=ast.Name() as run, attr="remote" | "local" | "spawn") if run.id in functions:
                node.func = run  # of Modal and Ray
        calls.setdefault(called_name(node), []).append(node)
    for call in calls.get("Fire", ())[:1]:
        if call.args and isinstance(call.args[0], ast.Name) and call.args[0].id in functions:
            _take_options(tree, functions[call.args[0].id])
    left = MOST_NODES
    for name, function in functions.items():
        rest, given = function.args.kwarg and function.args.kwarg.arg, calls.get(name, ())
        own = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
        passed = [each for each in given[0].keywords if each.arg not in own] if given else []
        for inner in ast.walk(function) if rest is not None and len(given) == 1 else ():
            if not isinstance(inner, ast.Call) or left < 0:
                continue
            is_rest = [(each.arg, getattr(each.value, "id", "")) == (None, rest) for each in inner.keywords]
            several = [passed if rests else [each] for each, rests in zip(inner.keywords, is_rest, strict=True)]
            inner.keywords = [each for some in several for each in some]
            left -= len(inner.keywords)


def _take_options(tree: ast.Module, function: ast.FunctionDef) -> None:
    """Make the parameters of a function options of argparse, up to where it binds their names again."""
    given, first = function.args, [*function.args.posonlyargs, *function.args.args]
    names = [each.arg for each in (*first, *given.kwonlyargs)]
    defaults = [*[None] * (len(first) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    lines = ["_fire = argparse.ArgumentParser()"]
    for name, default in zip(names, defaults, strict=True):
        stated = f", default={ast.unparse(default)}" if default is not None else ""
        lines.append(f"_fire.add_argument('--{name}'{stated})")
    lines += [f"{_OPTIONS} = _fire.parse_args()", *(f"{_OPTIONS}_{name} = {_OPTIONS}.{name}" for name in names)]
    made = ast.parse("\n".join(lines)).body
    tree.body += [ast.increment_lineno(statement, function.lineno) for statement in made]
    last = dict.fromkeys(names, function.end_lineno or 0)
    for statement in [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in last:
                last[node.id] = min(last[node.id], statement.end_lineno or 0)
    function.args = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno <= last.get(node.id, 0):
            node.id = f"{_OPTIONS}_{node.id}"


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Return each module that the script imports, with the name that it takes from it; empty for the module itself."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((each.name, "") for each in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from (("." * level + (module or ""), each.name) for each in names)


def trains_without_trl(names: Collection[tuple[str, str]]) -> bool:
    """Return whether a script imports its trainer or its arguments, and nothing of trl, by `imported`."""
    modules = {module.partition(".")[0] for module, _ in names}
    return "trl" not in modules and any(name in RECIPES or name in TRAINERS for _, name in names)


def of_own_trainers(
    tree: ast.Module, trainers: Sequence[ast.Call], configs: Sequence[ast.Call], where: Where, unseen: Collection[str]
) -> Iterator[Note]:
    """Return a note per trainer that may need other memory than trl's, and per class of its arguments.

    Args:
        tree: The script.
        trainers: Calls of trl's trainers, of classes that derive from them, and of what gets trl's arguments as one.
        configs: Calls of their arguments.
        where: How sentences name a line.
        unseen: Classes of modules that are not here, which are taken as the arguments of a trainer.
    """
    called = {called_name(each) for each in (*trainers, *configs)}
    for module, name in imported(tree):
        is_of_trl = module.partition(".")[0] in ("trl", "unsloth", "transformers")
        is_named = name in called and (name in RECIPES or name.endswith("Trainer"))
        if (is_named or name in unseen) and not is_of_trl:
            yield Note(key="", text=f"{name} of {module} as trl's (that module may change it)")
    derived = derived_trainers(tree, TRAINERS)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in derived and node.name in called:
            for method in _replaced(node, _COMPUTES):
                replaced = f"which replaces that of {derived[node.name]} ({where(method.lineno)})"
                yield not_counted(f"{method.name} of {node.name}, {replaced}")


_COMPUTES = frozenset(
    """
    compute_loss _compute_loss training_step get_batch_loss_metrics get_batch_loss concatenated_forward
    _get_per_token_logps _get_per_token_logps_and_entropies _generate_and_score_completions _prepare_inputs
    create_optimizer prediction_step
    """.split()  # noqa: SIM905
)
"""Methods of trainers that need memory of a GPU."""


def _replaced(node: ast.ClassDef, names: Collection[str]) -> list[ast.FunctionDef]:
    """Return the methods of a class that compute themselves what those of the trainer do, which they do not call."""
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name in names]
    return [each for each in methods if f".{each.name}(" not in ast.unparse(each)]


def own_evaluation(tree: ast.Module, trainers: Sequence[ast.Call]) -> dict[str, object]:
    """Return that trl evaluates nothing, where the class of a trainer does so itself."""
    called = set(map(called_name, trainers))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name in called]
    return {"eval_strategy": "no"} if any(_replaced(node, ("prediction_step",)) for node in nodes) else {}


def derived_trainers(tree: ast.Module, trainers: Collection[str]) -> dict[str, str]:
    """Return the classes of the script that derive from a trainer, each with that one."""
    found: dict[str, str] = {}
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)):
        bases = [base.id if isinstance(base, ast.Name) else base.attr for base in node.bases if has_name(base)]
        trainer = next((found.get(base, base) for base in bases if base in trainers or base in found), None)
        if trainer is not None:
            found[node.name] = trainer
    return found


def foreign_trainers(
    tree: ast.Module, trainers: Sequence[ast.Call], config: str, calls: Sequence[ast.Call], where: Where
) -> Iterator[str]:
    """Return what is wrong with a trainer that is none of trl's, although its name or its arguments are.

    Args are those of `of_own_trainers`, the class of arguments of trl that is made or parsed, and calls that may run.
    """
    called = set(map(called_name, trainers))
    for name, line in _own_trainers(tree, {*TRAINERS, *called}).items():
        for each in sorted(called & {name, *derived_trainers(tree, {name})}):
            yield f"trains by a class {each} of its own ({where(line)}), which derives from none of trl"
    plain = plain_trainers(tree)
    for call in [call for call in calls if called_name(call) in plain][: bool(config and not trainers)]:
        said = f"{called_name(call)} ({where(call.lineno)})"
        yield f"gives {config} to {said}, which is no trainer of trl"


_OF_TRANSFORMERS = ("Trainer", "Seq2SeqTrainer")


def plain_trainers(tree: ast.Module) -> set[str]:
    """Return the names of transformers' trainers, and of the script's classes that derive from them."""
    return {*_OF_TRANSFORMERS, *derived_trainers(tree, _OF_TRANSFORMERS)}


def given_arguments(tree: ast.Module, calls: Sequence[ast.Call]) -> list[str]:
    """Return what of the calls gets ``args`` as a trainer does, and is none of transformers'."""
    given = {called_name(each) for each in calls if any(key.arg == "args" for key in each.keywords)}
    return sorted(name for name in given - plain_trainers(tree) if name.endswith("Trainer"))


def _own_trainers(tree: ast.Module, trainers: Collection[str]) -> dict[str, int]:
    """Return the classes of the script with the name of a trainer of trl that derive from none, with their lines."""
    of_trl = {name for module, name in imported(tree) if module.partition(".")[0] == "trl"}
    derived = derived_trainers(tree, of_trl.union(trainers))
    classes = {node.name: node.lineno for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return {name: line for name, line in classes.items() if name in trainers and name not in derived}


_CONFIGURES = re.compile(
    r"\b(?:\w*Config|\w*Trainer|TrainingArguments|\w*(?:AutoModel|FastLanguageModel|ForCausalLM)\w*|get_peft_model|"
    r"prepare_model_for_kbit_training|gradient_checkpointing_enable)\b"
)
"""What a text names that makes a trainer, its arguments, its model or an adapter."""

_OF_DATA = ("processing_class", "tokenizer", "data_collator", "callbacks", "formatting_func", "compute_metrics")
_SETS = re.compile(r"^([^(#=]+?)(?::[^=(]+)?\s*[-+*/]?=(?!=)", re.MULTILINE)
"""What is to the left of an assignment."""


def may_set(text: str, tree: ast.Module) -> bool:
    """Return whether a text that is not valid Python may set what the training of a script depends on.

    Args:
        text: A part of a script, such as a cell of a notebook.
        tree: The rest of it.
    """
    values, called = _needed(tree)
    if _CONFIGURES.search(text) or called & set(re.findall(r"\b(?:def|class|import|as)\s+(\w+)", text)):
        return True
    stated = {word for left in _SETS.findall(text) for word in re.findall(r"\w+", left)}
    bound = re.findall(r"\b(?:for|import|as|del|global)\s+(\w+(?:\s*,\s*\w+)*)", text)
    return bool(values & {*stated, *(word for each in bound for word in re.findall(r"\w+", each))})


def _needed(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return the names whose values the calls that configure a training take, and those of functions that they call."""
    values: set[str] = set()
    called: set[str] = set()
    left: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (_CONFIGURES.search(called_name(node)) or called_name(node) == LOADER):
            keywords = [each for each in node.keywords if not (each.arg or "").endswith(("dataset", *_OF_DATA))]
            left += [*node.args, *(each.value for each in keywords)]
    assigned: dict[str, list[ast.expr]] = {}
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        for name, value in bindings_of(node):
            assigned.setdefault(name, []).append(value.whole if isinstance(value, Element) else value)
    while left:
        for node in ast.walk(left.pop()):
            if isinstance(node, ast.Call) and called_name(node) not in called:
                called.add(called_name(node))
                left += [functions[each] for each in (called_name(node),) if each in functions]
            elif isinstance(node, ast.Name) and node.id not in values:
                values.add(node.id)
                left += assigned.get(node.id, ())
    return values, called
