"""The places of the comparison, and the values of each cell."""

from dataclasses import replace

import builders
import pytest

from profiler.analysis.compared.comparison import compare, comparison_frame, only
from profiler.analysis.errors import Compared, accuracies
from profiler.analysis.findings.peaks import phase_rows, stacks
from profiler.domain.memory import GIB, TRIAL_PHASES, Category, Origin
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import Backend, Logprobs
from profiler.storage.foreign.published import read_published


def compared(folder, records):
    return compare(builders.tables(folder, records).runs, read_published())


def test_methods_are_rows_and_models_columns_in_reading_order(tmp_path):
    (section,) = compared(tmp_path, builders.records(builders.lora_vs_full_specs())[::-1])
    assert section.rows == (
        "full",
        "full + 8-bit",
        "full + 8-bit + checkpointing",
        "LoRA",
        "LoRA + checkpointing",
    )
    assert section.models == builders.QWEN
    assert len(section.cells) == 25
    assert (section.setting.origin, section.setting.card) == (Origin.SIMULATED, "NVIDIA H100 80GB HBM3")


def test_numbers_in_labels_are_ordered_as_numbers(tmp_path):
    specs = [builders.spec(num_generations=n, per_device_train_batch_size=n) for n in (64, 4, 16, 8)]
    (section,) = compared(tmp_path, builders.records(specs))
    assert [row.rsplit("=", maxsplit=1)[-1] for row in section.rows] == ["4", "8", "16", "64"]


def test_members_of_an_enumeration_keep_their_order(tmp_path):
    specs = [builders.spec(logprobs=way) for way in (Logprobs.MINIBATCH, Logprobs.FULL, Logprobs.FUSED)]
    (section,) = compared(tmp_path, builders.records(specs))
    assert [row.rsplit("=", maxsplit=1)[-1] for row in section.rows] == ["fused", "full", "minibatch"]


def test_the_result_of_an_out_of_memory_cell_is_what_it_needs(tmp_path):
    (section,) = compared(tmp_path, builders.records(builders.lora_vs_full_specs()))
    cell = section.cells["full", "qwen2.5-14b"]
    assert cell.status is Status.OOM
    assert cell.result_bytes == cell.required_allocated_bytes > cell.peak_allocated_bytes
    assert cell.missing_bytes == cell.required_allocated_bytes - builders.H100.memory_bytes
    assert cell.estimate_error_ratio == pytest.approx(-0.08, abs=1e-6)


def test_a_measured_out_of_memory_has_no_result_to_compare_with(tmp_path):
    spec = builders.spec(model="qwen2.5-14b", backend=Backend.CUDA, gpu=None)
    outcome = builders.changed(builders.outcome(builders.spec(model="qwen2.5-14b")), required_allocated_bytes=None)
    (section,) = compared(tmp_path, [builders.record(spec, outcome=outcome)])
    (cell,) = section.in_order()
    assert (cell.result_bytes, cell.missing_bytes, cell.estimate_error_ratio) == (None, None, None)
    assert section.setting.origin is Origin.MEASURED


def test_origins_cards_and_versions_have_sections_of_their_own(tmp_path):
    measured = builders.spec(backend=Backend.CUDA, gpu=None)
    on_cpu = builders.spec(backend=Backend.CPU, gpu=None, model="tiny")
    newer = replace(builders.VERSIONS, torch="2.14.0")
    records = [
        builders.record(builders.spec(), outcome=builders.outcome(builders.spec())),
        builders.record(builders.spec(), outcome=builders.outcome(builders.spec()), versions=newer),
        builders.record(builders.spec(gpu="t4-16gb"), outcome=builders.outcome(builders.spec(gpu="t4-16gb"))),
        builders.record(measured, outcome=builders.changed(builders.outcome(builders.spec()), gpu_name="NVIDIA H200")),
        builders.record(on_cpu, outcome=builders.on_cpu()),
    ]
    sections = compared(tmp_path, records)
    assert [section.setting.origin for section in sections] == [
        Origin.MEASURED,
        Origin.SIMULATED,
        Origin.SIMULATED,
        Origin.SIMULATED,
        None,
    ]
    assert all(len(section.cells) == 1 for section in sections)


