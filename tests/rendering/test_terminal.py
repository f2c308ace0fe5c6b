"""The table in a terminal: width, legend and colours."""

import io
from dataclasses import replace

import builders
import pytest
from rich.console import Console

from profiler.analysis.sweep_report import only_trials, sweep_report
from profiler.domain.memory import GIB, Phase
from profiler.domain.runs.outcome import Status
from profiler.domain.runs.readings import PhasePeak
from profiler.domain.trials.trial import Backend, VllmMode
from profiler.rendering.layouts.terminal import print_document
from profiler.rendering.sweep.summary import sweep_summary
from profiler.storage.foreign.published import read_published


def printed(folder, records, *, width=80, **settings):
    sink = io.StringIO()
    report = sweep_report(builders.tables(folder, records), read_published(), grid="made_up")
    print_document(sweep_summary(report), Console(file=sink, width=width, **settings))
    return sink.getvalue()


@pytest.mark.parametrize("specs", [builders.lora_vs_full_specs(), builders.oxen_specs()], ids=["lora_vs_full", "oxen"])
def test_five_models_fit_eighty_columns_in_one_table(tmp_path, specs):
    text = printed(tmp_path, builders.records(specs, grid="oxen_2025"))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.count("method ") == 1
    assert "…" not in text


def test_a_cell_shows_result_estimate_and_error(tmp_path):
    text = printed(tmp_path, builders.records([builders.spec(gradient_checkpointing=False)]))
    assert "7.8" in text
    assert "~7.2 -8%" in text
    assert "Simulated on NVIDIA H100 80GB HBM3 (79.1 GiB)" in text
    assert "torch 2.13.0, trl 1.16.0" in text


def test_out_of_memory_shows_what_it_needs_and_has_a_legend(tmp_path):
    text = printed(tmp_path, builders.records([builders.spec(model="qwen2.5-14b", gradient_checkpointing=False)]))
    assert "OOM 170.4" in text
    assert "OOM n: out of memory; it needs n GiB (simulated with unlimited memory)." in text


def test_the_legend_has_only_marks_that_occur(tmp_path):
    text = printed(tmp_path, builders.records([builders.spec()]))
    assert "OOM" not in text
    assert "pub" not in text.replace("published rule of thumb", "")


def test_published_figures_are_shown_as_printed(tmp_path):
    text = printed(tmp_path, builders.records(builders.oxen_specs(), grid="oxen_2025"))
    assert "pub 38 GB" in text
    assert "pub OOM" in text
    assert "Oxen.ai" in text


def test_more_models_than_fit_are_split_into_several_tables(tmp_path):
    models = [*builders.QWEN, "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b"]
    text = printed(tmp_path, builders.records(builders.lora_vs_full_specs(models)))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.count("method ") == 2
    assert all(model in text for model in models)


def test_a_cpu_trial_has_no_gpu_figures(tmp_path):
    record = builders.record(builders.spec(backend=Backend.CPU, gpu=None, model="tiny"), outcome=builders.on_cpu())
    text = printed(tmp_path, [record])
    assert "ok (CPU)" in text
    assert "Run on the CPU (no GPU figures)" in text
    assert "~" not in text


def test_failures_have_their_message_and_an_empty_place_is_a_dot(tmp_path):
    records = builders.records(builders.lora_vs_full_specs())[:7]
    records[0] = replace(records[0], outcome=builders.failed(message="Traceback\n  [red]\nValueError: [bold]no"))
    records[1] = replace(records[1], outcome=builders.failed(Status.HOST_OOM, ""))
    text = printed(tmp_path, records)
    assert "failed: full, qwen2.5-0.5b: ValueError: [bold]no" in text
    assert "host oom" in text
    assert "·" in text


def test_all_failed_and_nothing_at_all(tmp_path):
    failed = [replace(record, outcome=builders.failed()) for record in builders.records(builders.lora_vs_full_specs())]
    text = printed(tmp_path / "failed", failed)
    assert text.count("failed: ") == 10
    assert "and 15 more" in text
    assert "No trial is stored here yet." in printed(tmp_path / "none", [])


def test_colours_only_on_a_terminal_without_no_color(tmp_path, monkeypatch):
    records = builders.records(builders.lora_vs_full_specs())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" not in printed(tmp_path, records)
    assert "\x1b[1;31m" in printed(tmp_path, records, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "31m" not in printed(tmp_path, records, force_terminal=True)


def test_a_local_path_is_shown_by_its_last_part(tmp_path):
    spec = builders.spec(model="/home/somebody/models/my-model")
    outcome = builders.outcome(builders.spec())
    text = printed(tmp_path, [builders.record(spec, outcome=outcome)])
    assert "my-model" in text
    assert "somebody" not in text


def test_a_part_of_the_trials_has_the_labels_of_all(tmp_path):
    specs = [builders.spec(gradient_checkpointing=False, seed=seed) for seed in (0, 1)]
    records = builders.records(specs)
    report = sweep_report(builders.tables(tmp_path, records), grid="made_up")
    sink = io.StringIO()
    print_document(sweep_summary(only_trials(report, [records[1].trial_id])), Console(file=sink, width=80))
    assert "full, seed=1" in " ".join(sink.getvalue().split())
    assert "seed=0" not in sink.getvalue()
    assert sink.getvalue().count("estimate: median error") == 1


def test_a_trial_with_vllm_has_two_peaks(tmp_path):
    asleep = builders.spec(
        use_vllm=True, vllm_mode=VllmMode.COLOCATE, vllm_gpu_memory_utilization=0.3, vllm_enable_sleep_mode=True
    )
    made = builders.outcome(asleep)
    reserved = {Phase.ROLLOUT: 30 * GIB, Phase.FORWARD: 9 * GIB, Phase.BACKWARD: 10 * GIB}
    phases = tuple(
        PhasePeak(phase=phase, peak_allocated_bytes=made.peaks.allocated_bytes, peak_reserved_bytes=size)
        for phase, size in reserved.items()
    )
    outcome = builders.changed(made, phases=phases, peak_reserved_bytes=30 * GIB, peak_device_bytes=31 * GIB)
    text = " ".join(printed(tmp_path, [builders.record(asleep, outcome=outcome)]).split())
    assert "vLLM on the GPU that trains: highest memory of the device in the rollout and in training." in text
    assert "rollout 31.0 GiB, 39.2 % of the card; training 11.0 GiB, 13.9 % of the card." in text
    assert "vLLM" not in printed(tmp_path / "without", builders.records([builders.spec()]))
