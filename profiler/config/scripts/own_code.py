"""What a script takes from modules of its own: statements, changed trainers, and names of trl's."""

import ast
import sys
from collections.abc import Callable, Collection, Iterator

from profiler.config.foreign_text import ForeignTextError, parse_python
from profiler.config.notes import Note
from profiler.config.scripts.names import RECIPES, TRAINERS, has_name

ModuleReader = Callable[[str], str | None]
"""Returns the text of a module of the user by its path, ``a/b.py``; None if there is none."""


def add_modules(tree: ast.Module, read: ModuleReader | None, where: Callable[[int], str]) -> Callable[[int], str]:
    """Add to a script what it takes from modules of its own, and return how sentences name a line of both.

    Args:
        tree: The script. Names that are found in a module are no longer imported.
        read: Returns the text of a module; None if none is read.
        where: How sentences name a line of the script.
    """
    if read is None:
        return where
    modules: dict[str, dict[str, list[ast.stmt]]] = {}
    asked = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    while asked and len(modules) < _MOST_MODULES:
        node = asked.pop(0)
        path = f"{(node.module or '').replace('.', '/')}.py"
        if path.partition("/")[0].removesuffix(".py") in _LIBRARIES:
            continue
        if path not in modules:
            text = read(path)
            modules[path] = _defined(text, len(modules) + 1) if text is not None else {}
        left = [each.name for each in node.names if each.asname is None and each.name in modules[path]]
        node.names = [each for each in node.names if each.name not in left]
        while left:
            for statement in modules[path].pop(left.pop(), ()):
                tree.body.append(statement)
                asked += [statement] if isinstance(statement, ast.ImportFrom) else []
                left += [each.id for each in ast.walk(statement) if isinstance(each, ast.Name)]
    names = list(modules)

    def said(line: int) -> str:
        return where(line) if line < _APART else f"line {line % _APART} of {names[line // _APART - 1]}"

    return said


_APART, _MOST_MODULES = 1_000_000, 20
"""Lines by which those of each module are moved, and how many modules are read."""

_LIBRARIES = (
    *("", "trl", "transformers", "peft", "torch", "datasets", "accelerate", "unsloth", "vllm", "bitsandbytes"),
    *sys.stdlib_module_names,
)


def _defined(text: str, number: int) -> dict[str, list[ast.stmt]]:
    """Return the statements of a module that bind each name, their lines moved; none if it is not valid Python."""
    found: dict[str, list[ast.stmt]] = {}
    try:
        body = parse_python(text).body
    except ForeignTextError:
        return found
    for each in body:
        ast.increment_lineno(each, number * _APART)
        names = [alias.asname or alias.name for alias in each.names] if isinstance(each, ast.ImportFrom) else []
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            names = [each.name]
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        for name in names:
            found.setdefault(name, []).append(each)
    return found


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Return each module that the script imports, with the name that it takes from it; empty for the module itself.

    A module of the script's own package begins with a dot.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((each.name, "") for each in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from (("." * level + (module or ""), each.name) for each in names)


def trains_without_trl(names: Collection[tuple[str, str]]) -> bool:
    """Return whether a script imports its trainer or its arguments, and nothing of trl.

    Args:
        names: As `imported` returns them.
    """
    modules = {module.partition(".")[0] for module, _ in names}
    return "trl" not in modules and any(name in RECIPES or name in TRAINERS for _, name in names)


def changed_trainers(names: Collection[tuple[str, str]], called: Collection[str]) -> Iterator[Note]:
    """Return a note per trainer of a trl that another module than trl gives to a script.

    Args:
        names: As `imported` returns them.
        called: The trainers that the script calls.
    """
    for module, name in names:
        if name in called and name in TRAINERS and module.partition(".")[0] not in ("trl", "unsloth"):
            yield Note(key="", text=f"{name} of {module} as trl's (that module may change it)")


def derived_trainers(tree: ast.Module, trainers: Collection[str]) -> dict[str, str]:
    """Return the classes of the script that derive from a trainer, each with that one."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = [base.id if isinstance(base, ast.Name) else base.attr for base in node.bases if has_name(base)]
            trainer = next((found.get(base, base) for base in bases if base in trainers or base in found), None)
            if trainer is not None:
                found[node.name] = trainer
    return found


def own_trainers(tree: ast.Module, trainers: Collection[str]) -> dict[str, int]:
    """Return the classes of the script with the name of a trainer of trl that derive from none, with their lines."""
    of_trl = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "trl"
        for alias in node.names
    }
    derived = derived_trainers(tree, of_trl.union(trainers))
    classes = {node.name: node.lineno for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return {name: line for name, line in classes.items() if name in trainers and name not in derived}
