"""One scope of a script: what its statements do with rows and with the values of columns."""

import ast
from collections.abc import Iterable, Sequence

from profiler.substitutes.columns.row_origins import (
    NOTHING,
    FlowNotes,
    Origin,
    Origins,
    Rows,
    Value,
    all_of,
    called_name,
    elements_of,
    several_of,
)
from profiler.substitutes.columns.uses import Hint, Use

_LOADS = ("load_dataset", "load_from_disk")
_SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval", "evaluation")

_TEXT_METHODS = (
    "split", "strip", "lstrip", "rstrip", "lower", "upper", "replace", "startswith", "endswith", "find", "rfind",
    "splitlines", "encode", "format", "partition", "rpartition", "join", "count", "title", "removeprefix",
)  # fmt: skip
_IMAGE_METHODS = ("convert", "resize", "crop", "thumbnail", "rotate", "transpose", "getexif")
_IMAGE_ATTRIBUTES = ("size", "mode", "width", "height")
_CLASS_ATTRIBUTES = ("names", "num_classes", "int2str", "str2int")
_NUMBER_CALLS = ("float", "int", "round", "abs")
_PASSED_ON = ("list", "tuple", "sorted", "reversed", "iter", "tqdm", "set", "enumerate", "zip", "deepcopy", "copy")
_SAMPLES = ("sample", "choices", "choice")
"""Functions that take a number of values at random."""

_COLUMN_METHODS = ("rename_column", "sort", "unique", "class_encode_column", "cast_column", "select_columns")
"""Methods of a data set whose first argument names columns."""
_COLUMN_ARGUMENTS = ("original_column_name", "column_mapping", "column_names", "column")
"""The names of that argument."""