def test_a_trial_that_failed_before_it_read_the_card_is_in_the_section_of_the_others(tmp_path):
    records = builders.records(builders.lora_vs_full_specs())
    failed = [replace(record, outcome=builders.failed()) for record in records[:5]]
    (section,) = compared(tmp_path, failed + records[5:])
    assert [cell.status for cell in section.unanswered] == [Status.FAILED] * 5
    (section,) = compared(tmp_path, failed)
    assert section.setting.memory_bytes == builders.H100.memory_bytes


def test_a_measured_trial_that_failed_early_is_in_the_section_of_the_card(tmp_path):
    lived, died = (builders.spec(backend=Backend.CUDA, gpu=None, seed=seed) for seed in (0, 1))
    records = [
        builders.record(lived, outcome=builders.outcome(builders.spec())),
        builders.record(died, outcome=builders.failed()),
    ]
    (section,) = compared(tmp_path, records)
    assert section.rows == ("full + checkpointing, seed=0", "full + checkpointing, seed=1")


def test_labels_follow_from_the_keys_and_not_from_what_is_stored(tmp_path):
    specs = [builders.spec(num_generations=n, seed=seed) for n in (4, 2) for seed in (0, 1)]
    records = [builders.record(spec, outcome=builders.outcome(spec), label="full") for spec in specs]
    (section,) = compared(tmp_path, records)
    assert section.rows == (
        "full + checkpointing, num_generations=2, seed=0",
        "full + checkpointing, num_generations=2, seed=1",
        "full + checkpointing, num_generations=4, seed=0",
        "full + checkpointing, num_generations=4, seed=1",
    )


def test_labels_leave_out_what_the_section_says(tmp_path):
    specs = [
        builders.spec(),
        builders.spec(gpu="t4-16gb"),
        builders.spec(backend=Backend.CUDA, gpu=None),
        builders.spec(backend=Backend.CPU, gpu=None),
    ]
    outcomes = [builders.outcome(specs[0]), builders.outcome(specs[1]), builders.outcome(specs[0]), builders.on_cpu()]
    records = [builders.record(spec, outcome=outcome) for spec, outcome in zip(specs, outcomes, strict=True)]
    sections = compared(tmp_path, records)
    assert [section.rows for section in sections] == [("full + checkpointing",)] * 4


def test_two_trials_of_one_section_never_have_the_same_label(tmp_path):
    capped, whole = (builders.spec(backend=Backend.CUDA, gpu=gpu) for gpu in ("h100-80gb", None))
    runs = builders.tables(
        tmp_path, [builders.record(spec, outcome=builders.outcome(builders.spec())) for spec in (capped, whole)]
    ).runs
    (section,) = compare(runs)
    assert set(section.rows) == {"full + checkpointing, gpu=h100-80gb", "full + checkpointing, gpu=none"}
    (section,) = compare(runs.assign(gpu=None))
    assert section.rows == tuple(f"full + checkpointing, {trial_id[:8]}" for trial_id in sorted(runs["trial_id"]))


def test_a_section_can_be_reduced_to_some_trials(tmp_path):
    (section,) = compared(tmp_path, builders.records(builders.lora_vs_full_specs()))
    wanted = [section.cells[row, "qwen2.5-3b"].trial_id for row in ("LoRA", "full")]
    reduced = only(section, wanted)
    assert (reduced.rows, reduced.models) == (("full", "LoRA"), ("qwen2.5-3b",))
    assert [cell.trial_id for cell in reduced.in_order()] == wanted[::-1]
    assert only(section, ["another"]) is None


