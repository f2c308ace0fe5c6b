"""What each release costs: runs that go on, jumps and their tensors, the page, and the kept result."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from maintenance.releases.compared import (
    CAUSES,
    LEAST_JUMP,
    SAID,
    TENSORS,
    Change,
    jumps,
    keep,
    kept,
    merged,
    read_causes,
    rows_of,
    run_of,
    runs_in,
)
from maintenance.releases.estimated import estimated_bytes
from maintenance.releases.main import PAGE, chosen, main
from maintenance.releases.page import figure_of, releases_page, sizes_with_rows
from maintenance.releases.runs import (
    ACCEPTED_VLLM,
    CODE,
    FSDP,
    MODELS,
    PACKAGES,
    PEFT,
    RUNS,
    SCRIPT,
    TRL,
    TRL_WITH_VLLM,
    VERSIONS,
    Run,
    Size,
    emulate,
    has_ended,
    run_pending,
    unmet,
)
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, EXIT_USAGE
from profiler.domain.memory import GIB, MIB

KEPT = Path(__file__).parents[2] / "results" / "reference" / "releases"
SFT = [run for run in RUNS if run.job == "sft, full"]


def left(place: Path, run: Run, allocated: int, tensors: dict[str, int], code: int = 0) -> None:
    """Write what a run leaves."""
    folder = run.folder(place)
    tables = folder / "scripts" / "trl_recipe"
    tables.mkdir(parents=True, exist_ok=True)
    versions = {f"{name}_version": "1" for name in ("torch", "trl", "transformers", "peft")}
    row = {
        "status": "ok",
        **versions,
        "vllm_version": None,
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": allocated + MIB,
    }
    pd.DataFrame([{**row, "peak_phase": "forward"}]).to_parquet(tables / "scripts.parquet")
    largest = [
        {"name": "", "library": what, "line": "", "tensors": 1, "bytes": size}
        if what.partition(":")[0].endswith(".py")
        else {"name": what, "library": "", "line": "", "tensors": 1, "bytes": size}
        for what, size in tensors.items()
    ]
    pd.DataFrame(largest).to_parquet(tables / "script_largest.parquet")
    (folder / SAID).write_text(
        "Report: x\ntrl_recipe.py has no answer (failed): no such class in /a/b/bin/python: install it\n"
    )
    (folder / CODE).write_text(f"{code}\n")


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two releases: logits come, and the weights stay."""
    left(tmp_path, SFT[0], 10 * GIB, {"weights": 2 * GIB, "trainer.py:10": GIB})
    left(tmp_path, SFT[1], 12 * GIB, {"weights": 2 * GIB, "trainer.py:12": GIB, "loss.py:3": 2 * GIB})
    return tmp_path


def test_a_jump_names_what_came(two):
    (jump,) = jumps(*rows_of(two))
    assert (jump.before, jump.after) == (SFT[0], SFT[1])
    assert jump.ratio == pytest.approx(0.2)
    # A line that has moved within its file is the same origin.
    assert list(jump.changes) == [Change(what="loss.py", before_bytes=0, after_bytes=2 * GIB)]


def test_a_small_change_is_no_jump(two):
    left(two, SFT[1], int(10 * GIB * (1 + LEAST_JUMP)), {"weights": 2 * GIB})
    assert jumps(*rows_of(two)) == []


def test_a_release_that_fails_is_passed_over(two):
    left(two, SFT[2], 1, {}, code=3)
    left(two, SFT[3], 6 * GIB, {"weights": 2 * GIB})
    rows, tensors = rows_of(two)
    assert list(rows.end) == ["ok", "ok", "no such class", "ok"]
    assert [(jump.before, jump.after) for jump in jumps(rows, tensors)] == [(SFT[0], SFT[1]), (SFT[1], SFT[3])]


