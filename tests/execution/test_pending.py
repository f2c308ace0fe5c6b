"""The queue of waiting trials: in order, and siblings are found without a look at all trials."""

from dataclasses import replace

from witness import planned

from profiler.domain.trials.trial import Backend
from profiler.execution import trials as pending_module
from profiler.execution.trials import Pending


def on(gpu, number):
    trial = planned(f"{gpu}-{number}", "answers")
    return replace(trial, spec=replace(trial.spec, backend=Backend.SIMULATED, gpu=gpu, seed=number))


def test_trials_leave_in_order_and_can_come_back_at_both_ends():
    one, two, three = (on("h100-80gb", number) for number in range(3))
    queue = Pending([one, two])
    assert queue.popleft() is one
    queue.append(three)
    queue.appendleft(one)
    assert list(queue) == [one, two, three]
    queue.remove(two)
    assert (len(queue), bool(queue)) == (2, True)
    assert [queue.popleft(), queue.popleft()] == [one, three]
    assert not queue


def test_siblings_are_those_that_still_wait():
    same = [on(gpu, 0) for gpu in ("h100-80gb", "h200-141gb")]
    other, real = on("h100-80gb", 1), planned("real", "answers")
    queue = Pending([*same, other, real])
    first = queue.popleft()
    assert queue.siblings(first) == [same[1]]
    queue.remove(same[1])
    assert queue.siblings(first) == []
    queue.append(same[1])
    assert queue.siblings(first) == [same[1]]
    assert queue.siblings(real) == []


def test_the_run_of_each_trial_is_worked_out_once(monkeypatch):
    asked = []
    run_key = pending_module.run_key
    monkeypatch.setattr(pending_module, "run_key", lambda spec: asked.append(spec) or run_key(spec))
    for count in (50, 200):
        asked.clear()
        queue = Pending([on("h100-80gb", number) for number in range(count)])
        while queue:
            assert queue.siblings(queue.popleft()) == []
        assert len(asked) == count