def test_without_trials_there_is_no_section(tmp_path):
    assert compared(tmp_path, []) == ()


def test_published_figures_belong_to_the_trials_of_their_grid_only(tmp_path):
    (section,) = compared(tmp_path / "a", builders.records(builders.oxen_specs(), grid="oxen_2025"))
    printed = {(cell.label, cell.model): cell.published.printed for cell in section.in_order()}
    assert len(printed) == 20
    assert printed["full", "llama-3.2-1b"] == "38"
    assert printed["full + 8-bit", "llama-3.2-3b"] == "52"
    assert printed["full + 8-bit + checkpointing", "llama-3.1-8b"] == "72"
    assert printed["full", "qwen2.5-14b"] == "OOM"
    assert printed["LoRA", "qwen2.5-14b"] == "69"
    (section,) = compared(tmp_path / "b", builders.records(builders.oxen_specs(), grid="another"))
    assert section.published == ()


def _cells(tmp_path, ratios):
    """A section whose trials take 10 GiB each, with these estimates over them."""
    outcome = builders.outcome_of(gpu_name="x", gpu_memory_bytes=80 * GIB, peak_allocated_bytes=10 * GIB)
    runs = builders.tables(
        tmp_path,
        [builders.record(builders.spec(seed=seed), outcome=outcome) for seed in range(len(ratios))],
    ).runs.sort_values("seed")
    runs["estimated_peak_allocated_bytes"] = [int(10 * GIB * ratio) for ratio in ratios]
    runs["estimated_peak_rule_bytes"] = 20 * GIB
    (section,) = compare(runs)
    return list(section.in_order())


def test_accuracy_by_hand(tmp_path):
    # Absolute errors 10, 20, 30, 40, 50 %: the median is 30; 95 % of the way along four gaps is 3.8, so 48.
    estimate, rule = accuracies(_cells(tmp_path, [1.1, 0.8, 1.3, 0.6, 1.5]))
    assert (estimate.of, estimate.trials) == (Compared.ESTIMATE, 5)
    assert estimate.median_ratio == pytest.approx(0.3)
    assert estimate.p95_ratio == pytest.approx(0.48)
    assert (estimate.worst.label, estimate.worst_error_ratio) == ("full + checkpointing, seed=4", pytest.approx(0.5))
    assert (rule.of, rule.median_ratio) == (Compared.RULE, pytest.approx(1.0))


def test_without_results_there_is_no_accuracy(tmp_path):
    records = [builders.record(builders.spec(), outcome=builders.failed())]
    (section,) = compared(tmp_path, records)
    assert accuracies(section.in_order()) == ()


def test_stacks_and_phases_have_the_stored_sizes(tmp_path):
    records = builders.records(builders.lora_vs_full_specs())
    tables = builders.tables(tmp_path, records)
    (section,) = compare(tables.runs)
    found = stacks(section, tables.breakdown, tables.shape_of)
    assert len(found) == 25
    for stack in found:
        assert sum(stack.shares.values()) == stack.cell.peak_allocated_bytes
        assert list(stack.shares) == [category for category in Category if category in stack.shares]
    rows = phase_rows(section, tables.phases)
    assert all(max(row.peaks.values()) == row.cell.peak_allocated_bytes for row in rows)
    assert all(list(row.peaks) == list(TRIAL_PHASES) for row in rows)


def test_the_tidy_frame_has_one_row_per_cell(tmp_path):
    sections = compared(tmp_path, builders.records(builders.oxen_specs(), grid="oxen_2025"))
    frame = comparison_frame(sections)
    assert len(frame) == 20
    row = frame[(frame["model"] == "qwen2.5-14b") & (frame["method"] == "full")].iloc[0]
    assert (row["status"], row["published"]) == ("oom", "OOM")
    assert row["missing_bytes"] == row["result_bytes"] - builders.H100.memory_bytes
    assert len(comparison_frame([])) == 0
