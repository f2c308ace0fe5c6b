"""Tables of plain text, in columns of equal width."""

from collections.abc import Collection, Iterable, Sequence
from textwrap import dedent

from tabulate import tabulate


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Collection[str]) -> list[str]:
    """Return the lines of a table, without the spaces at their ends.

    Args:
        header: Titles of the columns; an empty one is allowed.
        rows: Texts of each row, as many as `header` has.
        numbers: Titles of the columns that are aligned on the right.
    """
    sides = ["right" if title in numbers else "left" for title in header]
    # rich is slower by far for 100,000 rows, and the estimate does not import it.
    table = tabulate(list(rows), headers=header, tablefmt="plain", disable_numparse=True, colalign=sides)
    # Two spaces are before each column on the right, even the first.
    return [line.rstrip() for line in dedent(table).splitlines()]
