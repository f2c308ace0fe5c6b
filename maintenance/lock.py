"""`make lock`: the packages of constraints.txt with the hashes of their files, as uv resolves them."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from maintenance.words import read_words
from profiler.command_line import as_command, print_line, print_text
from profiler.domain.errors import EXIT_OK, ProfilerError, UsageError
from profiler.storage.files.atomic import write_atomically

ROOT = Path(__file__).parents[1]
LOCK, CUDA_LOCK = Path("requirements.lock"), Path("requirements-cuda.lock")
CUDA_PREFIXES = ("cuda-", "nvidia-", "triton")
"""Beginnings of the names of what the index's own torch needs on Linux; nothing else may be without a pin."""
TORCH_OF_CPU = ("2.13.0", "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b")
"""A version of torch, and the SHA-256 of its build for the CPU (Python 3.11, Linux, x86-64), by `pip hash`. That
build is not on the package index. pip prefers the index's file where both are found."""

_COMPILE = (
    *("pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate"),
    *("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"),
    *("--constraint", "constraints.txt", "--extra", "dev", "pyproject.toml"),
)
_HEAD = "# Made by `make lock` from pyproject.toml and constraints.txt, for Linux on x86-64 and Python 3.11.\n"
_USAGE = f"""\
python -m maintenance.lock [uv=PATH]

Writes {LOCK} and {CUDA_LOCK}: the packages of the extra `dev`,
with the hashes of their files on the package index. Asks the index.

Examples:
  make lock
  python -m maintenance.lock uv=.venv-release/bin/uv
"""


@as_command("lock")
def main(argv: Sequence[str] | None = None) -> int:
    """Write both files and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    values, faults = read_words(words, {"uv": "uv"})
    if faults:
        raise UsageError(faults)
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    own, of_cuda = split(_compiled(str(values["uv"])), pinned)
    for path, blocks in ((LOCK, [_with_cpu_build(block) for block in own]), (CUDA_LOCK, of_cuda)):
        write_atomically(ROOT / path, (_HEAD + "".join(blocks)).encode())
        print_line(f"{ROOT / path}: {len(blocks)} packages")
    return EXIT_OK


def pins(text: str) -> dict[str, str]:
    """Return the pinned version of each package of a requirements file, by its normalized name."""
    lines = [line for line in text.splitlines() if "==" in line and not line.startswith((" ", "#"))]
    pairs = [line.removesuffix("\\").strip().split("==") for line in lines]
    return {name.lower().replace("_", "-").replace(".", "-"): version for name, version in pairs}


def split(text: str, pinned: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the requirements with a pin, and those of CUDA, which have none; each with its hashes.

    Raises:
        ProfilerError: Another package has no pin.
    """
    own: list[str] = []
    of_cuda: list[str] = []
    for block in _blocks(text):
        (name,) = pins(block)
        if name not in pinned and not name.startswith(CUDA_PREFIXES):
            raise ProfilerError(f"constraints.txt has no version of {name}. Add {block.split()[0]}.")
        (own if name in pinned else of_cuda).append(block)
    return own, of_cuda


def _blocks(text: str) -> Iterator[str]:
    """Yield each requirement of a compiled file, with the lines of its hashes."""
    block = ""
    for line in text.splitlines(keepends=True):
        if block and not line.startswith(" "):
            yield block
            block = ""
        block += line
    if block:
        yield block


def _with_cpu_build(block: str) -> str:
    """Return a requirement, with the hash of torch's build for the CPU if it is that version of torch."""
    version, digest = TORCH_OF_CPU
    if not block.startswith(f"torch=={version} "):
        return block
    return f"{block.rstrip()} \\\n    --hash=sha256:{digest}\n"


def _compiled(uv: str) -> str:
    """Return the requirements of the extra `dev`, as uv resolves them.

    Raises:
        ProfilerError: uv is missing, or it fails.
    """
    try:
        found = subprocess.run([uv, *_COMPILE], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ProfilerError(
            f"uv={uv} cannot be started ({error.strerror}). Run `make lock`, which installs uv."
        ) from error
    if found.returncode:
        raise ProfilerError(f"uv={uv} ended with exit code {found.returncode}: {found.stderr.strip()}")
    return found.stdout


if __name__ == "__main__":
    sys.exit(main())