def test_tensors_below_the_end_of_a_list_are_not_named(two):
    """The other list may end above them."""
    left(two, SFT[1], 12 * GIB, {"weights": 2 * GIB, "trainer.py:12": GIB, "loss.py:3": GIB // 2})
    (jump,) = jumps(*rows_of(two))
    assert jump.changes == []


def test_jobs_of_several_sizes_are_apart(tmp_path):
    """No jump leads from one to the other, and each has a table and a figure."""
    peaks_by_job = {"sft, lora": 5 * GIB, "sft, lora, 7B": 30 * GIB, "sft, full, 0.5B, 2 GPUs": 3 * GIB}
    for run in RUNS:
        if (run.package, run.release) == ("trl", "1.16.0") and run.job in peaks_by_job:
            left(tmp_path, run, peaks_by_job[run.job], {"weights": GIB})
    tables = rows_of(tmp_path)
    assert jumps(*tables) == []
    assert [figure_of(*each) for each in sizes_with_rows(tables[0])] == ["trl.png", "trl-7B.png", "trl-0.5B-2-GPUs.png"]
    page = releases_page(*tables, {})
    for peaks in (
        "| trl, 0.5B | SFT, full | SFT, lora | DPO, full | DPO, lora | GRPO, full | GRPO, lora |",
        "| trl, 7B | SFT, lora | SFT, qlora | GRPO, lora | GRPO, qlora |",
        "| trl, 0.5B, 2 GPUs | SFT, full | GRPO, full |",
    ):
        assert peaks in page
    assert [page.count(f" {peak}.00 (") for peak in (5, 30, 3)] == [1, 1, 1]
    assert f"| Qwen2.5-7B | 1 of {sum(run.model == '7B' for run in RUNS)} | 1 | 1 |" in page


def test_a_run_with_an_engine_has_the_peak_of_its_trainer(tmp_path):
    """Of the first rank, at its highest phase, with categories in place of tensors."""
    before, after = [run for run in RUNS if run.package == TRL_WITH_VLLM.name and run.tuning == "lora"][:2]
    words = ["python", str(SCRIPT), "--trainer", "grpo", "--lora", "--vllm"]
    assert (before.keys, list(before.command)) == (("gpus=1xh100-80gb",), words)
    for run, logits in ((before, 3 * GIB), (after, GIB)):
        phases = [
            {"phase": "load", "allocated_bytes": GIB, "reserved_bytes": 9 * GIB, "shares": []},
            {
                "phase": "forward",
                "allocated_bytes": 2 * GIB + logits,
                "reserved_bytes": 2 * GIB + logits,
                "shares": [{"category": "logits", "size_bytes": logits}, {"category": "weights", "size_bytes": GIB}],
            },
        ]
        processes = [
            {"roles": [], "rank": None, "phases": [], "last_sentence": ""},
            {"roles": ["trains"], "rank": 1, "phases": phases[:1], "last_sentence": "no such\nengine"},
            {"roles": ["trains", "generates"], "rank": 0, "phases": phases, "last_sentence": "ended"},
        ]
        record = {"memory": {"processes": processes}}
        folder = run.folder(tmp_path)
        (folder / "jobs" / "trl_recipe").mkdir(parents=True)
        (folder / "jobs" / "trl_recipe" / "job.json").write_text(json.dumps(record))
        (folder / VERSIONS).write_text('{"torch": "2", "trl": "1", "vllm": "0.24"}')
        (folder / SAID).write_text("")
        (folder / CODE).write_text("0")
    rows, tensors = rows_of(tmp_path)
    (row, _) = rows.to_dict("records")
    assert (row["phase"], row["others"]) == ("forward", "torch 2, vllm 0.24")
    assert (row["allocated_bytes"], row["reserved_bytes"]) == (5 * GIB, 9 * GIB)
    (jump,) = jumps(rows, tensors)
    assert list(jump.changes) == [Change(what="logits", before_bytes=3 * GIB, after_bytes=GIB)]
    keep(rows, tensors, tmp_path / "kept")
    assert releases_page(*kept(tmp_path / "kept"), {}) == releases_page(rows, tensors, {})
    (before.folder(tmp_path) / CODE).write_text("3")
    (before.folder(tmp_path) / SAID).write_text("Report: /a/b/report.html\n")
    assert list(rows_of(tmp_path)[0].end) == ["no such engine", "ok"]


def test_the_closed_form_knows_the_size_of_a_run():
    """A model of 7B, two GPUs that share a model, and an engine next to the trainer."""
    newest = [run for run in RUNS if run.release == TRL.releases[-1] and run.trainer == "grpo"]
    found = {(run.package, run.job): (estimated_bytes(run) or 0) / GIB for run in newest}
    assert found["trl", "grpo, lora, 7B"] - found["trl", "grpo, lora"] > 4 * (7_615_616_512 - 494_032_768) / GIB
    assert found["trl", "grpo, full, 0.5B, 2 GPUs"] < found["trl", "grpo, full"] - 2 * 4 * 494_032_768 / 2 / GIB
    assert found["trl-vllm", "grpo, lora"] - found["trl", "grpo, lora"] > 20


def test_a_job_of_another_size_says_so_to_its_script():
    sizes = {(run.size.title, run.tuning): run for run in RUNS if run.package == "trl" and run.trainer == "sft"}
    words = {key: run.command for key, run in sizes.items()}
    script = (str(SCRIPT), "--trainer", "sft")
    assert words["0.5B", "full"] == script
    assert words["7B", "lora"] == (*script, "--lora", "--model", "Qwen/Qwen2.5-7B")
    assert words["0.5B, 2 GPUs", "full"] == ("accelerate", "launch", "--config_file", str(FSDP), *script)
    settings = yaml.safe_load(SCRIPT.with_suffix(".yaml").read_text())
    assert settings["model_name_or_path"] == MODELS[Size().model]
    assert yaml.safe_load(FSDP.read_text())["num_processes"] == max(run.gpus for run in RUNS)
    folders = [run.folder(Path()) for run in RUNS]
    assert len(set(folders)) == len(folders)


def test_what_is_kept_makes_the_same_page(two, tmp_path):
    left(two, SFT[2], 1, {}, code=3)
    found = rows_of(two)
    keep(*found, tmp_path / "kept")
    causes = {("trl", SFT[1].release, "sft, full"): "its logits"}
    pages = [releases_page(*tables, causes) for tables in (found, kept(tmp_path / "kept"))]
    assert pages[0] == pages[1]
    assert "Others: torch 1, transformers 1, peft 1." in pages[0]
    assert "| sft, full | 0.19.1 to 0.20.0 | 10.00 to 12.00 | +20.0% | loss.py +2048 MiB | its logits |" in pages[0]
    assert "- 0.21.0 (sft, full): no such class" in pages[0]


def test_equal_lists_of_tensors_are_kept_once(two, tmp_path):
    left(two, SFT[2], 12 * GIB, {"weights": 2 * GIB, "trainer.py:12": GIB, "loss.py:3": 2 * GIB})
    left(two, SFT[3], GIB, {})
    found = rows_of(two)
    keep(*found, tmp_path / "kept")
    assert len((tmp_path / "kept" / TENSORS).read_text().splitlines()) == 1 + 2 + 3
    for kept_table, table in zip(kept(tmp_path / "kept"), found, strict=True):
        pd.testing.assert_frame_equal(kept_table, table)


def test_what_was_found_joins_what_is_kept(two, tmp_path):
    """In the order of the runs, and the newer row of a run."""
    of_peft = next(run for run in RUNS if run.package == PEFT.name)
    left(tmp_path / "more", of_peft, 3 * GIB, {"weights": GIB})
    left(tmp_path / "more", SFT[0], 9 * GIB, {"weights": 4 * GIB})
    rows, tensors = merged(rows_of(tmp_path / "more"), rows_of(two))
    assert list(rows.package) == ["trl", "trl", "peft"]
    assert list(rows.allocated_bytes) == [9 * GIB, 12 * GIB, 3 * GIB]
    assert list(tensors[tensors.what == "weights"].bytes) == [4 * GIB, 2 * GIB, GIB]
    page = releases_page(rows, tensors, {})
    assert page.index("## trl\n") < page.index(f"]({figure_of(TRL, Size())})") < page.index("## peft\n")
    assert "Others: torch 1, trl 1, transformers 1." in page


def test_runs_go_on_where_they_stopped(tmp_path):
    ran = []

    def emulated(run: Run, place: Path, python: Path) -> None:
        ran.append((run, python))
        left(place, run, GIB, {})

    def pending(at_most: int | None) -> int:
        return run_pending(
            RUNS[:3],
            tmp_path,
            python=lambda run: Path(run.release),
            at_most=at_most,
            say=lambda _: None,
            emulated=emulated,
        )

    assert (pending(2), pending(None), pending(None)) == (1, 0, 0)
    assert ran == [(run, Path(run.release)) for run in RUNS[:3]]


def test_a_release_gets_what_it_requires_in_other_versions(tmp_path):
    """What is behind it counts, markers and extras do; what is installed then may require something itself."""

    def installed(folder: str, name: str, version: str, *requires: str) -> None:
        info = tmp_path / folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
        (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines]) + "\n")

    installed(
        "own", "release", "4.0", "Hub_x<1", "there>=2", "gone; extra == 'dev'", "old; python_version < '3'", "none"
    )
    installed("behind", "hub-x", "2.0")
    installed("behind", "there", "2.1rc1")
    rounds = unmet(tmp_path / "own", str(tmp_path / "behind"))
    assert next(rounds) == ["Hub_x<1", "none"]
    installed("own", "hub_x", "0.9", "none>1")
    installed("own", "none", "1.0")
    assert next(rounds) == ["none>1"]
    (tmp_path / "own" / "none-1.0.dist-info" / "METADATA").write_text("Name: none\nVersion: 1.1\n")
    assert list(rounds) == []