class RowReader:
    """Reads the statements of one scope."""

    def __init__(self, notes: FlowNotes, scope: ast.AST, outer: tuple[int, ...]) -> None:
        self._notes = notes
        self._scope = scope
        self._scopes = (id(scope), *outer)
        self._read_here: set[str] = set()
        self._now: dict[str, Origins] = {}
        """Names of this scope, as the last statement left them."""

    def read(self, statements: Iterable[ast.AST]) -> None:
        """Read statements, and those of inner scopes."""
        for statement in statements:
            self._statement(statement)
        self._notes.read_there(self._read_here & self._notes.written)

    def _statement(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for each in getattr(node, "decorator_list", []):
                    self._of(each)
                RowReader(self._notes, node, self._scopes).read(node.body)
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
                self._notes.wrote(text for key in made.keys for text in self._notes.texts(key))
                self._of(made)
            case ast.expr():
                self._of(node)
            case _:
                for child in ast.iter_child_nodes(node):
                    self._statement(child)

    def _branch(self, *branches: Sequence[ast.stmt]) -> None:
        """Read statements of which one branch runs: a name is what any of them has left."""
        before, after = dict(self._now), dict[str, Origins]()
        for branch in branches:
            self._now = dict(before)
            for each in branch:
                self._statement(each)
            after |= {name: after.get(name, NOTHING) | found for name, found in self._now.items()}
        self._now = after

    # ---- names ---------------------------------------------------------------------------------------------------

    def _assign(self, target: ast.AST, value: ast.AST) -> None:
        if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
            for inner, each in zip(target.elts, value.elts, strict=False):
                self._assign(inner, each)
            return
        self._bind(target, self._of(value))

    def _bind(self, target: ast.AST, origins: Origins) -> None:
        match target:
            case ast.Name():
                self._now[target.id] = origins
                self._notes.add(self._scopes[0], target.id, origins)
            case ast.Attribute():
                self._notes.add(0, target.attr, origins)
            case ast.Tuple() | ast.List():
                for each in target.elts:
                    self._bind(each, elements_of(origins))
            case ast.Subscript():
                self._of(target.value)
                self._notes.wrote(self._notes.texts(target.slice))
            case ast.Starred():
                self._bind(target.value, origins)

    def _loop(self, target: ast.AST, over: ast.AST) -> None:
        name = called_name(over)
        if isinstance(over, ast.Call) and name == "zip" and isinstance(target, ast.Tuple):
            for inner, each in zip(target.elts, over.args, strict=False):
                self._bind(inner, elements_of(self._of(each)))
        elif isinstance(over, ast.Call) and name == "enumerate" and isinstance(target, ast.Tuple) and over.args:
            self._loop(target.elts[-1], over.args[0])
        else:
            self._bind(target, elements_of(self._of(over)))

    # ---- expressions ---------------------------------------------------------------------------------------------

    def _of(self, node: ast.AST | None) -> Origins:
        """Return the origins of an expression, and take note of what it does with others."""
        match node:
            case None:
                return NOTHING
            case ast.Name():
                return self._now[node.id] if node.id in self._now else self._notes.origins(self._scopes, node.id)
            case ast.Subscript():
                return self._subscript(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.Lambda():
                return RowReader(self._notes, node, self._scopes)._lambda(node)
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
                return self._children(node) and NOTHING
            case _:
                return self._children(node)

    def _lambda(self, node: ast.Lambda) -> Origins:
        if isinstance(node.body, ast.Dict):
            self._notes.wrote(text for key in node.body.keys for text in self._notes.texts(key))
        self.read([node.body])
        return NOTHING

    def _children(self, node: ast.AST | None) -> Origins:
        for child in ast.iter_child_nodes(node) if node is not None else ():
            if isinstance(child, ast.expr | ast.keyword):
                self._of(child.value if isinstance(child, ast.keyword) else child)
        return NOTHING

    def _subscript(self, node: ast.Subscript) -> Origins:
        of, texts = self._of(node.value), self._notes.texts(node.slice)
        if isinstance(node.slice, ast.Slice):
            self._children(node.slice)
            return of
        is_text = bool(texts) or isinstance(node.slice, ast.JoinedStr)
        if not texts:
            self._of(node.slice)
        if not is_text:
            index = node.slice.value if isinstance(node.slice, ast.Constant) else 0
            return elements_of(of, index if isinstance(index, int) else 0)
        return frozenset(origin for text in texts for origin in self._keyed(of, text))

    def _keyed(self, of: Origins, text: str) -> Iterable[Origin]:
        for origin in of:
            if isinstance(origin, Value):
                yield Value(origin.use.key(text), origin.many)
            elif _is_split(text):
                self._notes.splits[text] = None
                yield Rows(many=True)
            else:
                self._read_here.add(text)
                yield Value(self._notes.column(text), origin.many)

    def _attribute(self, node: ast.Attribute) -> Origins:
        of = self._of(node.value)
        for origin in of:
            if isinstance(origin, Value):
                _hint_of_attribute(origin.use, node.attr)
        if any(isinstance(origin, Rows) for origin in of):
            return of if node.attr in ("features", "data", "dataset") else NOTHING
        return self._notes.origins((0,), node.attr)

    def _call(self, node: ast.Call) -> Origins:
        name = called_name(node)
        arguments = [self._of(argument) for argument in node.args]
        named = {keyword.arg: self._of(keyword.value) for keyword in node.keywords}
        if name in _LOADS:
            return frozenset({Rows(many=True)})
        if isinstance(node.func, ast.Attribute):
            of = self._of(node.func.value)
            if any(isinstance(origin, Rows) for origin in of):
                return self._method_of_rows(node, name, of)
            if of:
                return self._method_of_value(node, name, of)
        self._hint_of_call(name, arguments)
        if name in _SAMPLES and arguments and arguments[0]:
            self._sampled(node.args[1] if len(node.args) > 1 else _named(node, "k", "size"))
        if name == "isinstance":
            self._hint_of_type(node, all_of(arguments[:1]))
        self._notes.bind(node.func, arguments)
        self._bind_named(node, named)
        if name == "next":
            return elements_of(all_of(arguments))
        if name in _PASSED_ON:
            return arguments[0] if name not in ("zip", "enumerate") and arguments else NOTHING
        # A function of others, or one of the sources, hands rows on that it was given.
        return frozenset(origin for origin in all_of((*arguments, *named.values())) if isinstance(origin, Rows))

    def _method_of_rows(self, node: ast.Call, name: str, of: Origins) -> Origins:
        first = node.args[0] if node.args else _named(node, *_COLUMN_ARGUMENTS)
        texts = self._notes.texts(first)
        if name in ("get", "pop", "__getitem__"):
            return frozenset(origin for text in texts for origin in self._keyed(of, text))
        if name in _COLUMN_METHODS:
            for text in texts:
                self._notes.column(text)
                self._read_here.add(text)
            new = node.args[1] if len(node.args) > 1 else _named(node, "new_column_name")
            self._notes.renamed |= set(self._notes.texts(new)) if name == "rename_column" else set()
        if name == "rename_columns" and isinstance(first, ast.Dict):
            for key in first.keys:
                for text in self._notes.texts(key):
                    self._notes.column(text)
            self._notes.renamed |= {text for new in first.values for text in self._notes.texts(new)}
        if name in ("map", "filter", "set_transform", "with_transform", "sort", "apply"):
            many = name.endswith("transform") or _says(node, "batched")
            for argument in (*node.args[:1], *(key.value for key in node.keywords if key.arg == "function")):
                self._notes.bind(argument, [frozenset({Rows(many=many)})])
        if name in ("items", "values"):
            return of
        return frozenset(origin for origin in of if isinstance(origin, Rows))

    def _method_of_value(self, node: ast.Call, name: str, of: Origins) -> Origins:
        if name in ("get", "pop") and node.args and (texts := self._notes.texts(node.args[0])):
            return frozenset(origin for text in texts for origin in self._keyed(of, text))
        hint = Hint.TEXT if name in _TEXT_METHODS else Hint.IMAGE if name in _IMAGE_METHODS else None
        for origin in of:
            if isinstance(origin, Value) and hint is not None:
                origin.use.hints.add(hint)
        return of if name == "copy" else NOTHING

    def _sampled(self, count: ast.AST | None) -> None:
        if isinstance(count, ast.Constant) and isinstance(count.value, int):
            self._notes.sampled = max(self._notes.sampled, count.value)

    def _hint_of_call(self, name: str, arguments: Sequence[Origins]) -> None:
        hint = {"apply_chat_template": Hint.CONVERSATION, "loads": Hint.JSON}.get(name)
        hint = Hint.NUMBER if name in _NUMBER_CALLS else hint
        for origin in all_of(arguments[:1]):
            if isinstance(origin, Value) and hint is not None:
                origin.use.hints.add(hint)

    def _hint_of_type(self, node: ast.Call, of: Origins) -> None:
        """Take note of ``isinstance(value, str)``: a value that may be a text is one."""
        types = {each.id for argument in node.args[1:] for each in ast.walk(argument) if isinstance(each, ast.Name)}
        for origin in of:
            if isinstance(origin, Value) and "str" in types:
                origin.use.hints.add(Hint.TEXT)

    def _bind_named(self, node: ast.Call, named: dict[str | None, Origins]) -> None:
        function = self._notes.functions.get(called_name(node))
        if function is not None:
            for name, origins in named.items():
                if name is not None:
                    self._notes.add(id(function), name, origins)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Origins:
        for each in node.generators:
            self._loop(each.target, each.iter)
            for test in each.ifs:
                self._of(test)
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        found = all_of(self._of(part) for part in parts)
        return frozenset(several_of(origin) for origin in found)

    def _operation(self, node: ast.BinOp | ast.AugAssign) -> Origins:
        left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        is_text = any(isinstance(side, ast.JoinedStr) or bool(self._notes.texts(side)) for side in (left, right))
        is_number = isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv)
        for origin in self._of(left) | self._of(right):
            if isinstance(origin, Value) and not origin.many and (is_text or is_number):
                origin.use.hints.add(Hint.TEXT if is_text else Hint.NUMBER)
        return NOTHING

    def _comparison(self, node: ast.Compare) -> Origins:
        is_ordered = any(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops)
        sides = (node.left, *node.comparators)
        has_number = any(isinstance(each, ast.Constant) and isinstance(each.value, int | float) for each in sides)
        for origin in all_of(self._of(side) for side in sides):
            if isinstance(origin, Value) and not origin.many and is_ordered and has_number:
                origin.use.hints.add(Hint.NUMBER)
        return NOTHING


def _hint_of_attribute(use: Use, name: str) -> None:
    if name in _IMAGE_ATTRIBUTES:
        use.hints.add(Hint.IMAGE)
    if name in _CLASS_ATTRIBUTES:
        use.hints.add(Hint.CLASS)


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
