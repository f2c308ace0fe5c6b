"""Names in the syntax tree of a script, changed so that each stands for one thing: variables, and classes of trl."""

import ast
from collections.abc import Collection, Iterator, Sequence

from profiler.config.scripts.names import OWN, called_name, has_name

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
            elif variable[0] == 0 or len(groups.get(name, ())) < _SEVERAL:
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

    def _join(self, scope: int, other: int, name: str) -> None:
        variables = {self._first((self._of(each, name), name)) for each in (scope, other)}
        self._same.update(dict.fromkeys(variables - {min(variables)}, min(variables)))

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


_SEVERAL = 2


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
    for node in ast.walk(tree) if renamed else ():
        match node:
            case ast.Name(id=name):
                node.id = renamed.get(name) or own.get(name, name)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                node.name = own.get(name, name)
            case ast.ImportFrom(names=names) if node not in of_libraries:
                for each in names:
                    each.asname = own.get(each.name, each.asname) if each.asname is None else each.asname


def with_own_classes(tree: ast.Module, classes: Collection[str]) -> None:
    """Give another name to each class of a script that has the name of one of trl's and derives from none.

    Args:
        tree: The script, with its modules.
        classes: Names of trl's classes.
    """
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
        and not any(has_name(base) and _name_of(base) in classes for base in node.bases)
    }
    for node in ast.walk(tree) if own else ():
        if isinstance(node, ast.Name):
            node.id = own.get(node.id, node.id)
        elif isinstance(node, ast.ClassDef):
            node.name = own.get(node.name, node.name)


def _name_of(base: ast.Name | ast.Attribute) -> str:
    return base.id if isinstance(base, ast.Name) else base.attr


_NAMED = ("trl", "peft", "transformers", "unsloth")
"""Libraries whose classes configure a training by their names."""
