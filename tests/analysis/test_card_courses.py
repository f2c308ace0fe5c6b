"""Who holds what of a card over the stages of a command."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analysis.card_courses import Stage, card_courses
from profiler.domain.memory import Phase
from profiler.domain.runs.other_runs import JobChange, JobMemory, JobProcess, JobRecord
from profiler.domain.runs.outcome import Status

TRAINER, ENGINE, WAITING = range(3)
LOAD, ROLLOUT, SYNC, FORWARD, BACKWARD = Phase.LOAD, Phase.ROLLOUT, Phase.SYNC, Phase.FORWARD, Phase.BACKWARD
ROLES = (("trains",), ("generates",), ())


def job(*changes: tuple[int, Phase, int], cards: int = 1, places: tuple[int, ...] = (0,)) -> JobRecord:
    """A record of three processes on each of these cards, whose changes are the same on all."""
    course = [JobChange(process=who, card=card, phase=in_, held_bytes=size)
              for who, in_, size in changes for card in places]  # fmt: skip
    peaks = [max([each.held_bytes for each in course if each.process == who], default=0) for who in range(3)]
    held, worst, in_worst, phases = [0] * 3, [0] * 3, [LOAD] * 3, [LOAD] * 3
    for who, phase, size in changes:
        held[who], phases[who] = size, phase
        if sum(held) > sum(worst):
            worst, in_worst = list(held), list(phases)
    processes = tuple(
        JobProcess(
            pid=who, parent=1, command=f"program {who}", rank=None, ranks=None, roles=ROLES[who], last_sentence="",
            last_sentence_s=0, has_ended_itself=True, refused_bytes=0, refused_card=None,
            peak_bytes=tuple(peaks[who] * (card in places) for card in range(cards)),
            at_worst_bytes=tuple(worst[who] * (card in places) for card in range(cards)),
            at_worst_phases=(in_worst[who],) * cards,
        )
        for who in range(3)
    )  # fmt: skip
    most = tuple(sum(worst) * (card in places) for card in range(cards))
    memory = JobMemory(processes=processes, card_peak_bytes=most, course=tuple(course))
    return JobRecord(
        command=("run.sh",), gpu="a card", cards=cards, memory_bytes=1_000, status=Status.OK, message="", exit_code=0,
        wall_s=1.0, memory=memory, values="complete",
    )  # fmt: skip


STEP = (
    (TRAINER, LOAD, 100), (TRAINER, LOAD, 200), (TRAINER, LOAD, 80),  # a rise is one, whatever its steps
    (ENGINE, LOAD, 50), (WAITING, LOAD, 3),
    (ENGINE, SYNC, 50), (ENGINE, SYNC, 300), (ENGINE, ROLLOUT, 300), (ENGINE, ROLLOUT, 500), (ENGINE, ROLLOUT, 20),
    (TRAINER, FORWARD, 80), (TRAINER, FORWARD, 150), (TRAINER, BACKWARD, 150), (TRAINER, BACKWARD, 400),
    (TRAINER, BACKWARD, 90), (TRAINER, BACKWARD, 0),
)  # fmt: skip


def test_a_step_has_its_stages_and_who_holds_what():
    (course,) = card_courses(job(*STEP))
    engine, trainer, others = course.holders
    assert (engine.process and engine.process.pid, trainer.process and trainer.process.pid) == (ENGINE, TRAINER)
    assert others.process is None
    # Six stages: the trainer loads; the engine too; it takes weights; it generates; the trainer updates, and ends.
    assert course.places == pytest.approx((0, 1 / 2, 1, 3 / 2, 2, 5 / 2, 3, 10 / 3, 11 / 3, 4, 13 / 3, 14 / 3, 5))
    assert course.end == 6
    assert trainer.sizes_bytes == (200, *[80] * 9, 400, 90, 0)
    assert engine.sizes_bytes == (0, 0, 50, 50, 50, 300, 300, 500, *[20] * 5)
    assert others.sizes_bytes == (0, 0, 0, *[3] * 10)
    assert trainer.stages == (Stage(name="load", start=0, end=4), Stage(name="update", start=4, end=5))
    assert [stage.name for stage in engine.stages] == ["load", "sync", "rollout"]
    assert (engine.stages[-1].start, engine.stages[-1].end) == (3, 6)
    assert course.worst_place == pytest.approx(10 / 3)
    assert [(each.at_worst_bytes, each.at_worst_phase) for each in course.holders] == [
        (500, ROLLOUT), (80, LOAD), (3, None)
    ]  # fmt: skip
    assert course.most_bytes == 583


@pytest.mark.parametrize(("scale", "expected"), [(1, [(0, 2)]), (2, [(0,), (2,)])])
def test_cards_on_which_the_same_roles_hold_the_same_are_one(scale, expected):
    record = job((TRAINER, LOAD, 100), cards=3, places=(0, 2))
    (process, *others) = record.memory.processes
    other = replace(process, peak_bytes=(100, 0, 100 * scale))
    memory = replace(record.memory, processes=(other, *others))
    assert [course.cards for course in card_courses(replace(record, memory=memory))] == expected


def test_a_command_without_a_course_has_none():
    assert card_courses(job()) == ()


CHANGES = st.lists(
    st.tuples(st.sampled_from((TRAINER, ENGINE, WAITING)), st.sampled_from(list(Phase)), st.integers(0, 900)),
    min_size=1, max_size=40,
)  # fmt: skip


@given(CHANGES)
def test_the_highest_point_is_kept_and_stages_do_not_overlap(changes):
    held, highest = [0, 0, 0], 0
    for who, _, size in changes:
        held[who] = size
        highest = max(highest, sum(held))
    (course,) = card_courses(job(*changes))
    totals = [sum(sizes) for sizes in zip(*(each.sizes_bytes for each in course.holders), strict=True)]
    if course.holders:
        assert max(totals) == highest == course.most_bytes
        assert totals[-1] == sum(held)
        assert totals[course.places.index(course.worst_place)] == highest
    assert list(course.places) == sorted(set(course.places))
    assert course.places[0] == 0 < course.places[-1] + 1 <= course.end + 1
    for holder in course.holders:
        ends = [place for stage in holder.stages for place in (stage.start, stage.end)]
        assert ends == sorted(ends)
        assert all(before.name != after.name or before.end < after.start
                   for before, after in zip(holder.stages, holder.stages[1:], strict=False))  # fmt: skip
