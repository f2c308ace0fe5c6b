"""`table.tex`: numbers, marks and special characters."""

from dataclasses import replace

import builders
import pytest

from profiler.analysis.sweep_report import sweep_report
from profiler.rendering.sweep import comparison as module
from profiler.rendering.sweep.comparison import latex, latex_tables


def tables(folder, records, grid="made_up"):
    return latex_tables(sweep_report(builders.tables(folder, records), grid=grid))


def test_one_row_per_method_and_one_column_per_model(tmp_path):
    text = tables(tmp_path, builders.records(builders.lora_vs_full_specs()), grid="a_b")
    assert text.startswith("% Needs \\usepackage{booktabs}.\n\\begin{table}\n")
    assert "\\begin{tabular}{lrrrrr}" in text
    assert "method & qwen2.5-0.5b & qwen2.5-1.5b & qwen2.5-3b & qwen2.5-7b & qwen2.5-14b \\\\\n\\midrule\n" in text
    (full,) = [line for line in text.splitlines() if line.startswith("full &")]
    assert full.endswith(" & \\textit{170.4} \\\\")
    assert "in GiB (a\\_b). Simulated on NVIDIA H100 80GB HBM3 (79.1 GiB)." in text
    assert "In italics: out of memory" in text
    assert "% torch " in text


def test_a_trial_without_a_result_has_its_status_and_a_missing_one_a_dash(tmp_path):
    records = builders.records(builders.lora_vs_full_specs(["qwen2.5-0.5b", "qwen2.5-3b"]))
    failed = replace(records[0], outcome=builders.failed())
    text = tables(tmp_path, [failed, *records[2:]])
    assert "full & failed &" in text
    assert " & --" in text or "-- &" in text
    assert "In italics" not in text


def test_a_long_table_ends_with_what_has_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 2)
    text = tables(tmp_path, builders.records(builders.lora_vs_full_specs()))
    assert "% 3 more rows: comparison.csv has them\n\\bottomrule" in text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("50 % & a_b #1 {x}", "50 \\% \\& a\\_b \\#1 \\{x\\}"),
        ("a\\input{/etc/passwd}", "a\\textbackslash{}input\\{/etc/passwd\\}"),
        ("~^$", "\\textasciitilde{}\\textasciicircum{}\\$"),
        ("two\nlines", "two lines"),
    ],
)
def test_no_text_is_a_command_of_latex(text, wanted):
    assert latex(text) == wanted
