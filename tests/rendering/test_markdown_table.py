"""Tables of Markdown: alignment, escaping, and rows of the wrong length."""

import pytest

from profiler.rendering.markdown_table import Align, escaped, markdown_table


def test_numbers_are_on_the_right_of_the_first_column():
    assert markdown_table(["trial", "GiB"], [["full", "7.8"]]) == "| trial | GiB |\n| --- | ---: |\n| full | 7.8 |"


def test_each_column_can_have_its_own_alignment():
    table = markdown_table(["error", "trial"], [], align=(Align.RIGHT, Align.LEFT))
    assert table.splitlines()[1] == "| ---: | --- |"


@pytest.mark.parametrize(("rows", "align"), [([["one"]], Align.LEFT), ([], (Align.LEFT,))])
def test_a_row_of_another_length_is_refused(rows, align):
    with pytest.raises(ValueError, match="2 columns"):
        markdown_table(["a", "b"], rows, align=align)


def test_escaped_text_has_no_markup_and_no_line_break():
    assert escaped("a | b\n<i> *c* ~d") == "a \\| b &lt;i&gt; \\*c\\* \\~d"
