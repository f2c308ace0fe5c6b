"""Places in other libraries where code asks for the device or for Triton, found in their syntax trees."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_DEVICES = frozenset({"cuda", "cpu", "meta", "xpu"})
_QUESTIONS = frozenset({"is_triton_available", "is_torch_cuda_available", "is_cuda_available", "_use_triton"})

LIBRARIES = {
    "trl": ("**/*.py",),
    "peft": ("**/*.py",),
    "accelerate": ("*.py", "utils/*.py"),
    "transformers": (
        "*.py",
        "integrations/*.py",
        "generation/*.py",
        *(
            f"models/{family}/modeling_*.py"
            for family in (
                "gemma", "gemma2", "gemma3", "granite", "llama", "mistral", "mixtral", "olmo2", "olmoe", "phi", "phi3",
                "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl",
                "smollm3",
            )
        ),
    ),
}  # fmt: skip
"""Files that a simulated program can reach, by library: of transformers the common ones and the built-in families."""


@cache
def places(library: str) -> Mapping[str, str]:
    """Return the functions that ask, such as ``"trl/trainer/utils.py::entropy_from_logits"``, with their code."""
    spec = find_spec(library)
    assert spec is not None and spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    found: dict[str, str] = {}
    for pattern in LIBRARIES[library]:
        for path in sorted(root.glob(pattern)):
            text = path.read_text()
            for where, node in _asking(ast.parse(text), "module"):
                name = f"{library}/{path.relative_to(root).as_posix()}::{where}"
                if name not in found:  # the code of a node is found by splitting the whole text
                    found[name] = ast.get_source_segment(text, node) or ""
    return found


def _asking(node: ast.AST, where: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _asking(child, child.name if where == "module" else f"{where}.{child.name}")
            continue
        if _asks(child):
            yield where, child
        yield from _asking(child, where)


def _asks(node: ast.AST) -> bool:
    match node:
        case ast.Compare():
            parts = [node.left, *node.comparators]
            return any(_names_a_device(part) for part in parts) and any(_is_a_device(part) for part in parts)
        case ast.Attribute(attr="is_cuda"):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _QUESTIONS:
            return True
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="cuda"), attr="is_available")):
            return True
    return False


def _names_a_device(part: ast.AST) -> bool:
    return any(isinstance(each, ast.Constant) and each.value in _DEVICES for each in ast.walk(part))


def _is_a_device(part: ast.AST) -> bool:
    names = (getattr(each, "attr", None) or getattr(each, "id", None) for each in ast.walk(part))
    return any(name == "type" or "device" in (name or "") for name in names)
