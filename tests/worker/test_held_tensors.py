"""The largest tensors on the card, from snapshots of torch's allocator."""

from pathlib import Path

from profiler.domain.runs.other_runs import HeldTensors
from profiler.worker.cuda.held_tensors import KnownObjects, largest_at_peak, largest_held
from profiler.worker.scripts.script_faults import last_line_in, print_error_of_script

KNOWN = KnownObjects(script=Path("/project/train.py"), models=[], optimizers=[])


def frame(filename, line):
    return {"filename": filename, "line": line, "name": "f"}


TORCH = frame("/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", 7)
MODEL = frame("/env/lib/python3.11/site-packages/transformers/models/qwen2/modeling_qwen2.py", 48)
OURS = frame("/project/train.py", 41)
OURS_TOO = frame("/project/parts/model.py", 5)
PYTHON = frame("/usr/lib/python3.11/runpy.py", 3)


def block(size, *frames, state="active_allocated"):
    return {"size": size + 12, "requested_size": size, "state": state, "frames": list(frames)}


def held(size, tensors, line="", library="", name=""):
    return HeldTensors(size_bytes=size, tensors=tensors, name=name, line=line, library=library)


def test_blocks_are_grouped_by_the_line_of_the_script_and_of_the_library():
    blocks = [
        block(500, TORCH, MODEL, OURS, PYTHON),
        block(500, TORCH, MODEL, OURS, PYTHON),
        block(700, TORCH, OURS_TOO, OURS),
        block(300),
        block(9000, OURS, state="inactive"),
    ]
    found = largest_held({"segments": [{"address": 0, "blocks": blocks}]}, KNOWN)
    assert found == (held(1000, 2, "train.py:41", "modeling_qwen2.py:48"), held(700, 1, "model.py:5"), held(300, 1))


def test_at_most_ten_groups_are_kept():
    blocks = [block(size, frame("/project/train.py", size)) for size in range(1, 30)]
    found = largest_held({"segments": [{"address": 0, "blocks": blocks}]}, KNOWN)
    assert [each.size_bytes for each in found] == list(range(29, 19, -1))


def entry(action, addr, size, *frames):
    return {"action": action, "addr": addr, "size": size, "frames": list(frames)}


def test_the_peak_of_a_history_is_where_most_is_in_use():
    history = [
        entry("alloc", 1, 100, OURS),
        entry("segment_alloc", 1, 10_000),
        entry("alloc", 2, 700, MODEL, OURS),
        entry("free_requested", 2, 700),
        entry("free_completed", 2, 700),
        entry("alloc", 2, 600, OURS_TOO),
        entry("free_completed", 77, 5000),
    ]
    found = largest_at_peak({"segments": [], "device_traces": [history]}, KNOWN, {(1, 100): "weight", (2, 99): "other"})
    assert found == (held(700, 1, "train.py:41", "modeling_qwen2.py:48"), held(100, 1, name="weight"))


def test_an_error_has_the_innermost_line_of_the_script_and_no_frame_of_ours(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("import json\n\ndef load():\n    return json.loads('{')\n\nload()\n")
    try:
        exec(compile(script.read_text(), str(script), "exec"), {})
    except ValueError as error:
        assert last_line_in(error, script) == "train.py:4 (return json.loads('{'))"
        assert last_line_in(error, tmp_path / "other.py") == ""
        print_error_of_script(error, script)
    printed = capsys.readouterr().err
    assert "test_held_tensors.py" not in printed
    assert printed.splitlines()[1].strip().startswith(f'File "{script}", line 6')
