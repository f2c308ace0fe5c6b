"""Environments of the predictors' packages, outside of the repository, and how large they are."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from maintenance.benchmark.answers.predictors import Predictor


def python_of(folder: Path, predictor: Predictor) -> Path:
    """Return the Python of a predictor's environment; make the environment first if there is none."""
    if predictor.is_here:
        return Path(sys.executable)
    place = folder / predictor.key
    python = place / "bin" / "python"
    if not python.exists():
        _run(sys.executable, "-m", "venv", str(place))
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run(*pip, *(("--no-deps",) if predictor.needs is not None else ()), predictor.package)
        if predictor.needs:
            _run(*pip, *predictor.needs)
        if predictor.sees_ours:
            (_packages(python) / "ours.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def install_bytes(folder: Path, predictor: Predictor) -> int:
    """Return what a package and what it needs take, without pip and setuptools; 0 of one of this environment."""
    if predictor.is_here:
        return 0
    packages = _packages(python_of(folder, predictor))
    own = {"pip", "setuptools", "pkg_resources", "_distutils_hack"}
    files = (file for part in packages.iterdir() if part.name.partition("-")[0] not in own for file in _files(part))
    return sum(file.stat().st_size for file in files if "__pycache__" not in file.parts)


def _files(part: Path) -> list[Path]:
    return [file for file in part.rglob("*") if file.is_file()] if part.is_dir() else [part]


def _packages(python: Path) -> Path:
    (found,) = (python.parents[1] / "lib").glob("python*/site-packages")
    return found


def _run(*words: str) -> None:
    subprocess.run(words, check=True)