def test_a_run_keeps_what_it_says_and_its_exit_code_last(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("")
    monkeypatch.setattr("maintenance.releases.runs.SCRIPT", script)
    emulate(RUNS[0], tmp_path / "runs", Path("/no/python"))
    folder = RUNS[0].folder(tmp_path / "runs")
    assert has_ended(RUNS[0], tmp_path / "runs")
    assert (folder / CODE).read_text() == str(EXIT_USAGE)
    assert "/no/python" in (folder / SAID).read_text()


def test_the_command_runs_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("maintenance.releases.main.python_of", lambda *_, **__: Path("python"))
    words = [f"environments={tmp_path}", f"results_dir={tmp_path}", "at_most=1", "package=peft"]

    def emulated(run: Run, place: Path, _: Path) -> None:
        left(place, run, GIB, {})

    parts: dict[str, Any] = {"base_of": lambda _: Path("python"), "emulated": emulated}
    assert main(words, **parts) == EXIT_SOME_TRIALS_FAILED
    assert f"1 of {len(RUNS)} runs have ended" in capsys.readouterr().out
    assert main([*words, f"runs={tmp_path / 'other'}"], **parts) == EXIT_SOME_TRIALS_FAILED
    assert f"2 of {len(RUNS)} runs have ended" in capsys.readouterr().out
    assert main([*words, f"runs={tmp_path / 'third'}", "again=true"], **parts) == EXIT_SOME_TRIALS_FAILED
    assert f"2 of {len(RUNS)} runs have ended" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "releases").glob("*.png")] == [figure_of(PEFT, Size())]
    assert main([f"results_dir={tmp_path}"]) == EXIT_OK
    assert main([f"results_dir={tmp_path / 'none'}"]) == EXIT_USAGE
    assert "has neither runs nor tables" in capsys.readouterr().err


