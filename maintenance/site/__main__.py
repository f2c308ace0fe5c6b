"""`make site`: build the folder of static files.

The page asks the commands themselves, which run in the browser: it has no formula and no rule of its own.
"""

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from markdown_it import MarkdownIt

from maintenance.site.catalogue import catalogue
from maintenance.site.packed import packed
from maintenance.site.runtime import RUNTIME, fetch_runtime
from maintenance.words import read_words
from profiler.command_line import as_command, print_line, print_text
from profiler.domain.errors import EXIT_OK, UsageError
from profiler.domain.memory import MIB

PAGE = Path(__file__).parent / "page"
ROOT = Path(__file__).parents[2]
CORE, CATALOGUE, OFFLINE, TRUST = "core.zip", "catalogue.json", "offline.json", "trust.html"

_USAGE = """\
python -m maintenance.site [folder=site] [cache=build/site]

Builds the page in the browser as static files: `python -m http.server -d site`
shows it. Python for browsers comes by npm once, checked by its checksum.

Examples:
  make site
  python -m maintenance.site folder=public
"""


@as_command("site")
def main(argv: Sequence[str] | None = None) -> int:
    """Build the folder and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    values, faults = read_words(words, {"folder": "site", "cache": "build/site"})
    if faults:
        raise UsageError(faults)
    folder = Path(str(values["folder"]))
    sizes = build(folder, runtime=fetch_runtime(Path(str(values["cache"]))))
    print_line(f"{folder}: {len(sizes)} files, {sum(sizes.values()) / MIB:.1f} MiB")
    return EXIT_OK


def build(folder: Path, *, runtime: Path) -> dict[str, int]:
    """Write the page into a folder, which is emptied of an older one, and return the sizes in bytes by name.

    Args:
        folder: Where.
        runtime: The folder with the files of `RUNTIME`.
    """
    if (folder / CATALOGUE).is_file():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for path in PAGE.iterdir():
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
    for name in RUNTIME:
        shutil.copyfile(runtime / name, folder / name)
    (folder / CORE).write_bytes(packed())
    (folder / CATALOGUE).write_text(json.dumps(catalogue()), encoding="utf-8")
    (folder / TRUST).write_text(_as_page((ROOT / "docs" / "trust.md").read_text(encoding="utf-8")), encoding="utf-8")
    names = sorted(path.name for path in folder.iterdir())
    (folder / OFFLINE).write_text(json.dumps(names), encoding="utf-8")
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def _as_page(text: str) -> str:
    """Return a document of the project as a page. Its links to other documents lead nowhere here, and become text."""
    body = re.sub(
        r'<a href="(?!https?:|#)[^"]*">(.*?)</a>', r"\1", MarkdownIt("commonmark").enable("table").render(text)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>How far to trust it</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="style.css">'
        f'</head><body><main>{body}</main><footer><p><a href="./">Back</a></p></footer></body></html>\n'
    )


if __name__ == "__main__":
    sys.exit(main())
