"""Where rows of data sets go in a script, and what is done with their columns: names are followed, values are not.

Every name, attribute and parameter of the sources has a set of origins: rows of a data set, or the value of a column.
They are handed on until nothing changes. Whether rows are one or many (a batch, a split) decides whether the value of a
column is one value or a list of them.
"""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profiler.substitutes.named_strings import NamedStrings
from profiler.substitutes.uses import Hint, Use

_MOST_ROUNDS = 8
"""How often the sources are read again; each round hands origins on by one call."""

_LOADS = ("load_dataset", "load_from_disk")
_SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval", "evaluation")
_MANY = ("examples", "samples", "batch", "rows", "batched", "instances", "elements")
"""Names of parameters that hold several rows, where no call says so."""

_TEXT_METHODS = (
    "split", "strip", "lstrip", "rstrip", "lower", "upper", "replace", "startswith", "endswith", "find", "rfind",
    "splitlines", "encode", "format", "partition", "rpartition", "join", "count", "title", "removeprefix",
)  # fmt: skip
_IMAGE_METHODS = ("convert", "resize", "crop", "thumbnail", "rotate", "transpose", "getexif")
_IMAGE_ATTRIBUTES = ("size", "mode", "width", "height")
_CLASS_ATTRIBUTES = ("names", "num_classes", "int2str", "str2int")
_NUMBER_CALLS = ("float", "int", "round", "abs")
_PASSED_ON = ("list", "tuple", "sorted", "reversed", "iter", "tqdm", "set", "enumerate", "zip", "deepcopy", "copy")
_COLUMN_METHODS = ("rename_column", "sort", "unique", "class_encode_column", "cast_column", "select_columns")
"""Methods of a data set whose first argument names columns."""
_COLUMN_ARGUMENTS = ("original_column_name", "column_mapping", "column_names", "column")
"""The names of that argument."""


@dataclass(frozen=True)
class _Rows:
    many: bool


@dataclass(frozen=True, eq=False)
class _Value:
    """The value of a column, or of each of several rows."""

    use: Use
    many: bool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Value) and other.use is self.use and other.many == self.many

    def __hash__(self) -> int:
        return hash((id(self.use), self.many))


_Origin = _Rows | _Value
_Origins = frozenset[_Origin]
_NOTHING: _Origins = frozenset()
_Key = tuple[int, str]


