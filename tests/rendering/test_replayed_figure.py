"""A replayed history as a figure: tested by the numbers that it draws."""

import pytest
from own_histories import ALLOC, FREE, OwnHistory, recorded

from profiler.allocator.histories.history import read_history
from profiler.allocator.histories.what_if import Answer, Question, answer
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import as_gib
from profiler.rendering.figures.replayed import MOST_POINTS, replay_figure
from profiler.rendering.figures.theme import NOT_FITTING, as_png

MIB = 1024 * 1024
GIB = 1024 * MIB
T4 = KNOWN_GPUS["t4-16gb"]


def found(history: OwnHistory, cut: int = 0, **question) -> Answer:
    return answer(read_history(history.snapshot(cut)), Question(**question))


def labelled(axes, label):
    return [each for each in axes.get_lines() if each.get_label() == label]


def captions(axes) -> str:
    return " | ".join([axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)])


def test_the_figure_has_the_levels_of_both_courses():
    answered = found(recorded([(ALLOC, 5 * GIB, 0), (FREE, 0, 0), (ALLOC, 7 * GIB, 0)]))
    figure = replay_figure("run.pickle", answered)
    for axes, course in zip(figure.axes, (answered.comparison.course, answered.after.result.course), strict=True):
        (curve,) = [each for each in axes.get_lines() if each.get_drawstyle() == "steps-post"]
        levels = [as_gib(level) for level in course.reserved_bytes]
        assert list(curve.get_ydata()) == pytest.approx([*levels, levels[-1]])
        assert list(curve.get_xdata()) == list(range(len(levels) + 1))
        (peak,) = labelled(axes, "peak")
        assert (peak.get_xdata()[0], peak.get_ydata()[0]) == (course.peak.entry + 1, as_gib(course.peak.reserved_bytes))
    assert "recorded, with PyTorch's defaults" in captions(figure.axes[0])
    assert "peak 12.00 GiB, 42 % of it not allocated" in captions(figure.axes[0])
    assert "what if: expandable_segments:True" in captions(figure.axes[1])
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    assert "replayed by the model" in figure.get_suptitle()
    assert as_png(figure).startswith(b"\x89PNG")


def test_a_limit_that_is_near_is_a_line_and_one_that_is_far_only_a_number():
    near = replay_figure("x", found(recorded([(ALLOC, 9 * GIB, 0)]), gpu=T4)).axes[1]
    (limit,) = labelled(near, "limit")
    assert limit.get_ydata()[0] == pytest.approx(14.62, abs=0.01)
    assert near.get_ylim()[1] > 14.62
    far = replay_figure("x", found(recorded([(ALLOC, 1 * GIB, 0)]), gpu=T4)).axes[1]
    assert labelled(far, "limit") == []
    assert far.get_ylim()[1] < 2
    assert "limit 14.62 GiB (t4-16gb without the CUDA context)" in captions(far)


def test_where_the_program_would_have_ended_is_marked():
    axes = replay_figure("x", found(recorded([(ALLOC, 9 * GIB, 0), (ALLOC, 9 * GIB, 0)]), gpu=T4)).axes[1]
    (cross,) = labelled(axes, "out of memory")
    assert (cross.get_xdata()[0], cross.get_ydata()[0]) == (4, 9)
    assert cross.get_color() == NOT_FITTING
    assert "out of memory at entry 3: 9.00 GiB requested" in captions(axes)


def test_what_the_recording_was_refused_is_marked():
    history = recorded([(ALLOC, 9 * GIB, 0), (ALLOC, 9 * GIB, 0)], capacity_bytes=10 * GIB)
    figure = replay_figure("x", found(history))
    assert [len(labelled(axes, "out of memory")) for axes in figure.axes] == [1, 1]
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        "allocated",
        "reserved, not allocated",
        "peak of reserved memory",
        "what the process can take",
        "out of memory",
    }


def test_a_history_that_begins_in_the_middle_has_three_panels():
    history = recorded([(ALLOC, 9 * GIB, 0), (FREE, 0, 0), (ALLOC, 1, 0), (ALLOC, 1 * GIB, 0)])
    figure = replay_figure("x", found(history, cut=4))
    assert [captions(axes).split(" | ")[0] for axes in figure.axes] == [
        "recorded, with PyTorch's defaults",
        "the same settings, begun anew",
        "what if: expandable_segments:True",
    ]


def test_a_long_history_keeps_its_highest_levels():
    history = recorded([(ALLOC, 1 * GIB, 0)])
    for number in range(3 * MOST_POINTS):
        history.do((ALLOC, 2 * GIB if number == MOST_POINTS else 1, 0))
        history.do((FREE, 1, 0))
    answered = found(history)
    axes = replay_figure("x", answered).axes[0]
    (curve,) = [each for each in axes.get_lines() if each.get_drawstyle() == "steps-post"]
    assert len(curve.get_xdata()) <= MOST_POINTS + 1
    assert max(curve.get_ydata()) == as_gib(answered.comparison.course.peak.reserved_bytes)


def test_no_caption_reaches_beyond_the_figure():
    history = recorded([(ALLOC, 9 * GIB, 0), (ALLOC, 9 * GIB, 0)], capacity_bytes=10 * GIB)
    figure = replay_figure("a-rather-long-name-of-a-run.pickle", found(history, gpu=KNOWN_GPUS["rtx-3080-laptop-16gb"]))
    as_png(figure)
    width = figure.get_window_extent().width
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        for text in [*axes.texts, axes.title]:
            assert text.get_window_extent(renderer).x1 <= width
