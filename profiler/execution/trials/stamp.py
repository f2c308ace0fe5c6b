"""Stamp of a file, which distinguishes a file that was just written from an earlier one."""

from pathlib import Path

Stamp = tuple[int, int] | None
"""Inode and time of the last change in ns; None if there is no file."""


def stamp_of(path: Path) -> Stamp:
    """Return the stamp of the file at `path`."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_mtime_ns)
