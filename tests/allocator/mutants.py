"""The allocator's modules with one rule changed: what `test_mutation.py` proves the hand-worked sequences with."""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import profiler.allocator

MODULES = (
    "settings",
    "model.blocks",
    "model.card_memory",
    "model.caching",
)
"""In the order in which they import each other."""
PACKAGE = "profiler.allocator"
NAMES = (
    "AllocatorConfig",
    "BlockState",
    "CachingAllocator",
    "CardMemory",
    "FreeBlocks",
    "HeldBlock",
    "HeldSegment",
    "OutOfMemoryError",
    "Refusal",
    "addresses_descend",
    "block_bytes",
    "segment_bytes",
    "size_text",
)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    module: str
    line: str
    change: str
    code: CodeType

    def __str__(self) -> str:
        return f"{self.module.rpartition('.')[2]}: {self.line} | {self.change}"


@cache
def source_of(module: str) -> str:
    path = Path(profiler.allocator.__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    return path.read_text(encoding="utf-8")


def tree_of(module: str) -> ast.Module:
    return ast.parse(source_of(module))


@cache
def code_of(module: str) -> Any:
    return compile(tree_of(module), f"<{module}>", "exec")


def loaded(mutant: Mutant | None = None) -> SimpleNamespace:
    """The model, made anew from its source, with `mutant` in the place of its module."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(f"{PACKAGE}.")}
    model = SimpleNamespace()
    try:
        for name in MODULES:
            module = sys.modules[f"{PACKAGE}.{name}"] = ModuleType(f"{PACKAGE}.{name}")
            changed = mutant is not None and mutant.module == name
            code = mutant.code if changed and mutant else code_of(name)
            exec(code, module.__dict__)
            vars(model).update({key: module.__dict__[key] for key in NAMES if key in module.__dict__})
    finally:
        for name in [name for name in sys.modules if name.startswith(f"{PACKAGE}.")]:
            del sys.modules[name]
        sys.modules.update(kept)
    return model


COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}


@cache
def mutants(module: str) -> tuple[Mutant, ...]:
    return tuple(_mutants(module))


def _mutants(module: str) -> Iterator[Mutant]:
    """Every comparison turned and moved by one, every number, sum, `and`, `min` and condition changed."""
    tree, lines = tree_of(module), source_of(module).splitlines()
    for node in list(ast.walk(tree)):
        for variant in range(_variants(node)):
            before = ast.unparse(node).splitlines()[0]
            undo = _change(node, variant)
            ast.fix_missing_locations(node)
            yield Mutant(
                module=module,
                line=lines[node.lineno - 1].strip(),
                change=f"{before} -> {ast.unparse(node).splitlines()[0]}",
                code=compile(tree, f"<{module}>", "exec"),
            )
            undo()


def _variants(node: ast.AST) -> int:
    if isinstance(node, ast.Compare):
        return sum(len(COMPARISONS.get(type(operator), ())) for operator in node.ops)
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return int(type(node.op) in OPERATORS)
    if isinstance(node, ast.Constant):
        return int(isinstance(node.value, int | float) and not isinstance(node.value, bool))
    if isinstance(node, ast.Call):
        return int(isinstance(node.func, ast.Name) and node.func.id in ("min", "max"))
    return int(isinstance(node, ast.BoolOp)) + 2 * int(isinstance(node, ast.If | ast.IfExp))


def _change(node: ast.AST, variant: int) -> Callable[[], None]:
    """Change a node in its tree; what changes it back."""
    match node:
        case ast.Compare(ops=operators):
            places = [(at, kind) for at, found in enumerate(operators) for kind in COMPARISONS.get(type(found), ())]
            at, kind = places[variant]
            return _set(node, "ops", [*operators[:at], kind(), *operators[at + 1 :]])
        case ast.BinOp() | ast.AugAssign():
            return _set(node, "op", OPERATORS[type(node.op)]())
        case ast.Constant(value=int() | float() as value):
            return _set(node, "value", value + 1 if isinstance(value, int) else value + 0.25)
        case ast.Call(func=ast.Name() as name):
            return _set(name, "id", {"min": "max", "max": "min"}[name.id])
        case ast.BoolOp():
            return _set(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.If() | ast.IfExp():
            return _set(node, "test", ast.Constant(value=bool(variant)))
    raise AssertionError(f"no change for {node}")


def _set(node: ast.AST, field: str, value: object) -> Callable[[], None]:
    before = getattr(node, field)
    setattr(node, field, value)
    return lambda: setattr(node, field, before)
