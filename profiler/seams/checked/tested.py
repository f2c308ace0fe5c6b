"""The versions that the project's tests ran with. Results with any other version are marked."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

TESTED: Mapping[str, tuple[str, ...]] = {
    "torch": ("2.13.0",),
    "trl": ("1.16.0",),
    "transformers": ("5.23.0",),
    "peft": ("0.21.2",),
    "bitsandbytes": ("0.50.2",),
    "accelerate": ("1.15.0",),
    "datasets": ("5.2.0",),
    "huggingface_hub": ("2.4.0",),
    "diffusers": ("0.42.1",),
    "torchvision": ("0.29.2",),
    "evaluate": ("0.4.6",),
    "vllm": ("0.31.0",),
}
"""By package, without the suffix of a build (``+cu130``). A test requires the pins of constraints.txt among them."""


@cache
def installed(library: str) -> str | None:
    """Return the installed version without the suffix of its build; None for a package that is not installed."""
    try:
        return version(library).partition("+")[0]
    except PackageNotFoundError:
        return None


def untested() -> Mapping[str, str]:
    """Return the installed versions that were never tested, by package."""
    found = {library: installed(library) for library in TESTED}
    return {
        library: number for library, number in found.items() if number is not None and number not in TESTED[library]
    }


def is_older(version_text: str, than: str) -> bool:
    """Compare the first two numbers of two versions."""
    return _major_minor(version_text) < _major_minor(than)


def _major_minor(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])
