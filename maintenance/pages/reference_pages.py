"""`python -m maintenance.pages.reference_pages`: all pages of the reference that declarations make."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from maintenance.pages.files_page import ROOT
from maintenance.pages.formats_page import formats_page
from maintenance.pages.reference.catalogue import cards_page, grids_page, models_page
from maintenance.pages.reference.columns import COLUMN_TABLES, column_page, columns_page
from maintenance.pages.reference.commands import command_page, commands_page, run_options_page
from maintenance.pages.reference.keys import keys_page
from maintenance.pages.reference.limits import limits_page
from maintenance.pages.reference.python_api import python_api_page
from maintenance.pages.reference.refused import refused_page
from maintenance.pages.reference.releases import releases_page
from maintenance.pages.reference.words import exit_codes_page, glossary_page
from maintenance.words import asks_for_help
from profiler.command_line import as_command, print_line
from profiler.commands import COMMANDS
from profiler.domain.errors import EXIT_OK
from profiler.storage.files.atomic import write_atomically

REFERENCE_PAGES: Mapping[str, Callable[[], str]] = {
    "docs/columns.md": columns_page,
    "docs/commands.md": commands_page,
    "docs/exit_codes.md": exit_codes_page,
    "docs/files_you_can_bring.md": formats_page,
    "docs/keys.md": keys_page,
    "docs/run_options.md": run_options_page,
    "docs/reference/cards.md": cards_page,
    "docs/reference/glossary.md": glossary_page,
    "docs/reference/grids.md": grids_page,
    "docs/reference/limits.md": limits_page,
    "docs/reference/models.md": models_page,
    "docs/reference/python_api.md": python_api_page,
    "docs/reference/refused.md": refused_page,
    "docs/reference/trl_releases.md": releases_page,
    **{f"docs/reference/commands/{name}.md": partial(command_page, name) for name in COMMANDS},
    **{f"docs/reference/columns/{name}.md": partial(column_page, name) for name in COLUMN_TABLES},
}
"""What makes each page, by its path."""

_USAGE = """\
python -m maintenance.pages.reference_pages

Writes the pages of the reference from the declarations of keys, options, commands,
columns, cards, models, grids, exit codes, constraints, limits and the Python API.

Examples:
  python -m maintenance.pages.reference_pages
"""

_MADE = """\

This page is made from declarations by `python -m maintenance.pages.reference_pages`.
"""


def reference_page(path: str) -> str:
    """Return the whole page of a path."""
    return REFERENCE_PAGES[path]() + _MADE


@as_command("reference_pages")
def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if asks_for_help(words, _USAGE):
        return EXIT_OK
    for path in REFERENCE_PAGES:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(ROOT / path, reference_page(path).encode())
    print_line(f"{len(REFERENCE_PAGES)} pages below {ROOT / 'docs'}")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
