"""The changes between two sweeps."""

import io
from dataclasses import replace

import builders
import pytest
from rich.console import Console

from profiler.analysis.compared.comparison import compare_sweeps
from profiler.domain.runs.outcome import Status
from profiler.report import main as report

SPECS = builders.lora_vs_full_specs(["qwen2.5-0.5b", "qwen2.5-3b"])


def later(record, *, scale=1.0, **changes):
    """The same trial with another trl, its peak `scale` times as high."""
    outcome = builders.changed(builders.outcome(record.spec, scale=scale), **changes)
    versions = replace(builders.VERSIONS, trl="1.17.0")
    return builders.record(record.spec, outcome=outcome, label=record.label, versions=versions)


def compared(folder, before, after):
    return compare_sweeps(builders.tables(folder / "a", before).runs, builders.tables(folder / "b", after).runs)


def test_the_same_trials_with_other_versions_are_compared(tmp_path):
    records = builders.records(SPECS)
    found = compared(tmp_path, records, [later(record) for record in records])
    assert len(found.both) == 10
    assert (found.only_before, found.only_after) == (0, 0)
    assert [each.change_ratio for each in found.both] == [0.0] * 10
    assert not any(each.beyond_noise for each in found.both)


@pytest.mark.parametrize(("scale", "beyond"), [(1.005, False), (1.02, True), (0.9, True)])
def test_more_than_a_hundredth_is_beyond_noise(tmp_path, scale, beyond):
    (record,) = builders.records(SPECS[:1])
    (each,) = compared(tmp_path, [record], [later(record, scale=scale)]).both
    assert each.change_ratio == pytest.approx(scale - 1, abs=1e-6)
    assert each.beyond_noise is beyond


def test_another_verdict_is_a_change_of_any_size(tmp_path):
    (record,) = builders.records(SPECS[:1])
    (each,) = compared(tmp_path, [record], [later(record, status=Status.OOM)]).both
    assert each.verdict_changed
    assert each.beyond_noise


def test_trials_of_one_sweep_only_are_counted(tmp_path):
    records = builders.records(SPECS)
    found = compared(tmp_path, records[:4], [later(record) for record in records[3:]])
    assert (len(found.both), found.only_before, found.only_after) == (1, 3, 6)


def test_a_trial_is_compared_with_the_one_of_its_own_card_if_there_is_one(tmp_path):
    both_cards = builders.records([builders.spec(gpu="h100-80gb"), builders.spec(gpu="a100-80gb")])
    found = compared(tmp_path / "same", both_cards, [later(record) for record in both_cards])
    assert [(each.before.setting.card, each.after.setting.card) for each in found.both] == [
        (card, card) for card in (found.both[0].after.setting.card, found.both[1].after.setting.card)
    ]
    (other,) = compared(tmp_path / "other", both_cards[:1], both_cards[1:]).both
    assert other.before.setting.card != other.after.setting.card


def test_two_folders_on_the_command_line(tmp_path, capsys):
    records = builders.records(SPECS)
    before = builders.write_folder(tmp_path / "before" / "grid", records)
    after = builders.write_folder(tmp_path / "after" / "grid", [later(record, scale=1.1) for record in records])
    sink = io.StringIO()
    report.compare_folders(before, after, console=Console(file=sink, width=80))
    text = sink.getvalue()
    assert "before/grid" in text
    assert "+10% *" in text
    assert "10 trials in both, 10 with a change (*)" in text
    assert "trl 1.17.0" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert report.main([str(before), str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
