"""Tables as Markdown and as CSV."""

import csv
import io

import pandas as pd
import pytest

from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import code_block, escaped, markdown_table
from profiler.rendering.layouts.script_data import as_csv


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


def test_escaped_text_has_no_control_characters():
    assert escaped("a\x1b[2Jb") == "a\\\\x1b\\[2Jb"


@pytest.mark.parametrize(("text", "fence"), [("run it", "```"), ("a='`x`'", "```"), ("a='\n```\n# b'", "````")])
def test_backticks_do_not_end_a_block_of_code(text, fence):
    assert code_block(text, language="sh") == f"{fence}sh\n{text}\n{fence}"


def written(**columns):
    return list(csv.reader(io.StringIO(as_csv(pd.DataFrame(columns)), newline="")))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "\n=1", '=HYPERLINK("x","y")'])
def test_text_that_a_spreadsheet_would_compute_begins_with_an_apostrophe(text):
    column = pd.Series([text, "full", None], dtype="string")
    assert written(method=column) == [["method"], [f"'{text}"], ["full"], [""]]


def test_numbers_stay_numbers():
    assert written(error=pd.Series([-0.5, None], dtype="Float64")) == [["error"], ["-0.5"], [""]]
    assert written(size=pd.Series([-5], dtype="Int64")) == [["size"], ["-5"]]


def test_control_characters_are_shown():
    assert written(model=pd.Series(["a\x1b[2J\rb"], dtype="string")) == [["model"], ["a\\x1b[2J\\rb"]]
