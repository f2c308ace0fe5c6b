"""`python -m maintenance.manual folder=docs-site`: the sources of the documentation's site, for Sphinx."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from maintenance.manual.staging import staged
from maintenance.words import read_words
from profiler.command_line import as_command, print_line, print_text
from profiler.config.options.reading import FieldReader
from profiler.domain.errors import EXIT_OK, UsageError

_ROOT = Path(__file__).parents[2]
_USAGE = """\
python -m maintenance.manual [folder=FOLDER]

Copies the pages of docs/, and every file of the repository that a page links to, to
FOLDER/sources, with the trees of pages that Sphinx needs. `make docs` builds them.

  folder=FOLDER  where the site is built (default: docs-site)

Examples:
  python -m maintenance.manual
"""


@as_command("manual")
def main(argv: Sequence[str] | None = None) -> int:
    """Write the sources and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    values, faults = read_words(words, {"folder": "docs-site"})
    reader = FieldReader(values)
    folder = Path(reader.text("folder", "a folder")) / "sources"
    if found := [*faults, *reader.faults]:
        raise UsageError(found)
    shutil.rmtree(folder, ignore_errors=True)
    files = staged(_ROOT)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    print_line(f"{len(files)} files in {folder}")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
