"""The program for the browser: its sources and those of the package that it needs, as one archive."""

import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]

_OWN = ("grpo_vram", "profiler")
_NEEDED = ("yaml",)
"""Their files of Python: PyYAML does without its extension."""

_OF_TRIALS = frozenset(
    ("callback", "claims", "cluster", "emulation", "execution", "forecast", "monitor", "report", "run", "scripts",
     "seams", "share", "simulation", "substitutes", "sweep", "training", "worker")
)  # fmt: skip
"""Folders of `profiler` that run trials, watch a card or read tables of trials."""

_LEFT_OUT = (
    ("profiler", "rendering", "figures"),
    ("profiler", "storage", "stores"),
    ("profiler", "storage", "sweep_tables"),
)
"""Folders of what matplotlib draws, which no browser has, and of the records and tables of trials."""

_SUFFIXES = (".py", ".json", ".csv")
_AT = (1980, 1, 1, 0, 0, 0)
"""The time of each file, so that equal sources give equal bytes."""


def packed() -> bytes:
    """Return the archive, a zip."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, path in sorted(_files()):
            entry = zipfile.ZipInfo(name, _AT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return content.getvalue()


def _files() -> Iterator[tuple[str, Path]]:
    """Yield the files with their names in the archive."""
    for top in _OWN:
        for path in (ROOT / top).rglob("*"):
            name = path.relative_to(ROOT)
            left_out = name.parts[1] in _OF_TRIALS or name.parts[:3] in _LEFT_OUT or "__pycache__" in name.parts
            if path.suffix in _SUFFIXES and not left_out:
                yield name.as_posix(), path
    for package in _NEEDED:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        for path in folder.rglob("*.py"):
            yield f"{package}/{path.relative_to(folder).as_posix()}", path
