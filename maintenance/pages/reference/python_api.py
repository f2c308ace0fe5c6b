"""The page of the Python API, made from the signatures and docstrings of what `import grpo_vram` has."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from types import FunctionType

from maintenance.pages.members import marked, table
from profiler import api
from profiler.rendering.layouts.markdown import code_block

_HEAD = """\
# Python API

What `import grpo_vram` has. [How to use it](../python.md) has examples. These names and their fields stay as they are
within a minor version."""

_SECTION = re.compile(r"^(Args|Raises|Returns):$", re.MULTILINE)


def python_api_page() -> str:
    """Return the whole page."""
    functions = [getattr(api, name) for name in api.__all__ if inspect.isfunction(getattr(api, name))]
    # It imports transformers.
    callback = import_module("profiler.callback.vram_callback").VramCallback
    classes = [*(getattr(api, name) for name in api.__all__ if inspect.isclass(getattr(api, name))), callback]
    parts = [_HEAD, "## Functions", *(_function(each) for each in functions)]
    return "\n\n".join([*parts, "## Classes", *(_class(each) for each in classes)]) + "\n"


def _function(function: FunctionType) -> str:
    signature = inspect.signature(function)
    return "\n\n".join([f"### {function.__name__}", _shown(function.__name__, signature), *_docstring(function)])


def _class(declared: type) -> str:
    is_made_by_users = not is_dataclass(declared) and not issubclass(declared, Exception)
    signature = inspect.signature(declared).replace(return_annotation=inspect.Signature.empty)
    made = [_shown(declared.__name__, signature)] if is_made_by_users else []
    names = [row for row in _members(declared) if row[1]]
    listed = [table(("name", "meaning"), names)] if names else []
    return "\n\n".join([f"### {declared.__name__}", *made, *_docstring(declared), *listed])


def _shown(name: str, signature: inspect.Signature) -> str:
    """Return a call as code, with types by their last names."""
    text = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", f"{name}{signature}").replace("'", "")
    return code_block(text, language="python")


def _docstring(described: object) -> Iterator[str]:
    """Yield the paragraphs of a docstring; its arguments and errors are lists."""
    text = inspect.getdoc(described) or ""
    before, *sections = _SECTION.split(text)
    yield from (marked(each) for each in before.strip().split("\n\n") if each)
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        yield f"{title}:"
        yield "\n".join(f"- `{name}`: {marked(words)}" for name, words in _entries(body))


def _entries(body: str) -> Iterator[tuple[str, str]]:
    for entry in re.split(r"\n {4}(?=\S)", f"\n{inspect.cleandoc(body)}".replace("\n", "\n    ")):
        name, colon, words = entry.strip().partition(":")
        if colon:
            yield name, words.strip()


def _members(declared: type) -> Iterator[tuple[str, str]]:
    """Yield the public fields, properties and methods of a class with what their docstrings say."""
    documented = _documented_fields(declared)
    for name, value in {**dict.fromkeys(getattr(declared, "__dataclass_fields__", {})), **vars(declared)}.items():
        if name.startswith("_") or isinstance(value, Enum):
            continue
        text = documented.get(name) or (inspect.getdoc(value) if _is_documented(value) else "") or ""
        shown = f"`{name}()`" if inspect.isfunction(value) else f"`{name}`"
        yield shown, marked(text.partition("\n\n")[0])


def _is_documented(value: object) -> bool:
    return isinstance(value, property) or inspect.isfunction(value)


def _documented_fields(declared: type) -> dict[str, str]:
    source = inspect.getsource(declared)
    return dict(re.findall(r'^    (\w+): [^\n]+\n    """(.+?)"""', source, re.MULTILINE | re.DOTALL))
