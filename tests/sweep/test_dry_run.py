"""`dry_run=true` says how long a sweep will take and what it will cost, and on what that rests."""

from dataclasses import replace

import builders
import pytest
from sweep_fakes import H100

from profiler.domain.runs.outcome import Outcome, Status, Verdict, Work
from profiler.domain.trials.trial import Backend
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.sweep_tables.tables import write_tables

GRID = "+grid=lora_vs_full"
SMALL = (GRID, "model=qwen2.5-0.5b", "dry_run=true", "jobs=2")
PRICES = "gpu,price_per_hour,currency\nh100-80gb,3,EUR\n"


def ran(specs, seconds, *, gpu_s=None, card=None):
    """Return records of trials that took `seconds`."""
    records = builders.records(specs)
    work = Work(wall_s=seconds, gpu_s=gpu_s)
    return [
        replace(
            record,
            outcome=replace(record.outcome, work=work, card=replace(record.outcome.card, name=card)),
        )
        for record in records
    ]


def last(out, lines=2):
    return out.splitlines()[-lines:]


def test_a_time_from_earlier_trials_of_the_grid_and_of_others(sweep, tmp_path):
    same = builders.spec(gradient_checkpointing=False, seed=9)
    write_tables(tmp_path / "results" / "other", ran([same], 72.0), {})
    _, out, _ = sweep(*SMALL)
    total, basis = last(out)
    # Full fine-tuning with and without 8-bit states, with LoRA: five trials of one model.
    assert total == "5 simulated trials: about 0.1 CPU-hours (0.1 to 0.1), 3 min here with 2 at a time."
    assert basis.startswith("  Times of earlier trials: ")
    assert "1 from trials that differ in sizes only, 4 from trials of the same model." in basis


def test_stored_trials_are_not_counted_again_unless_resume_is_false(sweep, world, tmp_path):
    sweep(GRID, "model=qwen2.5-0.5b")
    records = [replace(each, outcome=took(36.0)) for each in world.store.records.values()]
    write_tables(tmp_path / "results" / "lora_vs_full", records[:4], {})
    _, out, _ = sweep(*SMALL)
    first, total, _ = last(out, 3)
    assert first == f"4 of 5 trials are stored already in {tmp_path / 'results' / 'lora_vs_full'}."
    assert total.startswith("1 simulated trial: about 0.01 CPU-hours")
    _, out, _ = sweep(*SMALL, "resume=false")
    assert "5 simulated trials: about 0.05 CPU-hours" in out
    assert "4 from the same trials" in out


def took(seconds):
    return Outcome(verdict=Verdict(status=Status.OK), work=Work(wall_s=seconds))


def test_records_without_tables_count_too_and_a_damaged_table_is_said(sweep, world, tmp_path):
    folder = tmp_path / "results" / "lora_vs_full"
    store = RecordStore(folder)
    for record in ran([builders.spec()], 36.0):
        store.write(record)
    (folder / "records" / "notes.json").write_text("{}")
    _, out, _ = sweep(*SMALL)
    assert "5 simulated trials: about 0.05 CPU-hours" in out
    assert sorted(path.name for path in folder.iterdir()) == ["records"]
    (folder / "runs.parquet").write_bytes(b"PAR1")
    code, out, _ = sweep(*SMALL)
    assert code == 0
    assert f"The earlier trials in {folder} are not used: runs={folder}" in out
    assert "Nothing like them has run" in out


def test_a_measured_sweep_without_a_basis_is_between_bounds(sweep, world, tmp_path):
    prices = tmp_path / "prices.csv"
    prices.write_text(PRICES)
    code, out, err = sweep(*SMALL, "backend=cuda", "gpu=h100-80gb", f"prices={prices}", "timeout_s=720")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("Trial ids are not known: no GPU is visible here")
    total, basis = last(out)
    assert total == "5 measured trials: between 0.0012 and 1 GPU-hours, 0.00 EUR to 3.00 EUR."
    assert "at least what the peak rates of the card allow for the steps alone" in basis
    assert "at most timeout_s=720 for each trial" in basis
    _, out, _ = sweep(*SMALL, "backend=cuda", "gpu=t4-16gb")
    assert "5 measured trials: at most 2.5 GPU-hours." in out


def test_measured_trials_are_those_of_the_same_card(sweep, world, tmp_path):
    world.visible = H100
    prices = tmp_path / "prices.csv"
    prices.write_text(PRICES)
    title = builders.KNOWN_GPUS["h100-80gb"].title
    world.visible = replace(H100, gpus=(replace(H100.gpus[0], name=title),))
    specs = [builders.spec(backend=Backend.CUDA, gpu=None, seed=seed) for seed in (7, 8)]
    earlier = [*ran(specs[:1], 50.0, gpu_s=36.0, card=title), *ran(specs[1:], 50.0, gpu_s=9000.0, card="another card")]
    write_tables(tmp_path / "results" / "other", earlier, {})
    code, out, err = sweep(*SMALL, f"prices={prices}")
    assert (code, err) == (0, "")
    assert "5 measured trials: about 0.05 GPU-hours (0.05 to 0.05), 0.15 EUR, 3 min here with 1 at a time." in out


@pytest.mark.parametrize("backend", ["cpu", "emulated"])
def test_other_backends_have_a_line(sweep, backend):
    words = ("backend=cpu", "model=tiny") if backend == "cpu" else ("backend=emulated",)
    code, out, _ = sweep(*SMALL, *words)
    assert code == 0
    assert "CPU-hours" in out
