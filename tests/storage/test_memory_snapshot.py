"""A memory snapshot of a run that never happened, read by PyTorch's own `torch.cuda._memory_viz`."""

import pickle
import re
import subprocess
import sys

import pytest
from torch.cuda import _memory_viz

from profiler.allocator import Trace, TraceBuilder, memory_snapshot, replay_on_card
from profiler.allocator.settings import AllocatorConfig
from profiler.allocator.traces.trace import Site
from profiler.domain.memory import Category, Phase
from profiler.storage.files.trial_files import write_memory_snapshot

MIB = 1024 * 1024


def training() -> Trace:
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    site = Site(operation="aten.empty", shape=(11, 1024, 1024), dtype="uint8", module="model.layers.0")
    weights = builder.allocate(11 * MIB, Category.WEIGHTS, builder.site_index(site))
    builder.names[weights] = "model.layers.0.weight"
    builder.enter(Phase.FORWARD)
    activations = builder.allocate(
        5 * MIB,
        Category.ACTIVATIONS,
        builder.site_index(
            Site(operation="aten.mm", shape=(5, 1024, 1024), dtype="uint8", module="model.layers.0.mlp")
        ),
    )
    builder.allocate(1000, Category.INPUTS)
    builder.free(activations)
    builder.allocate(30 * MIB, Category.LOGITS)
    return builder.finished()


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "run" / "snapshot.pickle"
    write_memory_snapshot(file, memory_snapshot(training(), capacity_bytes=None))
    return file


def viz(*words) -> str:
    command = [sys.executable, "-m", "torch.cuda._memory_viz", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_the_command_stats_counts_what_the_replay_counts(path):
    # By hand: 11 in a segment of 12, an empty segment of 20, 1000 bytes in one of 2, 30 in one of its own.
    out = viz("stats", path)
    assert "segments: 4\n" in out
    assert "total_reserved: 64.0MiB\n" in out
    assert "total_allocated: 41.0MiB\n" in out
    assert f"({100 * (MIB + 24) / (23 * MIB - 1000):.1f}% internal)" in out


@pytest.mark.slow
def test_the_command_trace_tells_the_events(path):
    out = viz("trace", path).splitlines()
    assert out[:3] == ["Device 0 ----------------", "11 entries", out[2]]
    assert re.fullmatch(r"a = cudaMalloc\(\d+, 12.0MiB\)", out[2])
    assert out[3] == "b = a[0:11.0MiB]"
    assert any(line.endswith("[0:1000.0B]") for line in out)
    assert any(line.startswith("del ") and line.endswith("# 5.0MiB") for line in out)


@pytest.mark.slow
def test_the_flame_graph_of_segments_names_phase_category_module_and_operation(path):
    lines = {}

    def keep(text):
        lines.update(line.rsplit(" ", 1) for line in text.splitlines())
        return ""

    snapshot = pickle.loads(path.read_bytes())
    _memory_viz.segments(snapshot, format_flamegraph=keep)
    weights = [stack for stack, size in lines.items() if size == str(11 * MIB)]
    assert len(weights) == 1
    frames = weights[0].split(";")
    assert frames[0] == "stream_0"
    assert frames[2] == "active_allocated"
    assert frames[3:] == [
        "phase:0:load",
        "category:0:weights",
        "module:0:model.layers.0",
        "name:0:model.layers.0.weight",
        "tensor:0:uint8[11, 1024, 1024]",
        "operation:0:aten.empty",
    ]
    assert sum(map(int, lines.values())) == 64 * MIB


def test_the_functions_of_memory_viz_take_it(path):
    snapshot = pickle.loads(path.read_bytes())
    assert "total_reserved: 64.0MiB" in _memory_viz.segsum(snapshot)
    assert "11 entries" in _memory_viz.trace(snapshot)
    assert "MemoryViz.js" in _memory_viz.trace_plot(snapshot)
    assert "MemoryViz.js" in _memory_viz.segment_plot(snapshot)


def test_an_out_of_memory_ends_the_history():
    snapshot = memory_snapshot(training(), capacity_bytes=40 * MIB)
    assert "raise OutOfMemoryError # 30.0MiB requested, 26.0MiB free in CUDA" in _memory_viz.trace(snapshot)
    last = snapshot["device_traces"][0][-1]
    assert (last["action"], last["device_free"], last["size"]) == ("oom", 26 * MIB, 30 * MIB)


@pytest.mark.parametrize("alloc_conf", ["", "expandable_segments:True"])
def test_a_snapshot_of_the_peak_holds_the_peak(alloc_conf):
    config = AllocatorConfig(expandable_segments=bool(alloc_conf))
    result = replay_on_card(training(), capacity_bytes=None, config=config)
    snapshot = memory_snapshot(training(), capacity_bytes=None, alloc_conf=alloc_conf, until=result.peak_event + 1)
    segments = snapshot["segments"]
    assert sum(segment["allocated_size"] for segment in segments) == result.peak_allocated_bytes
    assert sum(segment["total_size"] for segment in segments) == result.peak_reserved_bytes
    assert all(sum(block["size"] for block in segment["blocks"]) == segment["total_size"] for segment in segments)
    assert {segment["is_expandable"] for segment in segments} == {bool(alloc_conf)}
    assert snapshot["allocator_settings"]["expandable_segments"] is bool(alloc_conf)
    _memory_viz.segsum(snapshot)


def test_only_the_last_entries_are_kept_if_so_wished():
    whole = memory_snapshot(training(), capacity_bytes=None)["device_traces"][0]
    assert memory_snapshot(training(), capacity_bytes=None, most_entries=3)["device_traces"][0] == whole[-3:]
