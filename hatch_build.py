"""Part of the wheel's build: the sources of the emulated driver go into one archive, a quarter of their size.

Only a machine that emulates needs them, and the wheel is what everyone downloads first.
"""

import io
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

EDITABLE = "editable"
DRIVER = Path("profiler") / "emulation" / "driver"


class DriverArchive(BuildHookInterface):
    """Adds the archive to a wheel; an installation in place has the folder."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the archive, the same for the same files."""
        if version == EDITABLE:
            return
        folder = Path(self.root) / DRIVER
        archive = Path(tempfile.mkdtemp()) / "driver.tar.xz"
        with tarfile.open(archive, "w:xz", preset=9) as packed:
            for path in sorted(each for each in folder.rglob("*") if each.is_file()):
                content = path.read_bytes()
                entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
                entry.size = len(content)
                packed.addfile(entry, io.BytesIO(content))
        build_data["force_include"][str(archive)] = f"{DRIVER.as_posix()}.tar.xz"
