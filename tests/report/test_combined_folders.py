"""Several folders that are read as one: shards, machines, earlier sweeps."""

from dataclasses import replace

import builders
import pytest

from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.domain.memory import gib_text
from profiler.domain.runs.outcome import Status
from profiler.report import main as drawing
from profiler.report.main import main
from profiler.storage.stores.record_store import RecordStore, rank_folder
from profiler.storage.sweep_tables.combined import combine_tables
from profiler.storage.sweep_tables.tables import TABLES, read_tables, table_path, write_tables
from profiler.storage.tables.schema import OPTIONAL_TABLES

SPECS = builders.lora_vs_full_specs(["qwen2.5-0.5b", "qwen2.5-3b"])
RECORDS = builders.records(SPECS, grid="lora_vs_full")
ESTIMATES = builders.estimates(RECORDS)


@pytest.fixture(autouse=True)
def without_drawing(monkeypatch):
    monkeypatch.setattr(drawing, "chosen", lambda sections, _: [() for _ in sections])


def folder(tmp_path, machine, records, **about):
    path = tmp_path / machine / "lora_vs_full"
    write_tables(path, records, ESTIMATES, **about)
    return path


def test_shards_together_are_the_whole_sweep(tmp_path, capsys):
    command = "python -m profiler.sweep +grid=lora_vs_full"
    whole = folder(tmp_path / "elsewhere", "whole", RECORDS, question="Which?", command=command)
    for number in (1, 2, 3):
        part = RECORDS[number - 1 :: 3]
        folder(tmp_path, f"m{number}", part, question="Which?", command=f"{command} shard={number}/3")
    assert main([str(tmp_path / "*" / "lora_vs_full")]) == EXIT_OK
    into = tmp_path / "combined" / "lora_vs_full"
    for name in (*TABLES, *OPTIONAL_TABLES):
        assert table_path(into, name).exists() == table_path(whole, name).exists()
        assert getattr(read_tables(into), name).equals(getattr(read_tables(whole), name))
    assert (read_tables(into).command, read_tables(into).question) == (command, "Which?")
    assert (into / "report.html").is_file()
    assert f"{len(RECORDS)} trials of 3 folders.\n" in capsys.readouterr().out
    # What was written is not read as a fourth part.
    assert main([str(tmp_path / "*" / "lora_vs_full")]) == EXIT_OK
    assert f"{len(RECORDS)} trials of 3 folders.\n" in capsys.readouterr().out


def test_a_trial_in_two_folders_counts_once_and_an_answer_wins(tmp_path):
    failed = replace(RECORDS[0], outcome=builders.failed())
    one, two = folder(tmp_path, "a", [failed, *RECORDS[1:4]]), folder(tmp_path, "b", RECORDS[:3])
    found = combine_tables([one, two], tmp_path / "into")
    assert (found.trials, found.repeated, found.conflicts) == (4, 3, ())
    runs = read_tables(tmp_path / "into").runs.set_index("trial_id")
    assert runs.status[RECORDS[0].trial_id] == Status.OK
    assert found.lines() == ["4 trials of 2 folders, of which 3 are in several folders."]


def test_a_trial_with_two_results_is_named(tmp_path):
    other = replace(RECORDS[0], outcome=builders.outcome(RECORDS[0].spec, scale=1.5))
    one, two = folder(tmp_path, "a", RECORDS[:2]), folder(tmp_path, "b", [other])
    found = combine_tables([one, two], tmp_path / "into")
    kept, left = (builders.outcome(RECORDS[0].spec, scale=scale).peaks.allocated_bytes for scale in (1.0, 1.5))
    (sentence,) = found.conflicts
    assert f"peak_allocated_bytes {kept} in {one} and {left} in {two}. The row of {one} is used." in sentence
    assert read_tables(tmp_path / "into").runs.set_index("trial_id").peak_allocated_bytes[RECORDS[0].trial_id] == kept


def test_versions_are_kept_apart_and_said(tmp_path):
    newer = replace(builders.VERSIONS, torch="2.14.0")
    renamed = [replace(each, trial_id=f"{number:016x}", versions=newer) for number, each in enumerate(RECORDS[:2])]
    one, two = folder(tmp_path, "a", RECORDS[:3]), folder(tmp_path, "b", renamed)
    found = combine_tables([one, two], tmp_path / "into")
    assert found.trials == 5
    assert found.versions == (
        "2 configurations are there several times, with different versions (torch 2.13.0 and 2.14.0); each is kept."
    )
    assert len(read_tables(tmp_path / "into").runs) == 5


def test_two_folders_are_compared_unless_a_folder_to_write_is_named(tmp_path, capsys):
    one, two = folder(tmp_path, "a", RECORDS[:2]), folder(tmp_path, "b", RECORDS[2:4])
    assert main([str(one), str(two)]) == EXIT_OK
    assert not (tmp_path / "combined").exists()
    assert main([str(one), str(two), f"into={tmp_path / 'x'}"]) == EXIT_OK
    assert table_path(tmp_path / "x", "runs").is_file()
    assert "4 trials of 2 folders." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{}/no*/x"], "folder={}/no*/x: no such folder. Write: "),
        (["{}/*/*"], "folder={}/*/*: are of several grids (lora_vs_full, other). Name the folder"),
        (["{}/a/lora_vs_full", "into={}/a/lora_vs_full"], "is also where the results are to be written."),
        (["{}/a/lora_vs_full", "into="], "into='': must be a folder."),
        (["{}/[a]/*", "{}/b/*", "{}/c"], "folder={}/c: no such folder."),
    ],
)
def test_wrong_folders_end_in_one_sentence(tmp_path, capsys, words, sentence):
    folder(tmp_path, "a", RECORDS[:1])
    (tmp_path / "b" / "other").mkdir(parents=True)
    assert main([word.format(tmp_path) for word in words] + ["into=x"] * ("c}" in words[-1])) == EXIT_USAGE
    assert sentence.format(tmp_path) in capsys.readouterr().err
    assert not (tmp_path / "combined").exists()


def test_the_peaks_of_ranks_are_printed_and_copied(tmp_path, capsys):
    (first,) = builders.records([replace(SPECS[0], num_processes=3)], grid="lora_vs_full")
    part = folder(tmp_path, "m1", [first, RECORDS[1]])
    for rank in (0, 2):
        RecordStore(rank_folder(part, rank)).write(first)
    (part / "ranks" / "0" / "records" / "0123456789abcdef.json").write_text("{")
    assert main([str(part), f"into={tmp_path / 'one'}"]) == EXIT_OK
    peak = gib_text(first.outcome.peaks.allocated_bytes)
    assert f"  {first.spec.model}, {first.label}: {peak}, no record, {peak}" in capsys.readouterr().out
    assert (tmp_path / "one" / "ranks" / "2" / "records" / f"{first.trial_id}.json").exists()
