"""What a sweep does with its trials, event by event, on this machine and on a cluster: claims, starts, ends, records.

`order_of_events.json` has the events of each case. After a change that is meant, `EVENTS_KEPT=new` writes it again;
the difference shows what a sweep does now.
"""

import json
import os
from pathlib import Path

import pytest
from scripted import ScriptedNvml
from scripted_engines import (
    FAILED,
    FULL,
    KILLED,
    LOST,
    OOM,
    SILENT,
    UNFIT,
    Script,
    measured,
    on_a_cluster,
    on_this_machine,
    siblings,
    trials,
)

from profiler.cluster import placing
from profiler.cluster.slots import SlotKind
from profiler.domain.memory import GIB
from profiler.execution import Pruning

KEPT = Path(__file__).with_name("order_of_events.json")
TWO = ("GPU-1", "GPU-2")


class OneBroken(ScriptedNvml):
    """Each call finds one more memory error of GPU-1."""

    def uncorrected_errors(self, uuid):
        self.errors += uuid == "GPU-1"
        return self.errors if uuid == "GPU-1" else 0


class Filled(ScriptedNvml):
    """Other programs hold the GPUs at the first polls."""

    polls = 0

    def memory(self, uuid):
        self.polls += 1
        self.used_bytes = 7 * GIB if self.polls <= 2 else 0
        return super().memory(uuid)


def _longer():
    return Pruning(needs_at_most=lambda one, other: one.max_completion_length <= other.max_completion_length)


def _lengths(names):
    return [trial for number, name in enumerate(names) for trial in measured(name, max_completion_length=8 << number)]


def _by_backend(spec):
    return SlotKind(gpus=1) if spec.backend == "cuda" else SlotKind()


PLANS = {
    "all end well": (trials("abcd"), {}, {}),
    "some end late": (trials("abcde"), {}, {"after": {"a": "c", "d": "e"}}),
    "every kind of end": (trials("abcde"), {"b": [FAILED], "c": [OOM], "d": [FAILED]}, {}),
    "one fails after the other": (trials("0123456789"), {name: [FAILED] for name in "123456789"}, {}),
    "trials of another sweep": (trials("abc"), {}, {"held": {"a": 3, "b": 1}}),
    "only trials of another sweep": (trials("ab"), {}, {"held": {"a": 2, "b": 2}}),
    "siblings": (siblings("abcd"), {}, {}),
    "a sibling of another sweep": (siblings("abcd"), {}, {"held": {"c": 1}}),
    "forgotten siblings": (siblings("abcd"), {}, {"forgotten": "bd"}),
    "lost once": (trials("abc"), {"b": [LOST, "ok"]}, {}),
    "siblings are lost once": (siblings("abc"), {"a": [LOST, "ok"]}, {}),
    "a cause of all workers": (trials("abc"), {"b": [UNFIT]}, {"after": {"a": "b"}}),
    "Ctrl-C at a start": (trials("abcd"), {}, {"after": {"a": "d"}, "raise_at": "started b"}),
    "Ctrl-C at an end": (trials("abcd"), {}, {"after": {"a": "d"}, "raise_at": "finished b ok"}),
    "Ctrl-C at a claim": (trials("abcd"), {}, {"after": {"a": "d"}, "raise_at": "claim b"}),
    "Ctrl-C at a sibling's claim": (siblings("abcd"), {}, {"raise_at": "claim c"}),
}

HERE = {
    **{f"{name}, 1 job": (*plan, {**script, "after": {}}, {}) for name, (*plan, script) in PLANS.items()},
    **{f"{name}, 2 jobs": (*plan, {"jobs": 2}) for name, plan in PLANS.items()},
    "killed and silent": (trials("abc"), {"a": [KILLED], "b": [SILENT]}, {}, {}),
    "the warmed process ends before a fork": (trials("ab"), {}, {}, {"failed_forks": 1}),
    "one GPU": (measured("abc"), {}, {"after": {"a": "d"}}, {"jobs": 2, "gpus": TWO[:1], "extra": trials("d")}),
    "GPUs for two ranks": (measured("ab", num_processes=2), {}, {}, {"jobs": 2, "gpus": TWO}),
    "too few GPUs for a trial": (measured("ab", num_processes=3), {}, {}, {"gpus": TWO, "extra": trials("d")}),
    "a GPU breaks": (measured("abc"), {}, {}, {"jobs": 2, "gpus": TWO, "nvml": OneBroken}),
    "the only GPU breaks": (measured("ab"), {}, {}, {"gpus": TWO[:1], "nvml": OneBroken, "extra": trials("d")}),
    "GPUs that others use": (measured("ab"), {}, {}, {"gpus": TWO[:1], "nvml": Filled, "extra": trials("d")}),
    "pruned on GPUs": (_lengths("abcd"), {"b": [OOM]}, {}, {"gpus": TWO, "pruning": _longer}),
    "Ctrl-C at a fork": (measured("ab"), {}, {"raise_at": "fork a on ('GPU-1',)"}, {"gpus": TWO}),
    "a lost worker on a GPU": (measured("ab"), {"a": [LOST, "ok"]}, {}, {"gpus": TWO}),
}

THERE = {
    **{name: (*plan, {}) for name, plan in PLANS.items()},
    "lost every time": (trials("abc"), {"b": [LOST]}, {}, {}),
    "no record every time": (trials("abc"), {"b": [SILENT]}, {}, {}),
    "siblings are lost every time": (siblings("ab"), {"a": [LOST], "b": [LOST]}, {}, {}),
    "siblings fail": (siblings("abcd"), {"a": [FAILED]}, {}, {}),
    "a slot is unusable": (trials("abc"), {"b": [FULL, "ok"]}, {}, {}),
    "no slot": (trials("ab"), {"a": [FULL], "b": [FULL]}, {}, {}),
    "slots of two kinds": (
        [*measured("ab"), *trials("cd"), *measured("e")],
        {},
        {"after": {"a": "c"}},
        {"kind_of": _by_backend, "kinds": {"g1": SlotKind(gpus=1), "c1": SlotKind(), "g2": SlotKind(gpus=1)}},
    ),
    "pruned on slots": (_lengths("abcd"), {"b": [OOM]}, {}, {"pruning": _longer}),
}


def _events(folder, where, name, monkeypatch):
    run, cases = (on_this_machine, HERE) if where == "here" else (on_a_cluster, THERE)
    plan, ends, script, how = cases[name]
    how = {key: value() if key in ("nvml", "pruning") else value for key, value in how.items()}
    if where == "here":
        how["monkeypatch"] = monkeypatch
    return run(Script(folder, ends, **script), [*plan, *how.pop("extra", ())], **how)


@pytest.mark.parametrize(
    ("where", "name"), [("here", name) for name in HERE] + [("on a cluster", name) for name in THERE]
)
def test_a_sweep_does_the_same_in_the_same_order(tmp_path, monkeypatch, where, name):
    monkeypatch.setattr(placing, "NO_SLOT_S", 0.02)
    found = _events(tmp_path, where, name, monkeypatch)
    if os.environ.get("EVENTS_KEPT") == "new":
        kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        kept.setdefault(where, {})[name] = found
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    assert found == json.loads(KEPT.read_text())[where][name]
