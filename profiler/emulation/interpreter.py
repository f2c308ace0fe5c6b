"""What is installed in a Python environment, by asking it too, the version of the emulation, and the cache folder."""

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from profiler.config.options.reading import is_flag, is_text, is_text_or_none, is_texts, read_answer
from profiler.domain.errors import Fault, UsageError

MOST_BYTES = 1 << 20
"""Most that a program may print as its answer, and most on standard error."""

_LOOK_S = 0.1
"""How often the length of what it printed is looked at."""


def answer_of(
    command: Sequence[str], *, environment: Mapping[str, str], timeout_s: float, cwd: str | None = None
) -> str:
    """Run a program and return what it prints. Children that it leaves behind are not waited for.

    Raises:
        OSError: It cannot be started.
        ValueError: It prints more than `MOST_BYTES`.
        subprocess.TimeoutExpired: It does not end in time.
        subprocess.CalledProcessError: It ends with another exit code than 0; its `stderr` is text.
    """
    # Files, not pipes: a child that stays behind would keep a pipe open.
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, env=dict(environment), cwd=cwd, stdin=subprocess.DEVNULL, stdout=printed, stderr=errors
        )
        try:
            _wait(process, timeout_s, (printed, errors))
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, stderr=_text(errors))
        return _text(printed)


def _wait(process: subprocess.Popen[bytes], timeout_s: float, files: Sequence[BinaryIO]) -> None:
    end_s = time.monotonic() + timeout_s
    while True:
        left_s = end_s - time.monotonic()
        try:
            process.wait(max(0.0, min(_LOOK_S, left_s)))
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
        if any(os.fstat(file.fileno()).st_size > MOST_BYTES for file in files):
            raise ValueError(f"it prints more than {MOST_BYTES} bytes")
        if ended:
            return
        if left_s <= _LOOK_S:
            raise subprocess.TimeoutExpired(process.args, timeout_s)


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


EMULATION_VERSION = "2"
"""Raised when a change of the driver or of the values changes emulated numbers."""

TRIED_TORCH = ("2.11", "2.12", "2.13")
"""Minor versions of torch whose entry points and figures were looked at. Others run with `strict=false`."""


_PROBE = """
import importlib.metadata, importlib.util, json, platform, runpy, sys
spec = importlib.util.find_spec("torch")
found = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system(), "torch": None}
if spec is not None and spec.submodule_search_locations:
    folder = list(spec.submodule_search_locations)[0]
    version = runpy.run_path(folder + "/version.py")
    found |= {"torch": version["__version__"], "cuda": version.get("cuda"), "folder": folder,
              "commit": version.get("git_version"), "requires": importlib.metadata.requires("torch") or [],
              "search_path": [path for path in sys.path if path],
              "triton": importlib.util.find_spec("triton") is not None}
print(json.dumps(found))
"""

_FORM = {"python": is_text, "machine": is_text, "system": is_text, "torch": is_text_or_none}
_FORM_OF_TORCH = {
    "cuda": is_text_or_none,
    "folder": is_text,
    "commit": is_text_or_none,
    "requires": is_texts,
    "search_path": is_texts,
    "triton": is_flag,
}

_TIMEOUT_S = 60


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python interpreter whose environment has a CUDA build of torch."""

    executable: Path
    torch: str
    """Version, such as ``"2.13.0+cu130"``."""
    cuda: str
    """Version of CUDA that torch was built for, such as ``"13.0"``."""
    commit: str
    """The commit of torch."""
    torch_folder: Path
    """Where torch is installed."""
    search_path: tuple[Path, ...]
    """Folders in which packages are looked for, the first first: torch's need not have the others."""
    requires: tuple[str, ...]
    """What torch requires; it pins the vendor's libraries."""
    has_triton: bool

    @property
    def site_packages(self) -> Path:
        """The folder of torch and of what was installed with it."""
        return self.torch_folder.parent

    @property
    def torch_minor(self) -> str:
        """Such as ``"2.13"``."""
        return ".".join(self.torch.split(".")[:2])


def probe(executable: Path) -> Interpreter:
    """Return what the environment of an interpreter has.

    Raises:
        UsageError: It does not run, or has no CUDA build of torch for Linux on x86-64.
    """
    found = _ask(executable)
    if (found["system"], found["machine"]) != ("Linux", "x86_64"):
        raise _unusable(executable, f"runs on {found['system']} {found['machine']}, not on Linux x86_64")
    if found["torch"] is None:
        raise _unusable(executable, "has no torch")
    if wrong := [key for key, check in _FORM_OF_TORCH.items() if key not in found or not check(found[key])]:
        raise _unusable(executable, f"prints something else than what a Python is asked for: {', '.join(wrong)}")
    if not found["cuda"]:
        raise _unusable(executable, f"has torch {found['torch']}, which is not a CUDA build")
    return Interpreter(
        executable=executable,
        torch=found["torch"],
        cuda=found["cuda"],
        commit=found["commit"] or "",
        torch_folder=Path(found["folder"]),
        search_path=tuple(map(Path, found["search_path"])),
        requires=tuple(found["requires"]),
        has_triton=found["triton"],
    )


def _ask(executable: Path) -> dict[str, Any]:
    # Without the caller's PYTHONPATH: what it names is not in the environment.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(executable), "-c", _PROBE]
    try:
        printed = answer_of(command, environment=environment, timeout_s=_TIMEOUT_S, cwd="/")
        return read_answer(printed.splitlines()[-1], _FORM)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise _unusable(executable, f"does not run ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return str((error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1])
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


def _unusable(executable: Path, problem: str) -> UsageError:
    hint = "Give an environment with a CUDA build of torch, or run python -m profiler.emulation install."
    return UsageError([Fault(key="python", found=str(executable), problem=problem, hint=hint)])


VARIABLE = "GRPO_VRAM_CACHE"
"""Environment variable: a folder for built libraries and environments, instead of the user's cache folder."""


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder: `VARIABLE`, or `grpo-vram-profiler` in the XDG cache folder.

    The folder keeps the former name of the distribution, and what is in it.
    """
    found = os.environ if environment is None else environment
    if given := found.get(VARIABLE):
        return Path(given).expanduser().absolute()
    home = Path(found.get("HOME") or Path.home())
    return Path(found.get("XDG_CACHE_HOME") or home / ".cache") / "grpo-vram-profiler"
