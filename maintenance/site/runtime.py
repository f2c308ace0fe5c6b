"""Python for browsers: the core of Pyodide, which npm delivers, in one pinned version."""

import base64
import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

from profiler.domain.errors import ProfilerError

VERSION = "314.0.7"
_SHA512 = "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
"""Of npm's archive of that version, in base64, as npm states it (`npm view pyodide@VERSION dist.integrity`)."""

RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")
"""What a page loads. No package of Pyodide is needed."""

_LIMIT_S = 300


class RuntimeFetchError(ProfilerError):
    """Python for browsers is not here and cannot be fetched."""


def fetch_runtime(cache: Path) -> Path:
    """Return the folder with the files of `RUNTIME`, fetched by npm where the cache does not have them.

    Raises:
        RuntimeFetchError: npm is missing or fails, or its archive is another one.
    """
    folder = cache / f"pyodide-{VERSION}"
    if all((folder / name).is_file() for name in RUNTIME):
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / f"pyodide-{VERSION}.tgz"
    if not archive.is_file():
        _pack(cache)
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != _SHA512:
        archive.unlink()
        raise RuntimeFetchError(f"{archive}: its SHA-512 is {found}, and that of version {VERSION} is {_SHA512}.")
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive) as members:
        for name in RUNTIME:
            source = members.extractfile(f"package/{name}")
            assert source is not None
            with source, (folder / name).open("wb") as target:
                shutil.copyfileobj(source, target)
    return folder


def _pack(cache: Path) -> None:
    """Let npm put its archive into the cache."""
    if shutil.which("npm") is None:
        raise RuntimeFetchError("npm is missing: it fetches Python for browsers. Install Node.js.")
    command = ["npm", "pack", "--silent", "--pack-destination", str(cache.resolve()), f"pyodide@{VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeFetchError(f"npm could not fetch pyodide {VERSION} ({last}).")
