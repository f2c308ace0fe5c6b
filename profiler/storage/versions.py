"""Versions of the installed packages that decide memory, read without importing any of them."""

from importlib.metadata import PackageNotFoundError, version

from profiler import __version__
from profiler.domain.outcome import Versions


def installed_versions() -> Versions:
    """Return the installed versions; None for a package that is not installed."""
    return Versions(
        torch=_version("torch"),
        trl=_version("trl"),
        transformers=_version("transformers"),
        peft=_version("peft"),
        bitsandbytes=_version("bitsandbytes"),
        profiler=__version__,
        deepspeed=_version("deepspeed"),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
