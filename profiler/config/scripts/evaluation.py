"""Values of expressions in a script that is not run: literals, names that are bound once, and what follows from these.

Of a value from the command line or the environment it is what a given line passes, else the script's own default.
"""

import ast
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial, reduce
from typing import Any

from profiler.config.files.arguments import OutsideValue, OutsideValues
from profiler.config.files.own_sections import ANY_KEY, FileKeys, contained, item_of
from profiler.config.foreign_text import (
    MOST_DEPTH,
    NoLiteralError,
    calculated,
    compared,
    extreme_of,
    number_of,
    text_of,
)
from profiler.config.options.reading import show
from profiler.config.scripts.declared import (
    NOTHING_SET,
    Declared,
    Fields,
    Given,
    Instance,
    Namespace,
    Open,
    SetItems,
    entries_of,
)
from profiler.config.scripts.names import (
    ASKS_FOR_ADAPTER,
    ASKS_FOR_BFLOAT16,
    ASKS_FOR_GPU,
    COPIES,
    LOADS,
    QUANTISES,
    Where,
    called_name,
    line_text,
    owner_name,
    plain_name,
    runs_always,
)
from profiler.config.scripts.variables import arguments_of, bound_once, open_parameters

_MOST_STEPS = 20_000
"""Most expressions that are followed for one script."""


