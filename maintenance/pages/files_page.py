"""`python -m maintenance.pages.files_page`: docs/files.md, made from the docstrings of packages and modules."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from maintenance.pages.docstrings import docstring_of, opening
from maintenance.words import asks_for_help
from profiler.command_line import as_command, print_line
from profiler.domain.errors import EXIT_OK
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import markdown_table
from profiler.storage.files.atomic import write_atomically

ROOT = Path(__file__).parents[2]
PAGE = Path("docs/files.md")
_TOPS = ("profiler", "maintenance")
_PACKAGE = "__init__.py"
_HEAD = """\
# Folders and files

What each folder and each file is for, in the words of its docstring. [ARCHITECTURE.md](../ARCHITECTURE.md) says how
they belong together. After a file or a docstring has changed, write this page anew:
`python -m maintenance.pages.files_page`."""
_USAGE = f"""\
python -m maintenance.pages.files_page

Writes {PAGE} from the docstrings of all packages and modules.

Examples:
  python -m maintenance.pages.files_page
"""


@as_command("files_page")
def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if asks_for_help(words, _USAGE):
        return EXIT_OK
    write_atomically(ROOT / PAGE, files_page(ROOT).encode())
    print_line(f"{ROOT / PAGE}")
    return EXIT_OK


def files_page(root: Path) -> str:
    """Return the whole page of the packages below `root`."""
    return "\n\n".join([_HEAD, *(block for top in _TOPS for block in _blocks(root, root / top))]) + "\n"


def undescribed(root: Path) -> list[Path]:
    """Return the files below `root` that have no docstring of at least a word, and so no words on the page."""
    return [path for top in _TOPS for path in sorted((root / top).rglob("*.py")) if not docstring_of(path).strip(". ")]


def _blocks(root: Path, folder: Path) -> Iterator[str]:
    """Yield the blocks of a folder, then those of the folders in it; folders without Python have none."""
    files = sorted(folder.glob("*.py"))
    if files:
        yield f"## `{folder.relative_to(root)}/`"
    if (package := folder / _PACKAGE) in files:
        yield opening(docstring_of(package))
    rows = [(f"`{path.name}`", _summary(path)) for path in files if path.name != _PACKAGE]
    if rows:
        yield markdown_table(("file", "content"), rows, align=Align.LEFT)
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        yield from _blocks(root, inner)


def _summary(path: Path) -> str:
    """Return the first paragraph of a docstring, in one line of a table."""
    return " ".join(docstring_of(path).partition("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
