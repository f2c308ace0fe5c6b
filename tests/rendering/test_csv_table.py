"""The comparison as CSV: a spreadsheet computes nothing of it."""

import csv
import io

import pandas as pd
import pytest

from profiler.rendering.layouts.csv_table import as_csv


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
