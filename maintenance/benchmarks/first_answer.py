"""How long the bare wheel takes from an empty environment to its first answer, by pip and by uv."""

import os
import shutil
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ALLOWED_INSTALL_S = 5.0
ALLOWED_ANSWER_S = 0.4

JOB = ("qwen2.5-7b", "tuning=lora", "gpu=4090")

_ANSWERS = 9
_ROOT = Path(__file__).parents[2]
_UV_OF_RELEASE = _ROOT / ".venv-release" / "bin" / "uv"
"""What `make dist` installs."""


@dataclass(frozen=True, kw_only=True)
class FirstAnswer:
    """One installation of the wheel and what it depends on, from the index and without a cache."""

    installer: str
    """With its version."""
    install_s: float
    answers_s: tuple[float, ...]
    """Whole processes, one after the other; each imports bytecode."""
    processor_s: float
    """Processor time of one of them, on average: what a busy machine leaves alone."""

    @property
    def answer_s(self) -> float:
        """The median."""
        return statistics.median(self.answers_s)


def first_answers() -> tuple[FirstAnswer, ...] | str:
    """Return the times by pip, and by uv where it is found; why not, where the wheel cannot be built or installed."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        try:
            _run("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(_ROOT))
            (wheel,) = folder.glob("*.whl")
            return tuple(_measured(folder, each, wheel) for each in ("pip", _uv()) if each)
        except subprocess.CalledProcessError as error:
            return str(error.stderr).strip().splitlines()[-1]


def _uv() -> str:
    found = shutil.which("uv") or shutil.which(str(_UV_OF_RELEASE))
    return found or ""


def _measured(folder: Path, installer: str, wheel: Path) -> FirstAnswer:
    home = folder / Path(installer).name
    venv.create(home, with_pip=installer == "pip")
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    python = str(scripts / "python")
    if installer == "pip":
        version = _run("-m", "pip", "--version", python=python).partition(" from ")[0]
        command = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", str(wheel)]
    else:
        version = _called((installer, "--version")).strip()
        command = [installer, "pip", "install", "--no-cache", "--compile-bytecode", "--python", python, str(wheel)]
    install_s, _ = _timed(command)
    _timed((str(scripts / "grpo-vram"), *JOB))  # from now on the files are in the memory of the system
    before_s = _processor_s()
    answers = [_timed((str(scripts / "grpo-vram"), *JOB))[0] for _ in range(_ANSWERS)]
    processor_s = (_processor_s() - before_s) / _ANSWERS
    return FirstAnswer(installer=version, install_s=install_s, answers_s=tuple(answers), processor_s=processor_s)


def _processor_s() -> float:
    """Return the processor time of all processes that were started here and have ended."""
    found = os.times()
    return found.children_user + found.children_system


def _run(*words: str, python: str = sys.executable) -> str:
    return _called((python, *words))


def _timed(command: Sequence[str]) -> tuple[float, str]:
    start = time.perf_counter()
    output = _called(command)
    return time.perf_counter() - start, output


def _called(command: Sequence[str]) -> str:
    """Return the output of a process that knows nothing of this checkout.

    Raises:
        subprocess.CalledProcessError: It fails.
    """
    ours = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        command, env=environment, cwd=Path(__file__).anchor, capture_output=True, text=True, check=True
    ).stdout
