"""The extras of the distribution, and the packages that are missing without them.

The operating systems that commands run on, and how other Python processes are started there.
"""

import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from profiler.domain.errors import Fault, UsageError

LINUX = "Linux"
SYSTEMS = (LINUX, "macOS", "Windows")
"""Those that the core runs on."""


def require_linux(key: str, found: str, *, everywhere: str) -> None:
    """Check that this is Linux: trials, scripts and watched commands are followed by its /proc and its signals.

    Args:
        key: What needs it.
        found: The words of the user.
        everywhere: The commands that run on every system, for the sentence.

    Raises:
        UsageError: It is another system.
    """
    if not sys.platform.startswith("linux"):
        problem = f"runs on {LINUX} only, and this is {sys.platform}"
        hint = f"Use a container or, on Windows, WSL 2. {everywhere} run on {listed(SYSTEMS)}."
        raise UsageError([Fault(key=key, found=found, problem=problem, hint=hint)])


def safe_path_flags() -> tuple[str, ...]:
    """Return `-P`, unless this process finds modules in the current folder too, as `python -m` does.

    `python -m` and `python -c` look there first. The current folder can be a checkout of somebody else, whose
    ``yaml.py`` a child of the console script would run.
    """
    return () if _finds_in_current_folder() else ("-P",)


def safe_path_variables() -> dict[str, str]:
    """Return the environment variable that does what `safe_path_flags` does, for those whose flags are not ours."""
    return {} if _finds_in_current_folder() else {"PYTHONSAFEPATH": "1"}


def _finds_in_current_folder() -> bool:
    return "" in sys.path or str(Path.cwd()) in sys.path


if TYPE_CHECKING:
    from importlib.metadata import Distribution

DISTRIBUTION = "grpo-vram"
"""Name of the distribution, and of its console script."""

FORMER_DISTRIBUTION = "grpo-vram-profiler"
"""Its name before, with the same packages."""

ON_INDEX = False
"""Whether the package index has it, so that pip and uv find it by its name. The commit of the first upload sets it, and
documents may say so then: the workflow `release` publishes no wheel in which it is False."""


class Extra(StrEnum):
    """What `pip install '.[NAME]'` in a clone adds to the bare distribution."""

    SWEEP = "sweep"
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


def installed() -> "Distribution | None":
    """Return this distribution as it is installed; None if it runs from a folder only.

    An editable installation that was made under the former name runs the code of today.
    """
    return _found(DISTRIBUTION) or _found(FORMER_DISTRIBUTION)


def _found(name: str) -> "Distribution | None":
    from importlib.metadata import PackageNotFoundError, distribution  # 15 ms, for hints and conflicts alone

    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def refuse_former() -> None:
    """Check that no distribution of the former name is installed next to this one: each has the same files.

    Raises:
        UsageError: One is.
    """
    if (
        not _is_noted(FORMER_DISTRIBUTION)
        or _found(DISTRIBUTION) is None
        or (former := _found(FORMER_DISTRIBUTION)) is None
    ):
        return
    raise UsageError(
        [
            Fault(
                key="installation",
                found=f"{FORMER_DISTRIBUTION} {former.version}",
                problem=f"has the same files as {DISTRIBUTION}, which is installed too",
                hint=f"Uninstall {FORMER_DISTRIBUTION} and {DISTRIBUTION}, then install {DISTRIBUTION} again.",
            )
        ]
    )


def _is_noted(name: str) -> bool:
    """Return whether a folder of packages names a distribution (`NAME-VERSION.dist-info`); no such file is read."""
    begins = name.replace("-", "_")
    for folder in sys.path:
        with suppress(OSError):  # a folder that is not there, or an archive
            if any(each.name.replace("-", "_").lower().startswith(begins) for each in Path(folder).iterdir()):
                return True
    return False


def install_hint(extra: Extra) -> str:
    """Return the command that installs an extra where this program runs, as a sentence."""
    return f"Install the extra '{extra}': {_install_command(extra)}."


_UVX_FOLDER = "archive-v0"
"""Part of the path of an environment that `uvx` made, which it makes anew for other requirements."""


def _install_command(extra: Extra) -> str:
    """Return the command of the tool that installed this distribution: pip, `uvx` or uv."""
    words = _to_install(extra)
    here = installed()
    if here is None or (here.read_text("INSTALLER") or "").strip() != "uv":
        return f"pip install {' '.join(words)}"
    if _UVX_FOLDER in Path(sys.prefix).parts and len(words) == 1:
        return f"uvx --from {words[0]} {DISTRIBUTION}"
    return f"uv pip install --python {quoted(sys.executable)} {' '.join(words)}"


def _to_install(extra: Extra) -> list[str]:
    """Return the arguments that install an extra, quoted: the place that this program is from.

    That is the clone that runs, or what was noted when it was installed (PEP 610); where neither is known, its name if
    the package index has it, else the packages of the extra by themselves.
    """
    clone = Path(__file__).resolve().parents[3]
    if (clone / "pyproject.toml").is_file():
        return ["-e", quoted(f"{clone}[{extra}]")]
    place = installed_from(extra) or (f"{DISTRIBUTION}[{extra}]" if ON_INDEX else "")
    return [quoted(place)] if place else [quoted(each) for each in extra_requirements(extra)]


def installed_from(extra: Extra) -> str:
    """Return the requirement of an extra at the place that this distribution was installed from; empty if unknown."""
    from urllib.request import url2pathname  # with all of HTTP

    here = installed()
    try:
        noted = json.loads((here and here.read_text("direct_url.json")) or "{}")
    except ValueError:
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
    here = installed()
    if here is None:
        return list(TRAINING)
    found: dict[str, None] = {}
    for each in here.requires or []:
        requirement, _, marker = (part.strip() for part in each.partition(";"))
        if not re.search(rf"""extra\s*==\s*['"]{extra}['"]""", marker):
            continue
        inner = re.fullmatch(rf"{here.name}\[([\w,]+)\]", requirement)
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