class Evaluator:
    """The values of one script."""

    def __init__(self, tree: ast.Module, declared: Declared, given: Given, where: Where = "line {}".format) -> None:
        self._literals, self._open = dict(bound_once(tree)), open_parameters(tree)
        self._outside = OutsideValues(tree, declared.functions)
        self._declared, self._given, self._where = declared, given, where
        self._local: list[dict[str, object]] = []
        self._items = SetItems(tree, self._or_open, self._is_met)
        self._steps = 0
        self.taken: list[str] = []
        """What values from outside were read, which have the script's default."""

    def value(self, expression: ast.expr) -> object:
        """Return the value of an expression.

        Raises:
            NoLiteralError: It is not in the file.
        """
        self._steps = 0
        return _plain(self._value(expression, 0))

    def entries(self, expression: ast.expr) -> dict[str, object]:
        """Return the entries of a mapping, with an expression for each whose value is not in the file.

        Raises:
            NoLiteralError: Its keys are not in the file.
        """
        self._steps = 0
        return {key: _or_expression(inner) for key, inner in entries_of(self._value(expression, 0)).items()}

    def holds(self, test: ast.expr) -> bool | None:
        """Return whether a condition holds; None where that is not in the file."""
        self._steps = 0
        with suppress(NoLiteralError):
            return self._is_met(test, 0)
        return None

    def _value(self, expression: ast.expr, depth: int) -> object:
        self._steps += 1
        if depth > MOST_DEPTH or self._steps > _MOST_STEPS:
            raise NoLiteralError
        if (value := self._set_later(expression, depth)) is not NOTHING_SET:
            return value
        outside = self._outside.find(expression)
        if outside is not None:
            return self._from_outside(outside, depth)
        match expression:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._name(name, depth)
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                return name
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if self._given.own_file is not None:
                return self._given.own_file.opened().section(name)
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(self._value(owner, depth + 1), name, depth)
            case ast.Call():
                return self._call(expression, depth)
            case ast.Subscript(value=owner, slice=key):
                mapping, item = self._value(owner, depth + 1), self._value(key, depth + 1)
                stated = self._item_set(owner, mapping, show(item), depth)
                return item_of(mapping, item) if stated is NOTHING_SET else stated
            case ast.JoinedStr(values=parts):
                return "".join(self._text(part, depth) for part in parts)
            case ast.IfExp(body=ast.Call() as body, orelse=ast.Constant(value=None)) if self._is_plain(body, depth):
                return None
            case ast.IfExp(test=test, body=body, orelse=other):
                return self._value(body if self._is_met(test, depth) else other, depth + 1)
            case ast.BoolOp(op=op, values=operands):
                return self._either(operands, isinstance(op, ast.Or), depth)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [self._value(item, depth + 1) for item in items]
            case ast.Dict(keys=keys, values=values):
                return self._dictionary(zip(keys, values, strict=True), depth)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                if isinstance(positive := self._value(operand, depth + 1), int | float):
                    return -positive
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._is_met(operand, depth)
            case ast.BinOp(left=left, op=op, right=right):
                return calculated(type(op), self._or_open(left, depth), self._value(right, depth + 1))
            case ast.Compare():
                return self._is_met(expression, depth)
        raise NoLiteralError

    def _set_later(self, expression: ast.expr, depth: int) -> object:
        """Return what a script sets on an object, or name the line that may; `NOTHING_SET` if it sets nothing."""
        if not isinstance(expression, ast.Attribute) or not isinstance(expression.value, ast.Name):
            return NOTHING_SET
        owner, name = expression.value.id, expression.attr
        value, lines = self._items.found(owner, name, depth, is_once=True)
        self.taken += [f"{plain_name(owner)}.{name}, which {line_text(each, self._where)} may set," for each in lines]
        return value

    def _from_outside(self, outside: OutsideValue, depth: int) -> object:
        """Return what a command line passes, else the script's own default, which is named."""
        for key in outside.keys:
            if key in self._given.undecided:
                raise NoLiteralError
            if key in self._given.arguments:
                return False if outside.is_off else self._given.arguments[key]
        if outside.default is None:
            raise NoLiteralError
        if not self._given.line or not outside.keys:
            self.taken.append(outside.name)
        return self._value(outside.default, depth + 1)

    def _name(self, name: str, depth: int) -> object:
        for local in self._local[-1:]:
            if name in local:
                return local[name]
        if name in self._declared.parsed:
            return Instance(kind=self._declared.parsed[name], given=self._given.parsed)
        if self._outside.is_namespace(name):
            return Namespace()
        stated = self._literals.get(name)
        if stated is None and name in self._open:
            self.taken.append(f"{plain_name(name)} of {self._open[name][0]}")
            stated = self._open[name][1]
        if stated is None and name in self._declared.classes:
            return Instance(kind=self._declared.classes[name], given={})
        try:
            if stated is not None:
                return self._items.added(name, self._value(stated, depth + 1), depth)
        except NoLiteralError:
            if not isinstance(stated, ast.Call):
                raise
        if self._given.own_file is None:
            raise NoLiteralError
        return self._given.own_file.opened()

    def _attribute(self, owner: object, name: str, depth: int) -> object:
        match owner:
            case Instance(kind=kind, given=given):
                if name in self._given.undecided:
                    raise NoLiteralError
                if name in given:
                    return given[name]
                if name in kind.defaults:
                    if not self._given.line:
                        self.taken.append(f"{kind.name}.{name}")
                    return self._value(kind.defaults[name], depth + 1)
                if kind.of_trl == "ModelConfig" and name in QUANTISES:
                    self.taken.append(f"{kind.name}.{name}")
                    return False
            case Mapping() if name in owner:
                return owner[name]
        raise NoLiteralError

    def _call(self, call: ast.Call, depth: int) -> object:
        match call:
            case ast.Call() if (
                called_name(call) in ASKS_FOR_BFLOAT16 or (owner_name(call), called_name(call)) == ASKS_FOR_GPU
            ):
                return True
            case ast.Call() if called_name(call) == ASKS_FOR_ADAPTER:
                return False
            case ast.Call() if self._is_plain(call, depth):
                return None
            case ast.Call(func=ast.Name(id="int" | "float" as kind), args=[inner], keywords=[]):
                return number_of(kind, self._value(inner, depth + 1))
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[_, _, *_], keywords=[]):
                return extreme_of(name, [self._value(each, depth + 1) for each in call.args])
            case ast.Call(func=ast.Name(id="bool"), args=[inner], keywords=[]):
                return self._is_met(inner, depth)
            case ast.Call(func=ast.Name(id="str"), args=[inner], keywords=[]):
                return show(self._value(inner, depth + 1))
            case ast.Call(func=ast.Name(id="dict"), args=args) if len(args) <= 1:
                named = [(ast.Constant(value=each.arg) if each.arg else None, each.value) for each in call.keywords]
                return self._dictionary([*((None, each) for each in args), *named], depth)
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="path"), attr="join"), args=[first, *others]):
                parts = (self._value(each, depth + 1) for each in others)
                return reduce(partial(calculated, ast.Div), parts, self._or_open(first, depth))
            case ast.Call(args=[inner, *_]) if called_name(call) in COPIES:
                return self._value(inner, depth + 1)
            case ast.Call(func=ast.Attribute(value=owner, attr="strip" | "lower" | "split" as method), args=args):
                given = [self._value(each, depth + 1) for each in args]
                return text_of(method, str(_plain(self._value(owner, depth + 1))), given)
            case ast.Call(func=ast.Name(id="vars" | "asdict"), args=[inner]):
                return self._as_dictionary(self._value(inner, depth + 1), depth)
            case ast.Call(func=ast.Attribute(attr="parse_args")):
                return Namespace()
            case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[key, *default]):
                return self._looked_up(owner, show(self._value(key, depth + 1)), default, depth)
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), default]):
                return self._looked_up(owner, name, [default], depth)
            case ast.Call(func=ast.Name(id=name)) if name in self._declared.classes:
                return self._instance(self._declared.classes[name], call, depth)
            case ast.Call(func=ast.Name(id=name)) if name in self._declared.functions:
                return self._returned(self._declared.functions[name], call, depth)
            case ast.Call() if called_name(call) in LOADS and (self._given.recipe or self._given.own_file):
                return self._given.recipe or self._given.own_file
        raise NoLiteralError

    def _is_plain(self, call: ast.Call, depth: int) -> bool:
        """Return whether a call of `get_quantization_config` returns nothing, as it does by default."""
        if called_name(call) != "get_quantization_config" or len(call.args) != 1:
            return False
        return not any(self._value(ast.Attribute(value=call.args[0], attr=name), depth + 1) for name in QUANTISES)

    def _looked_up(self, owner: ast.expr, name: str, default: list[ast.expr], depth: int) -> object:
        """Return the value of a key or its default; of what may be any section of a file no default is known."""
        mapping = self._value(owner, depth + 1)
        if (value := self._item_set(owner, mapping, name, depth)) is not NOTHING_SET:
            return value
        if isinstance(mapping, Mapping) and name in mapping:
            return mapping[name]
        if not isinstance(mapping, Mapping) or ANY_KEY in mapping:
            raise NoLiteralError
        if isinstance(mapping, FileKeys) and mapping.is_open:
            raise NoLiteralError
        return self._value(default[0], depth + 1) if default else None

    def _instance(self, kind: Fields, call: ast.Call, depth: int) -> Instance:
        if call.args:
            raise NoLiteralError
        given: dict[str, object] = {}
        for each in call.keywords:
            value = self._value(each.value, depth + 1)
            if each.arg is not None:
                given[each.arg] = value
            elif isinstance(several := _plain(value), Mapping):
                given.update(several)
        return Instance(kind=kind, given=given)

    def _as_dictionary(self, owner: object, depth: int) -> dict[str, object]:
        match owner:
            case Namespace():
                reads = {name: partial(self._from_outside, option) for name, option in self._outside.options()}
            case Instance(kind=kind, given=given):
                reads = {name: partial(self._attribute, owner, name) for name in (*given, *kind.defaults)}
            case _:
                raise NoLiteralError
        found: dict[str, object] = {}
        for name, read in reads.items():
            with suppress(NoLiteralError):
                found[name] = read(depth)
        return found

    def _returned(self, function: ast.FunctionDef, call: ast.Call, depth: int) -> object:
        """Return what a function returns that has one `return`, which runs whenever the function does."""
        returns = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
        if len(returns) != 1 or returns[0].value is None or not runs_always(function.body, returns[0]):
            raise NoLiteralError
        if len(self._local) > MOST_DEPTH // 4:
            raise NoLiteralError
        local = self._bound(function, call, depth)
        self._local.append(local)
        try:
            return self._value(returns[0].value, depth + 4)
        finally:
            self._local.pop()

    def _bound(self, function: ast.FunctionDef, call: ast.Call, depth: int) -> dict[str, object]:
        """Return the parameters of a call whose values are known."""
        found: dict[str, object] = {}
        for name, expression in arguments_of(function, call).items():
            with suppress(NoLiteralError):
                found[name] = self._value(expression, depth + 4)
        return found

    def _dictionary(self, pairs: Iterable[tuple[ast.expr | None, ast.expr]], depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key is not None:
                found[show(self._value(key, depth + 1))] = self._or_open(value, depth)
            else:
                found.update(entries_of(self._value(value, depth + 1)))
        return found

    def _or_open(self, expression: ast.expr, depth: int) -> object:
        try:
            return self._value(expression, depth + 1)
        except NoLiteralError:
            return Open(expression=expression)

    def _item_set(self, owner: ast.expr, mapping: object, key: str, depth: int) -> object:
        """Return what a script sets in a user's file, or name the line that may; `NOTHING_SET` for nothing."""
        if not isinstance(mapping, FileKeys):
            return NOTHING_SET
        value, lines = self._items.found(ast.unparse(owner), key, depth)
        what = f"{plain_name(ast.unparse(owner))}[{key}]"
        self.taken += [f"{what}, which {line_text(each, self._where)} may set," for each in lines]
        if value is not NOTHING_SET:
            mapping.get(key)  # the file says it no more
        if isinstance(value, Open):
            raise NoLiteralError
        return value

    def _text(self, part: ast.expr, depth: int) -> str:
        match part:
            case ast.Constant(value=str(text)):
                return text
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return str(_plain(self._value(inner, depth + 1)))
        raise NoLiteralError

    def _either(self, operands: list[ast.expr], is_or: bool, depth: int) -> object:
        found: object = None
        for operand in operands:
            found = self._value(operand, depth + 1)
            if bool(found) is is_or:
                return found
        return found

    def _is_met(self, test: ast.expr, depth: int) -> bool:
        match test:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                first, second = _plain(self._value(left, depth + 1)), self._value(right, depth + 1)
                if isinstance(op, ast.In | ast.NotIn):
                    return contained(second, first) is isinstance(op, ast.In)
                return compared(type(op), first, _plain(second))
        return bool(_plain(self._value(test, depth + 1)))


def _plain(value: object) -> object:
    """Return a value, of a section of a file all its keys.

    Raises:
        NoLiteralError: It is of the script's own, or not known.
    """
    match value:
        case Namespace() | Instance() | Open() | FileKeys(is_open=True):
            raise NoLiteralError
        case FileKeys():
            return value.all()
        case Mapping():
            return {key: _plain(inner) for key, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
    return value


def _or_expression(value: object) -> object:
    """Return the value of an entry, or an expression for it where not all of it is in the file."""
    try:
        return _plain(value)
    except NoLiteralError:
        if isinstance(value, Open):
            return value.expression
    inner: dict[str, Any] = {key: _or_expression(each) for key, each in entries_of(value).items()}
    values = [each if isinstance(each, ast.expr) else ast.Constant(value=each) for each in inner.values()]
    return ast.Dict(keys=[ast.Constant(value=key) for key in inner], values=values)
