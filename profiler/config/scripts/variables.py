"""Variables of a script: one name for each, the values that are bound to them once, and names of trl's classes."""

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce

from profiler.config.foreign_text import entries
from profiler.config.scripts.names import OWN, QUANTISATION, called_name, is_main, plain_name

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None
"""A function, or the script."""

_Variable = tuple[int, str]
"""A scope, by its place, and a name."""

_THIS = ("self", "cls")


def with_one_name_each(tree: ast.Module) -> None:
    """Rename variables of functions whose names other functions or the script bind as well.

    What a function gets or returns by the same name stays one variable: ``args`` of ``main(args)``.

    By hand: ``rows = 2`` and ``def f(): rows = 8`` become ``rows = 2`` and ``def f(): f.rows = 8``, two names.
    """
    _Variables(tree).rename()


class _Variables:
    def __init__(self, tree: ast.Module) -> None:
        self._scopes: list[Scope] = [None]
        self._above: list[int] = [0]
        self._own: list[set[str]] = [set()]
        self._uses: list[tuple[ast.Name | ast.arg, int]] = []
        self._calls: list[tuple[ast.Call, int, ast.expr | None]] = []
        self._returns: dict[int, list[ast.expr]] = {}
        self._kept: set[str] = {*_THIS}
        self._targets: dict[ast.Call, ast.expr] = {}
        self._same: dict[_Variable, _Variable] = {}
        self._visit(tree, 0)

    def _visit(self, node: ast.AST, scope: int) -> None:
        left: list[tuple[ast.AST, int]] = [(node, scope)]
        while left:
            node, scope = left.pop()
            inner = scope
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                    inner = len(self._scopes)
                    self._scopes.append(node)
                    self._above.append(scope)
                    self._own.append({each.arg for each in _parameters_of(node)})
                    self._uses += [(each, inner) for each in _parameters_of(node)]
                    defaults = (*node.args.defaults, *filter(None, node.args.kw_defaults))
                    decorators = () if isinstance(node, ast.Lambda) else node.decorator_list
                    left += [(each, scope) for each in (*defaults, *decorators)]
                    body = [node.body] if isinstance(node, ast.Lambda) else node.body
                    left += [(each, inner) for each in reversed(body)]
                    continue
                case ast.Name(id=name, ctx=ctx):
                    self._uses.append((node, scope))
                    if not isinstance(ctx, ast.Load):
                        self._own[scope].add(name)
                case ast.Global(names=names) | ast.Nonlocal(names=names):
                    self._kept.update(names)
                case ast.alias(name=name, asname=other):
                    self._kept.add(other or name)
                case ast.Assign(targets=[target], value=ast.Call() as call):
                    self._targets[call] = target
                case ast.Call():
                    self._calls.append((node, scope, self._targets.get(node)))
                case ast.Return(value=value) if value is not None:
                    self._returns.setdefault(scope, []).append(value)
            left += [(child, inner) for child in reversed(list(ast.iter_child_nodes(node)))]

    def rename(self) -> None:
        """Give each variable one name."""
        self._unite()
        groups: dict[str, set[_Variable]] = {}
        for scope, names in enumerate(self._own):
            for name in names - self._kept:
                groups.setdefault(name, set()).add(self._first((scope, name)))
        for node, scope in self._uses:
            name = node.arg if isinstance(node, ast.arg) else node.id
            variable = self._first((self._of(scope, name), name))
            if isinstance(node, ast.arg) and variable[0] != scope:
                node.arg = f"{scope}.{name}"  # it is bound where the call is
            elif variable[0] == 0 or len(groups.get(name, ())) <= 1:
                continue
            elif isinstance(node, ast.arg):
                node.arg = f"{variable[0]}.{name}"
            else:
                node.id = f"{variable[0]}.{name}"

    def _of(self, scope: int, name: str) -> int:
        """Return the scope that binds a name; the script if none does."""
        while scope and name not in self._own[scope]:
            scope = self._above[scope]
        return scope

    def _first(self, variable: _Variable) -> _Variable:
        while variable in self._same:
            variable = self._same[variable]
        return variable

    def _join(self, scope: int, function: int, name: str) -> None:
        """Make one variable of that of a function and that where it is called, which binds it."""
        caller, called = (self._first((self._of(each, name), name)) for each in (scope, function))
        if caller != called:
            self._same[called] = caller

    def _unite(self) -> None:
        """Make one variable of those that functions get, in every call, and return by the same name."""
        calls: dict[str, list[tuple[ast.Call, int, ast.expr | None]]] = {}
        for each in self._calls:
            calls.setdefault(called_name(each[0]), []).append(each)
        for function, node in enumerate(self._scopes):
            found = calls.get(node.name, []) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
            given = [set(_given_alike(call, node)) for call, _, _ in found if node is not None]
            for _, scope, target in found:
                for name in (*set.intersection(*given), *self._returned(function, target)):
                    if name not in self._kept:
                        self._join(scope, function, name)

    def _returned(self, function: int, target: ast.expr | None) -> Iterator[str]:
        for value in self._returns.get(function, ()) if target is not None else ():
            pairs = [(target, value)]
            if isinstance(value, ast.Tuple) and isinstance(target, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            for first, second in pairs:
                if isinstance(first, ast.Name) and isinstance(second, ast.Name) and first.id == second.id:
                    yield first.id


def _given_alike(call: ast.Call, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[str]:
    """Return the parameters that get a variable of their own name."""
    names = [each.arg for each in _parameters_of(node)]
    places = names[1:] if names[:1] in ([_THIS[0]], [_THIS[1]]) else names
    pairs = [*zip(places, call.args, strict=False), *((each.arg or "", each.value) for each in call.keywords)]
    yield from (name for name, value in pairs if isinstance(value, ast.Name) and value.id == name and name in names)


def _parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Sequence[ast.arg]:
    more = [each for each in (node.args.vararg, node.args.kwarg) if each is not None]
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *more]


def without_aliases(tree: ast.Module) -> None:
    """Give classes of libraries their own names in a script that imports them by others.

    By hand: ``from trl import GRPOConfig as Theirs`` and ``Theirs()`` become ``GRPOConfig()``, and a class GRPOConfig
    of the script gets another name.
    """
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    of_libraries = [node for node in imports if (node.module or "").partition(".")[0] in _NAMED]
    every = [each for node in of_libraries for each in node.names]
    renamed = {each.asname: each.name for each in every if each.asname is not None and each.asname != each.name}
    plain = {each.name for each in every if each.asname is None}
    own = {name: f"{OWN}{name}" for name in renamed.values() if name not in plain}
    for each in every if renamed else ():
        each.asname = None
    _rename(tree, {**own, **renamed})
    for node in imports if renamed else ():
        for each in node.names if node not in of_libraries else ():
            each.asname = own.get(each.name, each.asname) if each.asname is None else each.asname


def _rename(tree: ast.Module, names: Mapping[str, str]) -> None:
    for node in ast.walk(tree) if names else ():
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            node.name = names.get(node.name, node.name)


def with_own_classes(tree: ast.Module, classes: Collection[str]) -> None:
    """Give another name to each class of a script that has the name of one of trl's `classes` and derives from none."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    of_trl = {
        each.asname or each.name for node in imports if (node.module or "").startswith(_NAMED) for each in node.names
    }
    own = {
        node.name: f"{OWN}{node.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and node.name in classes
        and node.name not in of_trl
        and not any(ast.unparse(base).rpartition(".")[2] in classes for base in node.bases)
    }
    _rename(tree, own)


_NAMED = ("trl", "peft", "transformers", "unsloth")
"""Libraries whose classes configure a training by their names."""


Guards = tuple[tuple[ast.expr | None, bool], ...]
"""The conditions above a statement and what they must be; None for a loop."""

_UNKNOWN = ast.Slice()
"""An expression that has no value."""


def guarded(tree: ast.AST) -> Iterator[tuple[ast.AST, Guards]]:
    """Return every node in the order of the source, with the conditions above it."""
    left: list[tuple[ast.AST, Guards]] = [(tree, ())]
    while left:
        node, guards = left.pop()
        yield node, guards
        left += reversed([(child, (*guards, *_guards_of(node, child))) for child in ast.iter_child_nodes(node)])


def _guards_of(node: ast.AST, child: ast.AST) -> Guards:
    match node:
        case ast.If(test=test, body=body) if child is not test and not is_main(node):
            return ((test, child in body),)
        case ast.For() | ast.While():
            return ((None, True),)
        case ast.ExceptHandler() | ast.match_case():
            return ((_UNKNOWN, True),)
        case ast.ClassDef() if not isinstance(child, ast.FunctionDef):
            return ((_UNKNOWN, True),)  # fields are no names of their own; those that methods bind are
    return ()


def bound_once(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Return the names that the script binds once, outside of loops, with their values.

    A parameter of a function that is called once is what it gets there. A constant may be bound again to the same
    value, as cells of notebooks do. A name that conditions bind, or bind again, is what the last that holds says.
    """
    bound = _bindings(tree)
    stated: dict[str, list[ast.expr]] = {}
    conditional: dict[str, list[tuple[Guards, ast.expr]]] = {}
    for target, value in _parameters(tree):
        stated.setdefault(target, []).append(value)
    for target, value, guards, is_read in _assignments(tree):
        if not guards:
            stated.setdefault(target, []).append(value)
        elif met := tuple(each for each in guards if each[0] is not None):
            conditional.setdefault(target, []).append((met, _UNKNOWN if is_read and target in stated else value))
    for target, several in conditional.items():
        first = stated.get(target, [])
        if len(first) <= 1 and bound[target] == len(first) + len(several):
            yield target, reduce(_chosen, several, first[0] if first else _UNKNOWN)
    for target, values in stated.items():
        nodes = (node for value in values for node in ast.walk(value))
        is_constant = all(isinstance(node, ast.Constant | ast.List | ast.Tuple | ast.Load) for node in nodes)
        is_same = len({ast.dump(value) for value in values}) == 1 and is_constant
        if bound[target] == len(values) and (len(values) == 1 or is_same):
            yield target, values[0]


def _is_copy(node: ast.AST) -> bool:
    """Return whether a statement is one such as ``x = dict(x)``, which copies a value under its own name."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(keywords=[]) as call):
            return ast.unparse(call) in [each.format(name) for each in _COPIES]
    return False


_COPIES = ("dict({})", "{}.copy()", "copy({})", "deepcopy({})", "copy.copy({})", "copy.deepcopy({})")


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr, Guards, bool]]:
    """Return the names that statements bind, with values, conditions, and whether they are read before, in their order.

    What reads a name before a condition binds it again has read another value: none is known if the condition holds.
    """
    read: dict[str, list[Guards]] = {}
    for node, guards in guarded(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.setdefault(name, []).append(guards)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = zip(targets, values, strict=False) if len(targets) == len(values) else ()
                yield from ((each.id, value, guards, True) for each, value in pairs if isinstance(each, ast.Name))
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if not _is_copy(node):
                others = (any((test, not wanted) in guards for test, wanted in each) for each in read.get(name, ()))
                yield name, value, guards, not all(others)


def _chosen(before: ast.expr, each: tuple[Guards, ast.expr]) -> ast.expr:
    """Return the value of a name as one expression: what is bound if all conditions hold, else what it was.

    By hand: ``x = 1`` and ``if a: x = 2`` are ``2 if a else 1``.
    """
    guards, value = each
    for test, wanted in reversed(guards):
        body, other = (value, before) if wanted else (before, value)
        value = ast.copy_location(ast.IfExp(test=test or _UNKNOWN, body=body, orelse=other), each[1])
    return value


def _bindings(tree: ast.Module) -> Counter[str]:
    """Return how often each name is bound."""
    bound: Counter[str] = Counter()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if _is_copy(node):
                bound[name] -= 1
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                bound[name] += 1
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound[name] += 1
            case ast.alias(name=name, asname=other):
                bound[other or name] += 1
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                bound.update(names)
    return bound


def _parameters(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Return the parameters of functions that one call alone names, with its arguments or their defaults.

    What a call on another object names may be another function: of a method only what the call passes counts.
    """
    functions: dict[str, list[ast.FunctionDef]] = {}
    calls: dict[tuple[str, bool], list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Call):
            calls.setdefault((called_name(node), isinstance(node.func, ast.Attribute)), []).append(node)
    for name, (function, *others) in functions.items():
        is_method = _names_of(function)[:1] == ["self"]
        found = calls.get((name, is_method), [])
        if others or len(found) != 1 or any(isinstance(each, ast.Starred) for each in found[0].args):
            continue
        yield from arguments_of(function, found[0], with_defaults=not is_method).items()


def open_parameters(tree: ast.Module) -> dict[str, tuple[str, ast.expr]]:
    """Return the parameters of functions that only a command line or another file calls, with function and default."""
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    passed = {id(value) for call in calls if called_name(call) in _STARTS for value in call.args}
    named = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and id(each) not in passed}
    named |= {called_name(call) for call in calls if call.args and isinstance(call.func, ast.Attribute)}
    found: dict[str, tuple[str, ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name not in named and _names_of(node)[:1] != ["self"]:
            call = ast.Call(func=ast.Name(id=node.name), args=[], keywords=[])
            found.update({name: (node.name, value) for name, value in arguments_of(node, call).items()})
    bound = _bindings(tree)
    return {name: each for name, each in found.items() if bound[name] == 1}


_STARTS = ("Fire", "cli", "run")
"""Functions that make options of a command line of the parameters of a function: of fire, tyro and typer."""


def _names_of(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in (*function.args.posonlyargs, *function.args.args)]


def arguments_of(function: ast.FunctionDef, call: ast.Call, *, with_defaults: bool = True) -> dict[str, ast.expr]:
    """Return what the parameters of a function are in a call, as far as it or a default names them."""
    names = _names_of(function)
    stated: dict[str, ast.expr] = {}
    if with_defaults and all(each.arg is not None for each in call.keywords):  # ** may state any of them
        stated.update(zip(reversed(names), reversed(function.args.defaults), strict=False))
        keyed = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        stated.update({key.arg: default for key, default in keyed if default is not None})
    if names[:1] == ["self"] and isinstance(call.func, ast.Attribute):
        names = names[1:]
    stated.update(zip(names, call.args, strict=False))
    own = {plain_name(each.arg): each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
    stated.update({own.get(each.arg, each.arg): each.value for each in call.keywords if each.arg is not None})
    return stated


def with_quantisation(tree: ast.Module) -> None:
    """Make `BitsAndBytesConfig(...)` of each mapping with ``load_in_`` keys that is a ``quantization_config``."""
    # `AutoQuantizationConfig.from_dict` of transformers 5.23 does so.
    given = [each.value for each in ast.walk(tree) if isinstance(each, ast.keyword) and each.arg == QUANTISATION]
    names = {QUANTISATION, *(each.id for each in given if isinstance(each, ast.Name))}
    for node in ast.walk(tree):
        match node:
            case (
                ast.keyword(arg=str(name))
                | ast.Assign(targets=[ast.Name(id=name) | ast.Subscript(slice=ast.Constant(value=str(name)))])
            ) if name in names:
                node.value = _in_bits(node.value)
            case ast.Dict(keys=keys, values=values):
                named = [isinstance(each, ast.Constant) and each.value == QUANTISATION for each in keys]
                node.values = [_in_bits(each) if is_it else each for each, is_it in zip(values, named, strict=True)]


def _in_bits(value: ast.expr) -> ast.expr:
    if isinstance(value, ast.IfExp):
        value.body, value.orelse = _in_bits(value.body), _in_bits(value.orelse)
    keywords = [ast.keyword(arg=key, value=each) for key, each in entries(value)]
    if not any((each.arg or "").startswith("load_in_") for each in keywords):
        return value
    made = ast.Call(func=ast.Name(id="BitsAndBytesConfig", ctx=ast.Load()), args=[], keywords=keywords)
    return ast.fix_missing_locations(ast.copy_location(made, value))
