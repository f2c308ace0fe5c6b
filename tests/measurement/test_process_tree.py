"""Which processes are ours, asked of the kernel."""

import mmap
import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from profiler.measurement.samples.host_usage import (
    RecentProcessTree,
    peak_pinned_bytes,
    process_tree,
    resident_and_shared_bytes,
    resident_bytes,
)


def test_grandchildren_are_ours_and_the_parent_is_not():
    start = "p = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0)"
    script = f"import subprocess, sys; {start}; print(p.pid); p.wait()"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert {os.getpid(), child.pid, grandchild} <= process_tree()
        assert process_tree(child.pid) == {child.pid, grandchild}
        assert process_tree() == {os.getpid(), *(one.pid for one in psutil.Process().children(recursive=True))}
        child.communicate("\n")
    assert child.pid not in process_tree()


def test_a_process_that_has_ended_has_no_children():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert process_tree(child.pid) == {child.pid}


def test_a_recent_tree_is_asked_for_once_a_second():
    times = [0.0, 0.1, 0.9, 1.0, 1.5, 2.1]
    trees = [frozenset({1}), frozenset({2}), frozenset({3})]
    recent = RecentProcessTree(clock=lambda: times.pop(0), for_s=1.0, tree=lambda: trees.pop(0))
    assert [recent() for _ in range(5)] == [{1}, {1}, {2}, {2}, {3}]


def test_shared_memory_is_a_part_of_what_is_resident(tmp_path):
    for pid, pages in ((1, "90 40 15 1 0 2 0"), (2, "90 7 7 1 0 2 0"), (3, "90 1")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "statm").write_text(pages)
    size = mmap.PAGESIZE
    # The third is not read whole, as of a process that has ended; the fourth is not there.
    assert resident_and_shared_bytes([1, 2, 3, 4], proc=tmp_path) == (47 * size, 22 * size)
    with mmap.mmap(-1, 64 * 2**20) as shared:
        resident, before = resident_and_shared_bytes([os.getpid()])
        shared.write(b"1" * len(shared))
        after = resident_and_shared_bytes([os.getpid()])
    assert after[1] - before >= 60 * 2**20
    assert after[0] - resident >= 60 * 2**20
    assert resident_bytes([os.getpid()]) > 0


def without_counter():
    """Built without CUDA, or older."""
    raise AttributeError("_cuda_hostMemoryStats")


COUNTED = {"is_initialized": lambda: True, "host_memory_stats": lambda: {"allocated_bytes.peak": 2**30}}


@pytest.mark.parametrize(
    ("cuda", "found"),
    [
        (COUNTED, 2**30),
        ({**COUNTED, "host_memory_stats": dict}, None),
        ({**COUNTED, "is_initialized": lambda: False}, None),
        ({"is_initialized": lambda: True}, None),
        ({**COUNTED, "host_memory_stats": without_counter}, None),
    ],
)
def test_pinned_memory_is_read_where_torch_counts_it(monkeypatch, cuda, found):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(**cuda)))
    assert peak_pinned_bytes() == found
    monkeypatch.delitem(sys.modules, "torch")
    assert peak_pinned_bytes() is None


def test_torch_has_the_counter_of_pinned_memory():
    """On a CPU no CUDA is used, and there is nothing to count."""
    assert callable(torch.cuda.host_memory_stats)
    assert peak_pinned_bytes() is None
