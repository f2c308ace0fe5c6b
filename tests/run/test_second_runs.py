"""Second runs of an emulated script: what is run again, and what of it is kept. The runs are fakes."""

from dataclasses import replace

import pytest
from script_builders import record

from profiler.analysis.runs import run_lines
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import GIB
from profiler.domain.runs.other_runs import LateEvents, ScriptJob
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import Backend
from profiler.emulation.card import UNLIMITED_BYTES
from profiler.emulation.launch import EmulatedPython, Events
from profiler.rendering.runs.script import run_sentences
from profiler.run.backend import Place
from profiler.run.process import with_second_runs
from profiler.storage.records.record_folder import SCRIPTS, RecordFolder
from profiler.storage.tables.rows import record_row


class Runs:
    """Notes how a job is run again, and returns a record with these peaks."""

    def __init__(self, *, more_bytes=0, fits=True):
        self.calls = []
        self.found = record(fits=fits)
        peaks = self.found.outcome.peaks
        more = replace(peaks, allocated_bytes=peaks.allocated_bytes + more_bytes)
        self.found = replace(self.found, outcome=replace(self.found.outcome, peaks=more))

    def __call__(self, job, *, events=Events.EARLY, unlimited=False):
        self.calls.append((job.card.memory_bytes if job.card else None, events, unlimited))
        return self.found


def second(tmp_path, first, again, *, late_events=True):
    job = ScriptJob(
        run_id=first.run_id, spec=first.spec, script_sha256="", versions=first.versions, folder=str(tmp_path)
    )
    found = with_second_runs(first, job, again, late_events=late_events)
    kept = RecordFolder(tmp_path, SCRIPTS).find(first.run_id)
    assert kept == (found if again.calls else None)
    return found


def sentences(found):
    return list(run_sentences(run_lines(found)))


def test_late_events_are_the_other_bound(tmp_path):
    again = Runs(more_bytes=2 * GIB)
    found = second(tmp_path, record(num_processes=8), again)
    assert again.calls == [(None, Events.LATE, False)]
    assert found.late_events == LateEvents(status=Status.OK, allocated_bytes=9 * GIB, reserved_bytes=8 * GIB)
    assert "With late events: 9.00 GiB allocated; 8.00 GiB reserved. A real card is between both." in sentences(found)
    assert record_row(found)["late_events_allocated_bytes"] == 9 * GIB


def test_equal_bounds_are_one_figure(tmp_path):
    assert "With late events: the same peaks." in sentences(second(tmp_path, record(), Runs()))


def test_another_end_with_late_events_is_said(tmp_path):
    found = second(tmp_path, record(), Runs(fits=False))
    assert "With late events the script ends differently: oom." in sentences(found)


def test_nothing_runs_again_without_a_reason(tmp_path):
    again, first = Runs(), record()
    assert second(tmp_path, first, again, late_events=False) == first
    failed = replace(
        first, outcome=replace(first.outcome, verdict=replace(first.outcome.verdict, status=Status.FAILED))
    )
    assert second(tmp_path, failed, again) == failed
    assert again.calls == []


def test_a_script_that_ran_out_of_memory_says_what_it_needs(tmp_path):
    again = Runs(more_bytes=90 * GIB)
    found = second(tmp_path, record(fits=False), again)
    assert again.calls == [(UNLIMITED_BYTES, Events.EARLY, True)]
    assert found.outcome.status is Status.OOM
    assert record_row(found)["required_allocated_bytes"] == 97 * GIB
    said = "It needs 97.00 GiB allocated; 8.00 GiB reserved (emulated, unlimited memory)."
    assert said in sentences(found)
    assert said not in sentences(record(fits=False))


def test_a_script_that_fails_on_any_card_needs_nothing_known(tmp_path):
    assert second(tmp_path, record(fits=False), Runs(fits=False)).outcome.unlimited is None


@pytest.mark.parametrize(
    ("options", "events", "memory"),
    [
        ({}, "early", KNOWN_GPUS["t4-16gb"].memory_bytes),
        ({"events": Events.LATE, "unlimited": True}, "late", UNLIMITED_BYTES),
    ],
)
def test_the_environment_of_the_process_has_both(options, events, memory, tmp_path):
    python = EmulatedPython(executable=tmp_path / "python", torch="2", cuda="13", libraries=tmp_path)
    place = Place(
        backend=Backend.EMULATED,
        line="",
        executable=python.executable,
        versions=record().versions,
        gpu="t4-16gb",
        emulated=python,
    )
    found = place.environment(num_processes=1, strict=True, **options)
    assert found["EMULATED_EVENTS"] == events
    assert f";memory_bytes={memory};" in found["EMULATED_CARD"]
    # One process starts by itself: with the variables of a launcher accelerate would wrap the model in DDP.
    assert "WORLD_SIZE" not in found
    assert place.environment(num_processes=2, strict=True, **options)["WORLD_SIZE"] == "2"
