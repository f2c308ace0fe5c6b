"""The C and C++ compilers."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from profiler.domain.errors import ProfilerError

_TIMEOUT_S = 600


class CompilerError(ProfilerError):
    """A compiler is missing, or could not build a library."""


def require_compilers() -> None:
    """Check that gcc, g++ and binutils are there.

    Raises:
        CompilerError: One is missing.
    """
    missing = [name for name in ("gcc", "g++", "nm", "readelf") if shutil.which(name) is None]
    if missing:
        raise CompilerError(
            f"{', '.join(missing)} not found: the emulated driver is compiled once per installed torch. "
            "Install gcc and g++ (Debian and Ubuntu: apt-get install build-essential)."
        )


def compile_library(compiler: str, target: Path, sources: Sequence[Path], options: Sequence[str]) -> None:
    """Compile one shared library.

    Raises:
        CompilerError: The compiler failed; the sentence has its first error.
    """
    command = [compiler, "-O2", "-fPIC", "-shared", "-w", "-o", str(target), *map(str, sources), *options]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise CompilerError(f"{compiler} did not finish {target.name} within {_TIMEOUT_S} s.") from error
    except OSError as error:
        raise CompilerError(f"{compiler} could not be started ({error.strerror or error}).") from error
    except subprocess.CalledProcessError as error:
        raise CompilerError(f"{compiler} could not build {target.name}: {first_error(error.stderr)}") from error


def first_error(output: str) -> str:
    """Return the first line of a compiler's output that names an error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line or "undefined" in line]
    return (named or lines or ["it gave no reason"])[0]