def test_releases_with_an_engine_run_if_they_are_named():
    """The base of the others has no vLLM."""
    others = [run for run in RUNS if run.package != TRL_WITH_VLLM.name]
    assert chosen(None) == others
    assert chosen(TRL_WITH_VLLM.name) == [run for run in RUNS if run not in others]
    assert {run.package for run in chosen(PEFT.name)} == {PEFT.name}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_releases_are_in_order_and_one_is_the_tested_one(package):
    numbers = [tuple(map(int, release.split("."))) for release in package.releases]
    assert numbers == sorted(numbers)
    assert len({number[:2] for number in numbers}) == len(numbers)
    pinned = dict(
        line.split("==") for line in (SCRIPT.parents[2] / "constraints.txt").read_text().split() if "==" in line
    )
    assert pinned[package.installed] in package.releases[-2:]


def test_vllm_runs_with_the_releases_that_accept_it():
    assert tuple(ACCEPTED_VLLM) == tuple(TRL.releases)
    assert TRL_WITH_VLLM.releases[-8:] == TRL.releases[-8:]
    assert {"1.7.1", "1.8.0"}.isdisjoint(TRL_WITH_VLLM.releases)


def test_every_run_is_another():
    assert len({(run.package, run.release, run.job) for run in RUNS}) == len(RUNS)
    assert {run.package for run in RUNS} == {package.name for package in PACKAGES}


# ---- the kept result -------------------------------------------------------------------------------------------------


def test_the_kept_page_is_that_of_its_tables():
    rows, tensors = kept(KEPT)
    assert (KEPT / PAGE).read_text() == releases_page(rows, tensors, read_causes(KEPT))
    assert {path.name for path in KEPT.glob("*.png")} == {
        figure_of(package, size) for package, size in sizes_with_rows(rows)
    }


def test_kept_estimates_are_those_of_today():
    rows, _ = kept(KEPT)
    some = rows[rows.estimated_bytes.notna()][::9]
    assert [estimated_bytes(run) for run in map(run_of, some.to_dict("records"))] == list(some.estimated_bytes)


def test_every_cause_belongs_to_a_jump():
    found = {(jump.after.package, jump.after.release, jump.after.job) for jump in jumps(*kept(KEPT))}
    causes = read_causes(KEPT)
    assert len(causes) >= 50
    assert set(causes) == found
    assert (KEPT / CAUSES).exists()


def test_every_run_has_a_kept_row():
    assert list(runs_in(kept(KEPT))) == list(RUNS)


def test_the_kept_peaks_are_possible():
    rows, tensors = kept(KEPT)
    ran = rows[rows.end == "ok"]
    assert len(ran) >= 60
    assert (ran.allocated_bytes <= ran.reserved_bytes).all()
    # Parameters in float32 or bfloat16, or half a byte each; AdamW has two more, and gradients, in full.
    parameters = ran.model.map({"0.5B": 494_032_768, "7B": 7_615_616_512}) / ran.gpus
    assert (ran.allocated_bytes > ran.tuning.map({"full": 4 * 2, "lora": 2, "qlora": 0.5}) * parameters).all()
    keys = ["package", "release", "trainer", "tuning", "model", "gpus"]
    held, peaks = tensors.groupby(keys).bytes.sum(), ran.set_index(keys).allocated_bytes
    assert (held[peaks.index] <= peaks).all()
