"""Build the compiled replay of traces with the C compiler of this machine.

`make install` does: `python -m maintenance.environments.compiled_replay`. Without a compiler, traces are replayed in
Python, with the same results.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from profiler.allocator.traces import smallest_fit
from profiler.domain.errors import ProfilerError


def build(file: Path) -> None:
    """Compile the source to `file`, which exists only when it is complete.

    Raises:
        ProfilerError: There is no C compiler, or it fails.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise ProfilerError("A C compiler (cc) was not found: install gcc, or do without the compiled replay.")
    unfinished = file.with_suffix(".unfinished")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(unfinished), str(smallest_fit.SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProfilerError(f"The compiled replay could not be built by {compiler}: {done.stderr.strip()}")
    unfinished.replace(file)


def main() -> None:
    """Build it next to its source, and remove that of older sources.

    Raises:
        ProfilerError: As `build`.
    """
    file = smallest_fit.library_file()
    assert file is not None  # a clone has the source
    build(file)
    for other in file.parent.glob(f"{smallest_fit.SOURCE.stem}-*.so"):
        if other != file:
            other.unlink()


if __name__ == "__main__":
    try:
        main()
    except ProfilerError as error:
        sys.exit(str(error))
