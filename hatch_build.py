"""Part of the wheel's build: what few commands read is packed, a quarter of its size.

Only a machine that emulates needs the sources of the driver and what its processes import, only runs of scripts what
replaces their models and data, only trials their workers, trainers and simulation, only jobs of verl its
defaults, and only reports the scripts of pages; the wheel is what everyone downloads first.
"""

import io
import lzma
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

EDITABLE = "editable"
_FOLDERS = ("emulation/driver", "emulation/inside", "simulation", "substitutes", "training", "worker")
PACKED = tuple(Path("profiler") / name for name in _FOLDERS)
"""Folders; in its archive each has its name. The last four are packages, which `profiler` finds there."""


class Packed(BuildHookInterface):
    """Adds the packed files to a wheel; an installation in place has them as they are.

    `texts` in pyproject.toml names those that `profiler.domain.text.packed_text` reads.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Pack them, the same for the same content."""
        if version == EDITABLE:
            return
        work = Path(tempfile.mkdtemp())
        for folder in PACKED:
            archive = work / f"{folder.name}.tar.xz"
            _pack(Path(self.root) / folder, archive)
            build_data["force_include"][str(archive)] = f"{folder.as_posix()}.tar.xz"
        for number, text in enumerate(self.config["texts"]):
            small = work / f"{number}.xz"
            small.write_bytes(lzma.compress((Path(self.root) / text).read_bytes(), preset=9))
            build_data["force_include"][str(small)] = f"{text}.xz"


def _pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in sorted(each for each in folder.rglob("*") if each.is_file() and each.parent.name != "__pycache__"):
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(folder.parent).as_posix())
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
