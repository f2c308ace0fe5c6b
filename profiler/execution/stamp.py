"""What tells a file that was just written from one that lay there before."""

from pathlib import Path

Stamp = tuple[int, int] | None
"""Identity of a file (inode, time of change); None for no file."""


def stamp_of(path: Path) -> Stamp:
    """The stamp of the file at `path`."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_mtime_ns)
