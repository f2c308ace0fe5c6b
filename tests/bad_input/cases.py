"""The form of a bad input: words of a command line, files in its working folder, and what the command must say."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path


class Special(Enum):
    """What is no regular file."""

    FIFO = auto()
    """A named pipe, whose opening waits for a writer."""
    ZERO = auto()
    """A link to /dev/zero, which never ends."""
    LOOP = auto()
    """A link to itself."""
    FOLDER = auto()


Files = Mapping[str, str | bytes | Special]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One bad input of one command."""

    words: tuple[str, ...]
    says: str
    """Texts that must appear on standard error, separated by an ellipsis."""
    files: Files = field(default_factory=dict)
    """By path in the working folder."""
    code: int = 2
    sentences: int = 1

    def prepare(self, folder: Path) -> None:
        """Make the files in `folder`."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif isinstance(content, str):
                path.write_text(content)
            else:
                _make(path, content)

    def texts(self) -> list[str]:
        """The parts of `says`."""
        return self.says.split(" … ") if self.says else []


def _make(path: Path, special: Special) -> None:
    match special:
        case Special.FIFO:
            os.mkfifo(path)
        case Special.ZERO:
            path.symlink_to("/dev/zero")
        case Special.LOOP:
            path.symlink_to(path.name)
        case Special.FOLDER:
            path.mkdir()


def bad(*words: str, says: str = "", sentences: int = 1, code: int = 2, files: Files | None = None) -> Case:
    """Return a case."""
    return Case(words=words, says=says, sentences=sentences, code=code, files=files or {})


LONG = "a" * 300
"""More characters than the name of a file may have."""

DEEP_PATH = "/" + "a/" * 3000

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{inner}'] * 9)}]\n" for inner, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Nine lines that stand for 400 million values."""
