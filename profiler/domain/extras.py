"""The extras of the distribution, and the packages that are missing without them."""

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from profiler.domain.errors import Fault, UsageError

DISTRIBUTION = "grpo-vram-profiler"


class Extra(StrEnum):
    """What `pip install '.[NAME]'` in a clone adds to the commands that need no torch."""

    SIMULATE = "simulate"
    MEASURE = "measure"
    EMULATE = "emulate"
    VLLM = "vllm"
    S3 = "s3"
    GCS = "gcs"
    RAY = "ray"
    SLURM = "slurm"


TRAINING = ("accelerate", "bitsandbytes", "datasets", "peft", "torch", "transformers", "trl")
"""What a worker imports."""


def missing(modules: Sequence[str]) -> tuple[str, ...]:
    """Return which of these modules are not installed. None of them is imported."""
    return tuple(name for name in modules if find_spec(name) is None)


def install_hint(extra: Extra) -> str:
    """Return the command that installs an extra, as a sentence."""
    return f"Install the extra '{extra}': pip install {' '.join(_to_install(extra))}."


def _to_install(extra: Extra) -> list[str]:
    """Return pip's arguments for an extra, quoted: the place that this program is from, because no index has its name.

    That is the clone that runs, or what pip noted when it installed it (PEP 610); where neither is known, the packages
    of the extra by themselves.
    """
    clone = Path(__file__).resolve().parents[2]
    if (clone / "pyproject.toml").is_file():
        return ["-e", quoted(f"{clone}[{extra}]")]
    place = installed_from(extra)
    return [quoted(place)] if place else [quoted(each) for each in extra_requirements(extra)]


def installed_from(extra: Extra) -> str:
    """Return the requirement of an extra at the place that pip installed this distribution from; empty if unknown."""
    try:
        noted = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    url = str(noted.get("url", ""))
    parts = urlsplit(url)
    if "dir_info" in noted or parts.scheme == "file":
        path = Path(url2pathname(parts.path))
        return f"{path}[{extra}]" if path.exists() else ""
    version = noted.get("vcs_info")
    if isinstance(version, dict):
        return f"{DISTRIBUTION}[{extra}] @ {version.get('vcs', 'git')}+{url}@{version.get('commit_id', 'HEAD')}"
    return f"{DISTRIBUTION}[{extra}] @ {url}" if url else ""


def extra_requirements(extra: Extra) -> list[str]:
    """Return the packages of an extra and of the extras that it contains, as this distribution declares them."""
    try:
        declared = distribution(DISTRIBUTION).requires or []
    except PackageNotFoundError:
        return list(TRAINING)
    found: dict[str, None] = {}
    for each in declared:
        requirement, _, marker = (part.strip() for part in each.partition(";"))
        if not re.search(rf"""extra\s*==\s*['"]{extra}['"]""", marker):
            continue
        inner = re.fullmatch(rf"{DISTRIBUTION}\[([\w,]+)\]", requirement)
        names = inner[1].split(",") if inner is not None else []
        own = [each for name in names for each in extra_requirements(Extra(name))] if names else [requirement]
        found.update(dict.fromkeys(own))
    return list(found)


def quoted(text: str) -> str:
    """Return a word for a shell, in single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


def simulation_hint(but: str = "") -> str:
    """Return what to do about a model for which there is no closed form, as a sentence.

    Args:
        but: What has to be otherwise for a sweep to run it, as words after "simulates it"; nothing if it does.
    """
    return install_hint(Extra.SIMULATE) if missing(TRAINING) else f"`python -m profiler.sweep` simulates it{but}."


def missing_fault(key: str, found: str, modules: Sequence[str], extra: Extra) -> Fault | None:
    """Return the fault of an input that needs `modules`; None if all of them are installed."""
    absent = missing(modules)
    if not absent:
        return None
    are = "is" if len(absent) == 1 else "are"
    return Fault(
        key=key,
        found=found,
        problem=f"needs {listed(absent)}, which {are} not installed",
        hint=install_hint(extra),
    )


def require(key: str, found: str, modules: Sequence[str], extra: Extra) -> None:
    """Check that `modules` are installed.

    Raises:
        UsageError: One of them is not; the sentence names the extra.
    """
    if fault := missing_fault(key, found, modules, extra):
        raise UsageError([fault])


def listed(names: Sequence[str]) -> str:
    """Return ``"a, b and c"``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
