"""Versions of the installed packages that decide memory, read without importing any of them."""

from importlib.metadata import PackageNotFoundError, version

from profiler import __version__
from profiler.domain.machines.extras import installed
from profiler.domain.runs.outcome import PACKAGES, Versions


def installed_versions() -> Versions:
    """Return the installed versions; None for a package that is not installed."""
    return Versions(**{name: _version(name) for name in PACKAGES}, profiler=__version__)


def project_page() -> str:
    """Return the address of the project's page; empty if the installed distribution declares none."""
    here = installed()
    declared = [] if here is None else here.metadata.get_all("Project-URL") or []
    pages = dict(entry.partition(", ")[::2] for entry in declared)
    page = pages.get("Homepage", "")
    return page if page.startswith("https://") else ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
