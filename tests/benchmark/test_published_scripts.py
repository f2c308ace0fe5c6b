"""Scripts that others publish with their rows run on the simulated card, and their own figures are read.

`python tests/benchmark/test_published_scripts.py` prints the table that docs/evidence.md has to show.
"""

import tarfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest

from maintenance.benchmark.adapters.own import simulated_rows
from maintenance.benchmark.adapters.question import MIB
from maintenance.benchmark.answers import published_scripts, simulating
from maintenance.benchmark.answers.published_scripts import read_printed, run_scripts, script_of
from maintenance.benchmark.rows.kept import others_rows

PRINTED = """backend=simulated on Tesla T4.
{
 "measured": {"peak_allocated_mib": 1850.5, "peak_reserved_mib": 2110.0}
}
phase        allocated
"""


EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence.md"


def table():
    """The errors of the simulation by source, release of torch and method."""
    groups = {}
    for row in others_rows():
        if script_of(row):
            key = (row.row_id.partition("-")[0], row.card.name, row.versions["torch"], row.job["tuning"])
            groups.setdefault(key, []).append(row)
    return [f"| {' | '.join(key)} | {len(rows)} | {errors(rows)} |" for key, rows in sorted(groups.items())]


def errors(rows):
    found = []
    for name in ("allocated", "reserved"):
        measured = [peak.size_bytes for row in rows for peak in row.peaks if peak.metric == name]
        simulated = [simulated_rows()[row.row_id][name] for row in rows]
        ratios = sorted((ours / theirs - 1 for ours, theirs in zip(simulated, measured, strict=True)), key=abs)
        found += [f"{100 * median(map(abs, ratios)):.2f} %", f"{100 * ratios[-1]:+.2f} %"]
    return " | ".join(found)


def row_of(name):
    return next(row for row in others_rows() if row.row_id == name)


def test_the_words_are_those_of_the_row():
    row = row_of("fitcheck-t4-qlora-2026-09-01-tinyllama-1.1b-qlora-eager-2x1024")
    words = script_of(row).words(row)
    assert " ".join(words) == (
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0 --precision fp16 --quant nf4 --grad-checkpoint --attn-impl eager "
        "--lora-r 32 --batch-size 2 --seq-len 1024 --gpu t4 --no-predict --json"
    )
    assert "--quant" not in script_of(row).words(replace(row, job={**row.job, "tuning": "lora"}))


def test_the_words_of_a_command_are_those_of_the_row():
    row = row_of("canifinetune-qwen2.5-1.5b-instruct_qlora_s1024_b1_r16_steps3_nockpt")
    assert " ".join(script_of(row).words(row)) == (
        "bench --model Qwen/Qwen2.5-1.5B --method qlora --optimizer paged_adamw_8bit --lora-rank 16 "
        "--seq-len 1024 --steps 3 --micro-batch-size 1 --no-gradient-checkpointing --attn sdpa --json"
    )
    measured = {"peak_allocated_gb": 1.5, "peak_reserved_gb": 2.0, "peak_total_gb": 2.0}
    assert script_of(row).said(measured) == {"allocated": 3 << 29, "reserved": 2 << 30}


def test_rows_without_a_published_script_have_none():
    found = {row.row_id.partition("-")[0] for row in others_rows() if script_of(row)}
    assert found == {"canifinetune", "fitcheck"}


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        ('backend=simulated on Tesla T4.\n{\n "measured": {"peak": 1.5}\n}\nphase  allocated\n', {"peak": 1.5}),
        ("backend=simulated on Tesla T4.\nphase  allocated\n", None),
    ],
)
def test_what_a_script_prints_is_read(text, measured):
    assert read_printed(text) == measured


def test_a_script_runs_as_it_is_and_once(tmp_path, monkeypatch):
    row = row_of("fitcheck-final-t4-20260921-deepseek-coder-1.3b-instruct-qlora-eager-1x1024")
    asked = []

    def runs(words, *, cwd, env, **_):
        asked.append(words)
        assert (cwd / words[7] / "config.json").exists()  # of a model that is not built in
        assert env["PYTHONPATH"] == str(tmp_path / ".")
        return SimpleNamespace(stdout=PRINTED)

    monkeypatch.setattr(published_scripts, "_source", lambda script, folder: tmp_path)
    monkeypatch.setattr(published_scripts.subprocess, "run", runs)
    found = [run_scripts([row], tmp_path / "folder") for _ in range(2)]
    assert found == 2 * [{row.row_id: {"allocated": 1850 * MIB + MIB // 2, "reserved": 2110 * MIB}}]
    (words,) = asked
    keys = ["gpu=t4-16gb", "backend=simulated", f"results_dir={tmp_path / 'folder' / 'results'}"]
    assert list(words[1:8]) == ["-m", "profiler.run", *keys, str(tmp_path / "scripts/measure.py"), row.job["model"]]


@pytest.mark.parametrize("script", published_scripts.SCRIPTS, ids=lambda script: script.package)
def test_a_distribution_is_unpacked_once(tmp_path, monkeypatch, script):
    name, version = script.package.split("==")
    inner = tmp_path / "made" / f"{name.replace('-', '_')}-{version}"
    (inner / "scripts").mkdir(parents=True)
    (inner / "scripts" / "measure.py").touch()
    downloads = []

    def downloads_it(words, *, check):
        downloads.append(words[-1])
        with tarfile.open(tmp_path / f"{inner.name}.tar.gz", "w:gz") as packed:
            packed.add(inner, arcname=inner.name)

    monkeypatch.setattr(published_scripts.subprocess, "run", downloads_it)
    for _ in range(2):
        found = published_scripts._source(script, tmp_path) / script.path
        text = found.read_text()
    assert "=" not in str(found.relative_to(tmp_path))
    assert downloads == [script.package]
    assert text == ("import sys\nfrom canifinetune.cli import app\nsys.exit(app())\n" if script.command else "")


def test_the_evidence_has_the_table():
    assert len(table()) > 3
    assert "\n".join(table()) in EVIDENCE.read_text("utf-8")


def test_answers_of_other_rows_are_kept(tmp_path, monkeypatch):
    (kept := tmp_path / "simulated.csv").write_text("row_id,allocated_bytes,reserved_bytes\na,1,2\nb,3,4\n")
    monkeypatch.setattr(simulating, "SIMULATED", kept)
    monkeypatch.setattr("maintenance.benchmark.adapters.own.SIMULATED", kept)
    simulating.simulated_rows.cache_clear()
    assert simulating._keep({"b", "c"}, {"c": {"allocated": 5, "reserved": 6}}) == 1
    assert kept.read_text() == "row_id,allocated_bytes,reserved_bytes\na,1,2\nc,5,6\n"
    simulating.simulated_rows.cache_clear()


if __name__ == "__main__":
    print("\n".join(table()))
