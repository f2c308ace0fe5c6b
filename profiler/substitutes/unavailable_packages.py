"""Packages that are not installed: flash-attn, and metrics of `evaluate`.

The package flash-attn can only be built with a CUDA toolkit, or is loaded from the hub by the package kernels.
Libraries look it up by its metadata, so it is a folder on the search path: for a script that asks for it one that lives
as long as the script, and for the processes of a command one in the folder of the job.
"""

import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from profiler.seams.patching import Patch, around_import
from profiler.substitutes.options import Replaced

PACKAGES = "packages"
"""In the folder of a job: packages that its environment lacks."""

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
        "from contextlib import suppress\n"
        "from profiler.substitutes.flash_attention import index_first_axis, pad_input, unpad_input\n"
        "with suppress(ImportError):\n    from einops import rearrange\n"
    ),
    "flash_attn/ops/__init__.py": "",
    "flash_attn/ops/triton/__init__.py": "",
    "flash_attn/ops/triton/cross_entropy.py": "from profiler.substitutes.flash_attention import cross_entropy_loss\n",
    "flash_attn/utils/__init__.py": "",
    "flash_attn/utils/distributed.py": "from profiler.substitutes.flash_attention import all_gather\n",
    "kernels/__init__.py": (
        '"""flash-attn of the hub, by functions of the profiler."""\n__version__ = "0.0"\n'
        "def get_kernel(repo_id, *_, **__):\n"
        '    if "flash-attn" not in repo_id:\n'
        '        raise FileNotFoundError(f"{repo_id} of the hub is not substituted; install the package kernels")\n'
        "    from profiler.substitutes import flash_attention\n"
        "    return flash_attention\n"
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
def flash_package(replaced: Replaced, folder: Path | None = None) -> Iterator[None]:
    """While active, the package can be imported; if it is not installed, it has torch's own kernels.

    Args:
        replaced: Where it is noted once it is imported.
        folder: Where `write_flash_package` has written it; None writes it for this process alone.
    """
    if importlib.util.find_spec("flash_attn") is not None:
        yield
        return

    def note(_: ModuleType) -> None:
        replaced.add("package", "flash-attn", "torch's own FlashAttention kernels")

    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_flash_package(folder)
        stack.callback(around_import("flash_attn", after=note))
        sys.path.append(str(folder))
        _look_again()
        try:
            yield
        finally:
            sys.path.remove(str(folder))
            _look_again()


def write_flash_package(folder: Path) -> None:
    """Write the package into a folder, which then can be on the search path of any number of processes."""
    for name, content in _FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


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
