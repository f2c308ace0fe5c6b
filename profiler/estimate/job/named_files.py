"""Files that a command or a shell script names: looked for next to the script, above it, and here."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from profiler.config.foreign_text import (
    MOST_JSON_BYTES,
    MOST_SCRIPT_BYTES,
    MOST_YAML_BYTES,
    ForeignTextError,
    parse_json,
    parse_yaml,
)
from profiler.config.launch.parts import NamedFile
from profiler.domain.errors import Fault, UsageError
from profiler.storage.files.foreign_files import Kind, kind_of, read_bytes, reason

_MOST_BYTES = {".py": MOST_SCRIPT_BYTES, ".json": MOST_JSON_BYTES, ".yaml": MOST_YAML_BYTES, ".yml": MOST_YAML_BYTES}
"""What is read, by the end of its name, and how much of it."""

_UNKNOWN_FOLDER = re.compile(r"^(?:\$\{?\w+\}?|\$\([^()]*\))/")
"""A folder that only the user's machine knows, before a path."""

_MOST_ABOVE = 4
"""Folders above a script in which a path is looked for: scripts are started from the root of a repository."""


class NamedFiles:
    """The files that one script or command names."""

    def __init__(self, folder: Path, given: Sequence[str] = ()) -> None:
        """Look in `folder`, above it, and among the files that the user gives."""
        self._folder, self._given = folder, given
        self.read: list[str] = []
        """Those of `given` that were read."""

    def __call__(self, name: str) -> NamedFile | None:
        """Return the file of a name; None if it is not there, or is of a kind that is not read.

        Raises:
            UsageError: It is there and cannot be read.
        """
        path = self._found(_UNKNOWN_FOLDER.sub("", name))
        if path is None:
            return None
        try:
            content = read_bytes(path, most_bytes=_MOST_BYTES[path.suffix])
            if path.suffix == ".py":
                return NamedFile(name=path.name, content=content.decode())
            values = parse_json(content) if path.suffix == ".json" else parse_yaml(content.decode())
        except OSError as error:
            raise _fault(name, f"cannot be read ({reason(error)})") from error
        except UnicodeDecodeError as error:
            raise _fault(name, f"is no text ({error})") from error
        except ForeignTextError as error:
            raise _fault(name, str(error)) from error
        if not isinstance(values, dict):
            raise _fault(name, "contains no keys with values")
        return NamedFile(name=path.name, content=values)

    def _found(self, name: str) -> Path | None:
        if Path(name).suffix not in _MOST_BYTES:
            return None
        for given in self._given:
            if Path(given).name == Path(name).name:
                self.read.append(given)
                return Path(given)
        return next((path for path in self._places(name) if _is_file(path)), None)

    def _places(self, name: str) -> Iterator[Path]:
        """Return where a file may be: by its path from each folder, and by its name next to the script."""
        folders = [self._folder, *self._folder.resolve().parents[:_MOST_ABOVE]]
        yield from (folder / name for folder in folders)
        yield self._folder / Path(name).name


def _is_file(path: Path) -> bool:
    try:
        return kind_of(path) is Kind.FILE
    except OSError:
        return False


def _fault(name: str, problem: str) -> UsageError:
    return UsageError([Fault(key="config", found=name, problem=problem)])
