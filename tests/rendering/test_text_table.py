"""Tables of plain text."""

from profiler.rendering.layouts.plain_text import text_table


def test_columns_are_aligned_and_lines_have_no_spaces_at_the_end():
    # By hand: a column is as wide as its longest text, and two spaces are between columns.
    assert text_table(("model", "GiB", "fits"), [("qwen", "1.5", "yes"), ("a", "100.25", "")], numbers=["GiB"]) == [
        "model       GiB  fits",
        "qwen        1.5  yes",
        "a        100.25",
    ]


def test_a_first_column_of_numbers_starts_at_the_margin():
    assert text_table(("n", "name"), [("10", "0x10"), ("2", "1e3")], numbers=["n"]) == [
        " n  name",
        "10  0x10",
        " 2  1e3",
    ]
