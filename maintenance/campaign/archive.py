"""The campaign's folder as one archive in parts, to copy it from a machine without persistent storage."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from maintenance.tar_files import extract
from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import MIB
from profiler.storage.files.atomic import write_atomically

PART_BYTES = 15 * MIB
"""Below 16 MiB, a common limit for the transfer of single files."""

_NAME = "campaign.tar.gz.part"
_LEFT_OUT = (".lock", ".beat", ".part", ".stderr", ".png", ".svg", ".html")
"""Suffixes of files of a running sweep, and of files that `python -m profiler.report` writes again."""
_SITE = "site"
"""A folder of the campaign with installed packages."""


def pack(folder: Path, into: Path) -> tuple[Path, ...]:
    """Write everything under `folder` into parts of at most `PART_BYTES` in `into`, replacing earlier ones.

    Raises:
        StorageError: A part could not be written.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in _files(folder):
            archive.add(path, arcname=str(path.relative_to(folder)))
    content = packed.getvalue()
    parts = [content[start : start + PART_BYTES] for start in range(0, len(content), PART_BYTES)]
    paths = tuple(into / f"{_NAME}{number:02d}" for number in range(len(parts)))
    for path, part in zip(paths, parts, strict=True):
        write_atomically(path, part)
    for older in set(into.glob(f"{_NAME}*")) - set(paths):
        older.unlink()
    return paths


def unpack(parts_in: Path, folder: Path) -> int:
    """Extract an archive into `folder` without replacing files. Return the number of new files.

    Raises:
        UsageError: There are no parts, or they are not an archive.
    """
    content = b"".join(path.read_bytes() for path in sorted(parts_in.glob(f"{_NAME}*")))
    if not content:
        raise UsageError([Fault(key="archive", found=str(parts_in), problem=f"must hold {_NAME}00 and so on")])
    new = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            for member in archive:
                if member.isfile() and not (folder / member.name).exists():
                    extract(archive, member, folder)
                    new += 1
    except (tarfile.TarError, EOFError, OSError) as error:
        fault = Fault(key="archive", found=str(parts_in), problem=f"cannot be read as one archive ({error})")
        raise UsageError([fault]) from error
    return new


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if path.is_file() and path.suffix not in _LEFT_OUT and inside[0] != _SITE:
            yield path