class RowFlow:
    """The origins of all names of several sources, and the uses of columns that follow from them."""

    def __init__(self, trees: Sequence[ast.Module], strings: NamedStrings) -> None:
        self.uses: dict[str, Use] = {}
        """Columns with their uses, in the order in which they are read."""
        self.made: set[str] = set()
        """Columns that the sources make and nobody reads from the same rows before."""
        self.renamed: set[str] = set()
        """Columns that other columns are renamed to."""
        self.splits: dict[str, None] = {}
        self._strings = strings
        self._origins: dict[_Key, _Origins] = {}
        self._functions = {
            node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }
        self._called = {_called(node) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)}
        self._has_changed = True
        self._reading: set[str] = set()
        for _ in range(_MOST_ROUNDS):
            if not self._has_changed:
                break
            self._has_changed = False
            for tree in trees:
                _Reader(self, tree, ()).read(tree.body)
        self._follow_first_arguments(trees)
        self.made = (self.made - self._reading) | self.renamed

    def column(self, name: str) -> Use:
        """Return the use of a column."""
        return self.uses.setdefault(name, Use())

    def origins(self, scopes: Sequence[int], name: str) -> _Origins:
        """Return the origins of a name in the innermost scope that has some."""
        return next((found for scope in scopes if (found := self._origins.get((scope, name)))), _NOTHING)

    def add(self, scope: int, name: str, origins: _Origins) -> None:
        """Add origins of a name."""
        known = self._origins.get((scope, name), _NOTHING)
        if not origins <= known:
            self._origins[scope, name] = known | origins
            self._has_changed = True

    def bind(self, function: ast.AST | None, arguments: Sequence[_Origins]) -> None:
        """Hand origins on to the parameters of a function of the sources."""
        if isinstance(function, ast.Name):
            function = self._functions.get(function.id)
        elif isinstance(function, ast.Attribute):
            function = self._functions.get(function.attr)
        if isinstance(function, ast.Lambda | ast.FunctionDef):
            for parameter, origins in zip(_parameters(function), arguments, strict=False):
                self.add(id(function), parameter, origins)

    def texts(self, node: ast.AST | None) -> tuple[str, ...]:
        """Return the texts that an expression may have."""
        return self._strings.texts_of(node)

    def wrote(self, names: Iterable[str]) -> None:
        """Take note of columns that a function of the sources makes."""
        self.made |= set(names)

    def read_there(self, names: Iterable[str]) -> None:
        """Take note of columns that are read where others, or they themselves, are made."""
        self._reading |= set(names)

    def _follow_first_arguments(self, trees: Sequence[ast.Module]) -> None:
        """Take the first parameter of each function that no source calls for a row, or for several by its name."""
        before = list(self.uses)
        for node in (node for tree in trees for node in ast.walk(tree)):
            if isinstance(node, ast.Lambda | ast.FunctionDef) and (names := _parameters(node)):
                if _is_reward(node):
                    for name in _of_reward(node):
                        self.column(name)
                elif not self._is_explained(node, names[0]):
                    self.add(id(node), names[0], frozenset({_Rows(many=names[0] in _MANY)}))
        for tree in trees:
            _Reader(self, tree, ()).read(tree.body)
        self.uses = {name: self.uses[name] for name in dict.fromkeys((*before, *self.uses))}

    def _is_explained(self, function: ast.Lambda | ast.FunctionDef, parameter: str) -> bool:
        """Return whether it is known what a function gets: rows, or what those hand to it who call it by name."""
        if self._origins.get((id(function), parameter)):
            return True
        return isinstance(function, ast.FunctionDef) and function.name in self._called


