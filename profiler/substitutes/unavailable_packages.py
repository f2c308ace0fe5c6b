"""Packages that are not installed: flash-attn, and metrics of `evaluate`.

The package flash-attn for a script that asks for it, where it is not installed.

It can only be built with a CUDA toolkit. Libraries look it up by its metadata, so it is a folder on the search path
that lives as long as the script.
"""

import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from profiler.seams.patching import Patch
from profiler.substitutes.options import Replaced

_VERSION = "2.8.3"
"""The version whose interface the functions have."""
_ASKED_BY = ("flash_attn", "flash_attention_2")
_FILES = {
    "flash_attn/__init__.py": (
        f'"""Functions of the profiler."""\n__version__ = "{_VERSION}"\n'
        "from profiler.substitutes.flash_attention import flash_attn_func, flash_attn_varlen_func\n"
        "from profiler.substitutes.flash_attention import flash_attn_with_kvcache\n"
    ),
    "flash_attn/bert_padding.py": (
        "from profiler.substitutes.flash_attention import index_first_axis, pad_input, unpad_input\n"
    ),
    f"flash_attn-{_VERSION}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {_VERSION}\n",
    f"flash_attn-{_VERSION}.dist-info/RECORD": "flash_attn/__init__.py,,\n",
    f"flash_attn-{_VERSION}.dist-info/top_level.txt": "flash_attn\n",
}


def asks_for_flash(script: Path | None, arguments: Sequence[str]) -> bool:
    """Return whether a script or its arguments name the package or transformers' attention by it."""
    text = "" if script is None else script.read_text(errors="replace")
    return any(name in part for name in _ASKED_BY for part in (text, *arguments))


@contextmanager
def flash_package(replaced: Replaced) -> Iterator[None]:
    """While active, the package can be imported; if it is not installed, it has torch's own kernels."""
    if importlib.util.find_spec("flash_attn") is not None:
        yield
        return
    replaced.add("package", "flash-attn", "torch's own FlashAttention kernels")
    with tempfile.TemporaryDirectory() as folder:
        for name, content in _FILES.items():
            path = Path(folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        sys.path.append(folder)
        _look_again()
        try:
            yield
        finally:
            sys.path.remove(folder)
            _look_again()


def _look_again() -> None:
    """Let transformers forget which packages it has found, if it has looked for them already."""
    looked_up = sys.modules.get("transformers.utils.import_utils")
    for found in vars(looked_up).values() if looked_up else ():
        if hasattr(found, "cache_clear"):
            found.cache_clear()


_FIGURE = 0.5


def metric_patches(evaluate: ModuleType, replaced: Replaced) -> list[Patch]:
    """Return the patch of `evaluate.load`, which downloads the program of a metric."""
    load = _instead_of(evaluate.load, replaced)
    return [(evaluate, "load", load), (evaluate.loading, "load", load)]


class _Figures(dict[str, float]):
    """The figures of a metric: any name is one of them."""

    def __missing__(self, name: str) -> float:
        self[name] = _FIGURE
        return _FIGURE


class SubstituteMetric:
    """A metric that computes nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add(self, *_: Any, **__: Any) -> None:
        """Do nothing with a prediction."""

    def add_batch(self, *_: Any, **__: Any) -> None:
        """Do nothing with several predictions."""

    def compute(self, *_: Any, **__: Any) -> _Figures:
        """Return figures that have any name."""
        return _Figures()


def _instead_of(load: Any, replaced: Replaced) -> Any:
    def loaded(path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(path, *args, **kwargs)
        except (FileNotFoundError, ConnectionError):
            replaced.add("metric", str(path), f"computes nothing, every figure is {_FIGURE}")
            return SubstituteMetric(str(path))

    return loaded
