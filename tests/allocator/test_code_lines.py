"""The line of code of a request: read from stacks as torch writes them, and which lines hold the memory."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_histories import ALLOC, FREE, REQUEST_FREE, recorded, steps

from profiler.allocator.histories.course import BEFORE, reduced
from profiler.allocator.histories.history import read_history
from profiler.allocator.histories.recorded import held_lines, replay_history
from profiler.allocator.snapshot_facts import CodeLines, short_path

MIB = 1024 * 1024
SITE = "/opt/env/lib/python3.11/site-packages/"


def frame(file, line=1, name="f"):
    return {"filename": file, "line": line, "name": name}


CPP = frame("/pytorch/c10/cuda/CUDACachingAllocator.cpp", 0, "c10::cuda::CUDACachingAllocator::malloc")
TORCH = frame(SITE + "torch/nn/modules/linear.py", 125, "forward")
MODEL = frame(SITE + "transformers/models/qwen2/modeling_qwen2.py", 46, "forward")
SCRIPT = frame("/home/u/work/job/train.py", 30, "<module>")


# ---- one stack -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([CPP, TORCH, MODEL, SCRIPT], "transformers/models/qwen2/modeling_qwen2.py:46 forward"),
        ([CPP, TORCH, SCRIPT], "work/job/train.py:30 <module>"),
        ([frame("/usr/lib/python3.11/contextlib.py", 81, "inner"), SCRIPT], "work/job/train.py:30 <module>"),
        ([frame("<frozen importlib._bootstrap>", 5), SCRIPT], "work/job/train.py:30 <module>"),
        ([frame("/usr/lib/python3/dist-packages/trl/utils.py", 9, "f"), SCRIPT], "trl/utils.py:9 f"),
        ([frame("/src/pytorch-main/torch/optim/adam.py", 3), SCRIPT], "work/job/train.py:30 <module>"),
        # A folder of the user's own may have the name.
        ([frame("/home/u/torch/train.py", 3, "main")], "u/torch/train.py:3 main"),
        ([frame("<ipython-input-3-0a>", 2, "<module>")], "<ipython-input-3-0a>:2 <module>"),
        ([frame(r"C:\Users\u\env\Lib\site-packages\trl\models.py", 4, "f")], "trl/models.py:4 f"),
        ([CPP, frame("??", 0, "torch::autograd::generated::AddmmBackward0::apply")], "backward pass: AddmmBackward0"),
        ([CPP, frame("??", 0, "start_thread")], None),
        ([TORCH], None),
        ([], None),
        (None, None),
        ("frames", None),
        ([None, 3, "text", [], {}, {"filename": 3, "line": "x"}, {"filename": "a.py", "line": None}], None),
        ([{"filename": [], "name": {}}, {"filename": "a.py", "line": 2}], "a.py:2 "),
    ],
)
def test_the_telling_line_of_a_stack(frames, said):
    found = CodeLines().of({"frames": frames})
    assert (None if found is None else str(found)) == said


def test_a_simulated_tensor_is_named_by_what_it_is():
    frames = [frame("operation", 0, "aten.mm"), frame("module", 0, "layers.3.mlp"), frame("category", 0, "logits")]
    assert str(CodeLines().of({"frames": frames})) == "logits, layers.*.mlp, aten.mm"


def test_a_stack_without_end_is_read_to_a_limit():
    endless = [TORCH] * 5000 + [SCRIPT]
    assert CodeLines().of({"frames": endless}) is None
    assert len(CodeLines().of({"frames": [frame("/" + "a" * 10**6 + ".py", 1, "b" * 10**6)]}).function) == 400


def test_paths_are_shown_from_the_package_on():
    assert short_path("/opt/env/lib/python3.11/site-packages/trl/models/utils.py") == "trl/models/utils.py"
    assert short_path("/a/b/c/d/train.py") == "c/d/train.py"
    assert short_path("train.py") == "train.py"


# ---- who holds the memory --------------------------------------------------------------------------------------------


def lines_of(history, comparison):
    held = held_lines(history, comparison)
    return held, {each.line and each.line.line: (each.size_bytes, each.blocks) for each in held.lines}


def by_lines(plan, **card):
    """Record steps, each in the stack of its own line of a script."""
    own = recorded([], **card)
    for line, step in plan:
        own.allocator.frames = [CPP, TORCH, frame("/job/train.py", line)]
        own.do(step)
    return own


def test_hand_worked_peak():
    # At the peak, 40 + 8 + 2 MiB are in use: the third request is freed before, the last ones come after it.
    plan = [(1, (ALLOC, 40 * MIB, 0)), (2, (ALLOC, 6 * MIB, 0)), (9, (FREE, 1, 0)), (3, (ALLOC, 4 * MIB, 0))]
    plan += [(3, (ALLOC, 4 * MIB, 0)), (4, (ALLOC, 2 * MIB, 0)), (9, (FREE, 1, 0)), (5, (ALLOC, 1 * MIB, 0))]
    history = read_history(by_lines(plan).snapshot())
    held, lines = lines_of(history, replay_history(history))
    assert lines == {1: (40 * MIB, 1), 3: (8 * MIB, 2), 4: (2 * MIB, 1)}
    assert (held.allocated_bytes, held.refused) == (50 * MIB, None)
    assert [entry.action for entry in history.entries[held.entry : held.entry + 2]] == ["alloc", "free_requested"]
    # 40 of 50 are 80 %: the first line alone.
    assert [each.line.line for each in held.largest] == [1]


def test_a_freed_block_counts_until_its_stream_has_ended():
    plan = [(1, (ALLOC, 10 * MIB, 0)), (2, (REQUEST_FREE, 0, 0)), (3, (ALLOC, 30 * MIB, 0))]
    history = read_history(by_lines(plan).snapshot())
    assert lines_of(history, replay_history(history))[1] == {1: (10 * MIB, 1), 3: (30 * MIB, 1)}


def test_where_memory_ran_out_counts_and_the_refused_request_has_its_line():
    # The peak, 90 MiB, comes first; the request of line 4 is refused with 60 MiB in use.
    plan = [(1, (ALLOC, 60 * MIB, 0)), (2, (ALLOC, 30 * MIB, 0)), (9, (FREE, 1, 0)), (4, (ALLOC, 50 * MIB, 0))]
    history = read_history(by_lines(plan, capacity_bytes=100 * MIB).snapshot())
    held, lines = lines_of(history, replay_history(history))
    assert lines == {1: (60 * MIB, 1)}
    assert (held.refused.line.line, held.refused.size_bytes) == (4, 50 * MIB)
    assert history.entries[held.entry].action == "oom"


def test_a_block_from_before_the_recording_has_its_line_from_the_end():
    # Lines 1 and 2 are cut off; the block of line 2 is freed later, so that nothing says who requested it.
    own = by_lines([(1, (ALLOC, 40 * MIB, 0)), (2, (ALLOC, 24 * MIB, 0)), (3, (ALLOC, 30 * MIB, 0)), (9, (FREE, 1, 0))])
    cut = next(place for place, entry in enumerate(own.allocator.entries) if entry["size"] == 30 * MIB)
    history = read_history(own.snapshot(cut))
    _, lines = lines_of(history, replay_history(history))
    assert lines == {1: (40 * MIB, 1), None: (24 * MIB, 1), 3: (30 * MIB, 1)}


def test_an_address_that_was_used_again_has_the_line_of_its_time():
    own = by_lines([(1, (ALLOC, 40 * MIB, 0)), (9, (FREE, 0, 0)), (2, (ALLOC, 40 * MIB, 0))])
    cut = next(place for place, entry in enumerate(own.allocator.entries) if entry["action"] == "free_requested")
    history = read_history(own.snapshot(cut))
    held, lines = lines_of(history, replay_history(history))
    assert (held.entry, lines) == (BEFORE, {None: (40 * MIB, 1)})


def test_a_history_without_stacks_says_so():
    history = read_history(recorded([(ALLOC, MIB, 0)]).snapshot())
    assert not held_lines(history, replay_history(history)).has_stacks


@given(steps(), st.integers(0, 10), st.data())
def test_lines_hold_what_is_allocated_but_for_rests(plan, cut, data):
    own = by_lines([(data.draw(st.integers(1, 4)), step) for step in plan], capacity_bytes=200 * MIB)
    history = read_history(own.snapshot(min(cut, len(own.allocator.entries))))
    comparison = replay_history(history)
    if not comparison.is_consistent:
        return
    held = held_lines(history, comparison)
    rests = held.allocated_bytes - sum(each.size_bytes for each in held.lines)
    blocks = sum(each.blocks for each in held.lines)
    # A block of the large pool keeps a rest of up to 1 MiB.
    assert 0 <= rests <= blocks * MIB
    assert held.allocated_bytes <= comparison.course.peak_allocated_bytes
    assert max(Counter(each.line for each in held.lines).values(), default=1) == 1


# ---- the curve -------------------------------------------------------------------------------------------------------


def test_a_reduced_course_hand_worked():
    assert reduced([0, 3, 1, 2], 2) == ([0, 2, 4], [3, 2, 2])
    assert reduced([5], 300) == ([0, 1], [5, 5])


@given(st.lists(st.integers(0, 100), min_size=1), st.integers(1, 20))
def test_a_reduced_course_keeps_its_peak_and_its_ends(levels, most):
    entries, highest = reduced(levels, most)
    assert max(highest) == max(levels)
    assert (entries[0], entries[-1], highest[-1]) == (0, len(levels), levels[-1])
    assert len(entries) == len(highest) <= most + 1
    assert entries == sorted(set(entries))