def _parameters(function: ast.Lambda | ast.FunctionDef) -> list[str]:
    """Return the names of the parameters that a caller gives by place; a method's own object is left out."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _of_reward(function: ast.Lambda | ast.FunctionDef) -> list[str]:
    """Return the columns that trl hands to a reward function by the names of its parameters."""
    names = _parameters(function)
    optional = len(function.args.defaults)
    required = names[: len(names) - optional] if optional else names
    known = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"}
    return [name for name in required if name not in known]


def _is_reward(function: ast.Lambda | ast.FunctionDef) -> bool:
    return "completions" in _parameters(function)


class _Reader:
    """Reads the statements of one scope."""

    def __init__(self, flow: RowFlow, scope: ast.AST, outer: tuple[int, ...]) -> None:
        self._flow = flow
        self._scope = scope
        self._scopes = (id(scope), *outer)
        self._read_here: set[str] = set()
        self._now: dict[str, _Origins] = {}
        """Names of this scope, as the last statement left them."""

    def read(self, statements: Iterable[ast.AST]) -> None:
        """Read statements, and those of inner scopes."""
        for statement in statements:
            self._statement(statement)
        self._flow.read_there(self._read_here & self._flow.made)

    def _statement(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for each in getattr(node, "decorator_list", []):
                    self._of(each)
                _Reader(self._flow, node, self._scopes).read(node.body)
            case ast.Assign():
                for target in node.targets:
                    self._assign(target, node.value)
            case ast.AnnAssign(value=value) if value is not None:
                self._assign(node.target, value)
            case ast.For() | ast.AsyncFor():
                self._loop(node.target, node.iter)
                for each in (*node.body, *node.orelse):
                    self._statement(each)
            case ast.If():
                self._of(node.test)
                self._branch(node.body, node.orelse)
            case ast.Return(value=ast.Dict() as made):
                self._flow.wrote(text for key in made.keys for text in self._flow.texts(key))
                self._of(made)
            case ast.expr():
                self._of(node)
            case _:
                for child in ast.iter_child_nodes(node):
                    self._statement(child)

    def _branch(self, *branches: Sequence[ast.stmt]) -> None:
        """Read statements of which one branch runs: a name is what any of them has left."""
        before, after = dict(self._now), dict[str, _Origins]()
        for branch in branches:
            self._now = dict(before)
            for each in branch:
                self._statement(each)
            after |= {name: after.get(name, _NOTHING) | found for name, found in self._now.items()}
        self._now = after

    # ---- names ---------------------------------------------------------------------------------------------------

    def _assign(self, target: ast.AST, value: ast.AST) -> None:
        if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
            for inner, each in zip(target.elts, value.elts, strict=False):
                self._assign(inner, each)
            return
        self._bind(target, self._of(value))

    def _bind(self, target: ast.AST, origins: _Origins) -> None:
        match target:
            case ast.Name():
                self._now[target.id] = origins
                self._flow.add(self._scopes[0], target.id, origins)
            case ast.Attribute():
                self._flow.add(0, target.attr, origins)
            case ast.Tuple() | ast.List():
                for each in target.elts:
                    self._bind(each, _elements(origins))
            case ast.Subscript():
                self._of(target.value)
                self._flow.wrote(self._flow.texts(target.slice))
            case ast.Starred():
                self._bind(target.value, origins)

    def _loop(self, target: ast.AST, over: ast.AST) -> None:
        name = _called(over)
        if isinstance(over, ast.Call) and name == "zip" and isinstance(target, ast.Tuple):
            for inner, each in zip(target.elts, over.args, strict=False):
                self._bind(inner, _elements(self._of(each)))
        elif isinstance(over, ast.Call) and name == "enumerate" and isinstance(target, ast.Tuple) and over.args:
            self._loop(target.elts[-1], over.args[0])
        else:
            self._bind(target, _elements(self._of(over)))

    # ---- expressions ---------------------------------------------------------------------------------------------

    def _of(self, node: ast.AST | None) -> _Origins:
        """Return the origins of an expression, and take note of what it does with others."""
        match node:
            case None:
                return _NOTHING
            case ast.Name():
                return self._now[node.id] if node.id in self._now else self._flow.origins(self._scopes, node.id)
            case ast.Subscript():
                return self._subscript(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.Lambda():
                return _Reader(self._flow, node, self._scopes)._lambda(node)
            case ast.BinOp() | ast.AugAssign():
                return self._operation(node)
            case ast.Compare():
                return self._comparison(node)
            case ast.JoinedStr() | ast.FormattedValue():
                return self._children(node)
            case ast.IfExp():
                self._of(node.test)
                return self._of(node.body) | self._of(node.orelse)
            case ast.BoolOp():
                return frozenset(origin for each in node.values for origin in self._of(each))
            case ast.NamedExpr():
                found = self._of(node.value)
                self._bind(node.target, found)
                return found
            case ast.Await() | ast.Starred():
                return self._of(node.value)
            case ast.expr():
                return self._children(node) and _NOTHING
            case _:
                return self._children(node)

    def _lambda(self, node: ast.Lambda) -> _Origins:
        if isinstance(node.body, ast.Dict):
            self._flow.wrote(text for key in node.body.keys for text in self._flow.texts(key))
        self.read([node.body])
        return _NOTHING

    def _children(self, node: ast.AST | None) -> _Origins:
        for child in ast.iter_child_nodes(node) if node is not None else ():
            if isinstance(child, ast.expr | ast.keyword):
                self._of(child.value if isinstance(child, ast.keyword) else child)
        return _NOTHING

    def _subscript(self, node: ast.Subscript) -> _Origins:
        of, texts = self._of(node.value), self._flow.texts(node.slice)
        if isinstance(node.slice, ast.Slice):
            self._children(node.slice)
            return of
        is_text = bool(texts) or isinstance(node.slice, ast.JoinedStr)
        if not texts:
            self._of(node.slice)
        if not is_text:
            index = node.slice.value if isinstance(node.slice, ast.Constant) else 0
            return _elements(of, index if isinstance(index, int) else 0)
        return frozenset(origin for text in texts for origin in self._keyed(of, text))

    def _keyed(self, of: _Origins, text: str) -> Iterable[_Origin]:
        for origin in of:
            if isinstance(origin, _Value):
                yield _Value(origin.use.key(text), origin.many)
            elif _is_split(text):
                self._flow.splits[text] = None
                yield _Rows(many=True)
            else:
                self._read_here.add(text)
                yield _Value(self._flow.column(text), origin.many)

    def _attribute(self, node: ast.Attribute) -> _Origins:
        of = self._of(node.value)
        for origin in of:
            if isinstance(origin, _Value):
                _hint_of_attribute(origin.use, node.attr)
        if any(isinstance(origin, _Rows) for origin in of):
            return of if node.attr in ("features", "data", "dataset") else _NOTHING
        return self._flow.origins((0,), node.attr)

    def _call(self, node: ast.Call) -> _Origins:
        name = _called(node)
        arguments = [self._of(argument) for argument in node.args]
        named = {keyword.arg: self._of(keyword.value) for keyword in node.keywords}
        if name in _LOADS:
            return frozenset({_Rows(many=True)})
        if isinstance(node.func, ast.Attribute):
            of = self._of(node.func.value)
            if any(isinstance(origin, _Rows) for origin in of):
                return self._method_of_rows(node, name, of)
            if of:
                return self._method_of_value(node, name, of)
        self._hint_of_call(name, arguments)
        if name == "isinstance":
            self._hint_of_type(node, _all(arguments[:1]))
        self._flow.bind(node.func, arguments)
        self._bind_named(node, named)
        if name == "next":
            return _elements(_all(arguments))
        if name in _PASSED_ON:
            return arguments[0] if name not in ("zip", "enumerate") and arguments else _NOTHING
        # A function of others, or one of the sources, hands rows on that it was given.
        return frozenset(origin for origin in _all((*arguments, *named.values())) if isinstance(origin, _Rows))

    def _method_of_rows(self, node: ast.Call, name: str, of: _Origins) -> _Origins:
        first = node.args[0] if node.args else _named(node, *_COLUMN_ARGUMENTS)
        texts = self._flow.texts(first)
        if name in ("get", "pop", "__getitem__"):
            return frozenset(origin for text in texts for origin in self._keyed(of, text))
        if name in _COLUMN_METHODS:
            for text in texts:
                self._flow.column(text)
                self._read_here.add(text)
            new = node.args[1] if len(node.args) > 1 else _named(node, "new_column_name")
            self._flow.renamed |= set(self._flow.texts(new)) if name == "rename_column" else set()
        if name == "rename_columns" and isinstance(first, ast.Dict):
            for key in first.keys:
                for text in self._flow.texts(key):
                    self._flow.column(text)
            self._flow.renamed |= {text for new in first.values for text in self._flow.texts(new)}
        if name in ("map", "filter", "set_transform", "with_transform", "sort", "apply"):
            many = name.endswith("transform") or _says(node, "batched")
            for argument in (*node.args[:1], *(key.value for key in node.keywords if key.arg == "function")):
                self._flow.bind(argument, [frozenset({_Rows(many=many)})])
        if name in ("items", "values"):
            return of
        return frozenset(origin for origin in of if isinstance(origin, _Rows))

    def _method_of_value(self, node: ast.Call, name: str, of: _Origins) -> _Origins:
        if name in ("get", "pop") and node.args and (texts := self._flow.texts(node.args[0])):
            return frozenset(origin for text in texts for origin in self._keyed(of, text))
        hint = Hint.TEXT if name in _TEXT_METHODS else Hint.IMAGE if name in _IMAGE_METHODS else None
        for origin in of:
            if isinstance(origin, _Value) and hint is not None:
                origin.use.hints.add(hint)
        return of if name == "copy" else _NOTHING

    def _hint_of_call(self, name: str, arguments: Sequence[_Origins]) -> None:
        hint = {"apply_chat_template": Hint.CONVERSATION, "loads": Hint.JSON}.get(name)
        hint = Hint.NUMBER if name in _NUMBER_CALLS else hint
        for origin in _all(arguments[:1]):
            if isinstance(origin, _Value) and hint is not None:
                origin.use.hints.add(hint)

    def _hint_of_type(self, node: ast.Call, of: _Origins) -> None:
        """Take note of ``isinstance(value, str)``: a value that may be a text is one."""
        types = {each.id for argument in node.args[1:] for each in ast.walk(argument) if isinstance(each, ast.Name)}
        for origin in of:
            if isinstance(origin, _Value) and "str" in types:
                origin.use.hints.add(Hint.TEXT)

    def _bind_named(self, node: ast.Call, named: dict[str | None, _Origins]) -> None:
        function = self._flow._functions.get(_called(node))
        if function is not None:
            for name, origins in named.items():
                if name is not None:
                    self._flow.add(id(function), name, origins)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> _Origins:
        for each in node.generators:
            self._loop(each.target, each.iter)
            for test in each.ifs:
                self._of(test)
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        found = _all(self._of(part) for part in parts)
        return frozenset(_several(origin) for origin in found)

    def _operation(self, node: ast.BinOp | ast.AugAssign) -> _Origins:
        left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        is_text = any(isinstance(side, ast.JoinedStr) or bool(self._flow.texts(side)) for side in (left, right))
        is_number = isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv)
        for origin in self._of(left) | self._of(right):
            if isinstance(origin, _Value) and not origin.many and (is_text or is_number):
                origin.use.hints.add(Hint.TEXT if is_text else Hint.NUMBER)
        return _NOTHING

    def _comparison(self, node: ast.Compare) -> _Origins:
        is_ordered = any(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops)
        sides = (node.left, *node.comparators)
        has_number = any(isinstance(each, ast.Constant) and isinstance(each.value, int | float) for each in sides)
        for origin in _all(self._of(side) for side in sides):
            if isinstance(origin, _Value) and not origin.many and is_ordered and has_number:
                origin.use.hints.add(Hint.NUMBER)
        return _NOTHING


def _hint_of_attribute(use: Use, name: str) -> None:
    if name in _IMAGE_ATTRIBUTES:
        use.hints.add(Hint.IMAGE)
    if name in _CLASS_ATTRIBUTES:
        use.hints.add(Hint.CLASS)


def _elements(origins: _Origins, index: int = 0) -> _Origins:
    """Return the origins of one of several values."""
    return frozenset(_element(origin, index) for origin in origins)


def _element(origin: _Origin, index: int) -> _Origin:
    if isinstance(origin, _Rows):
        return _Rows(many=False)
    return _Value(origin.use, many=False) if origin.many else _Value(origin.use.one(index), many=False)


def _several(origin: _Origin) -> _Origin:
    return _Rows(many=True) if isinstance(origin, _Rows) else _Value(origin.use, many=True)


def _all(several: Iterable[_Origins]) -> _Origins:
    return frozenset(origin for each in several for origin in each)


def _called(node: ast.AST) -> str:
    """Return the last name of a function that is called; empty if it has none."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _named(node: ast.Call, *names: str) -> ast.AST | None:
    """Return the first argument of a call that has one of these names."""
    return next((each.value for each in node.keywords if each.arg in names), None)


def _says(node: ast.Call, keyword: str) -> bool:
    return any(
        each.arg == keyword and not (isinstance(each.value, ast.Constant) and each.value.value is False)
        for each in node.keywords
    )


def _is_split(name: str) -> bool:
    return name.split("[")[0].split("_")[0].lower() in _SPLITS
