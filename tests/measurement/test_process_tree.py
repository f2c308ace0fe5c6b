"""Which processes are ours, asked of the kernel."""

import os
import subprocess
import sys

from profiler.measurement.process_tree import process_tree


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
        child.communicate("\n")
    assert child.pid not in process_tree()
