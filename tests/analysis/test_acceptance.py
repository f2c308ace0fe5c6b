"""The simulation against a real card: pairs, errors computed by hand, and thresholds without a measurement."""

from dataclasses import replace

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analysis.compared.cells import Cell, Setting
from profiler.analysis.errors import Pair, pairs, thresholds
from profiler.domain.memory import GIB, Origin
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import Backend

ALLOCATED_MEDIAN, ALLOCATED_P95, RESERVED_MEDIAN, RESERVED_P95, WRONGLY = range(5)


def measured(spec, **changes):
    on_card = replace(spec, backend=Backend.CUDA, gpu=None)
    return builders.record(on_card, outcome=builders.changed(builders.outcome(spec), **changes))


def cell(origin, *, status=Status.OK, allocated=10 * GIB, reserved=11 * GIB, device=12 * GIB):
    setting = Setting(origin=origin, card="card", memory_bytes=100 * GIB, versions=())
    unknown = ("peak_phase", "required_allocated_bytes", "required_device_bytes", "estimated_bytes", "rule_bytes")
    return Cell(
        trial_id="t",
        setting=setting,
        keys={},
        label="full",
        model="m",
        parameters=1,
        status=status,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_device_bytes=device,
        published=None,
        message=None,
        **dict.fromkeys(unknown),
    )


def pair(measured, simulated, **both):
    return Pair(
        measured=cell(Origin.MEASURED, allocated=measured, reserved=2 * measured, **both),
        simulated=cell(Origin.SIMULATED, allocated=simulated, reserved=2 * simulated, **both),
    )


def test_thresholds_without_a_measurement_are_unknown(tmp_path):
    runs = builders.tables(tmp_path, builders.records(builders.lora_vs_full_specs())).runs
    assert pairs([runs]) == ()
    assert [(threshold.found, threshold.holds) for threshold in thresholds(())] == [(None, None)] * 5


def test_the_same_trial_on_the_same_card_is_a_pair(tmp_path):
    spec, other = builders.spec(), builders.spec(num_generations=2)
    records = [*builders.records([spec]), measured(spec), measured(other)]
    (found,) = pairs([builders.tables(tmp_path, records).runs])
    assert found.measured.setting.origin is Origin.MEASURED
    assert found.simulated.setting.origin is Origin.SIMULATED


@pytest.mark.parametrize("changes", [{"gpu_name": "NVIDIA H200"}, {"status": Status.CONTENDED}])
def test_another_card_or_a_shared_one_makes_no_pair(tmp_path, changes):
    spec = builders.spec()
    runs = builders.tables(tmp_path, [*builders.records([spec]), measured(spec, **changes)]).runs
    assert pairs([runs]) == ()


def of_versions(record, **versions):
    return replace(record, versions=replace(record.versions, **versions))


def test_the_two_trials_of_a_pair_can_be_in_two_folders(tmp_path):
    spec = builders.spec()
    tables = [
        builders.tables(tmp_path / name, records).runs
        for name, records in (("card", [measured(spec)]), ("here", builders.records([spec])))
    ]
    (found,) = pairs(tables)
    assert found.differing_versions == ()
    assert thresholds([found])[ALLOCATED_MEDIAN].found == 0


def test_a_pair_of_different_versions_names_them_and_does_not_count(tmp_path):
    (simulated,) = builders.records([builders.spec()])
    older = of_versions(measured(builders.spec()), torch="2.11.0+cu130", transformers="5.17.0")
    (found,) = pairs([builders.tables(tmp_path, [simulated, older]).runs])
    assert found.differing_versions == (
        ("torch", "2.11.0+cu130", simulated.versions.torch),
        ("transformers", "5.17.0", simulated.versions.transformers),
    )
    assert thresholds([found])[ALLOCATED_MEDIAN].found is None


def test_of_two_simulations_the_one_of_the_same_versions_is_taken(tmp_path):
    (simulated,) = builders.records([builders.spec()])
    other = replace(of_versions(simulated, torch="2.11.0+cpu"), trial_id="0" * 16)
    card = of_versions(measured(builders.spec()), torch="2.11.0+cu130")
    (found,) = pairs([builders.tables(tmp_path, [simulated, other, card]).runs])
    assert found.simulated.trial_id == other.trial_id
    assert found.differing_versions == ()


def test_errors_by_hand():
    # errors of 1 %, 2 % and 5 %: the median is 2 %; the 95th percentile is at nine tenths between 2 % and 5 %
    found = thresholds([pair(100, 101), pair(100, 98), pair(200, 210)])
    assert found[ALLOCATED_MEDIAN].found == pytest.approx(0.02)
    assert found[ALLOCATED_P95].found == pytest.approx(0.047)
    assert [threshold.holds for threshold in found] == [False, False, True, True, True]


def test_a_trial_wrongly_predicted_to_fit_counts_only_with_memory_to_spare():
    ran_out = cell(Origin.MEASURED, status=Status.OOM)
    spacious = Pair(measured=ran_out, simulated=cell(Origin.SIMULATED, device=97 * GIB))
    tight = Pair(measured=ran_out, simulated=cell(Origin.SIMULATED, device=99 * GIB))
    foreseen = Pair(measured=ran_out, simulated=cell(Origin.SIMULATED, status=Status.OOM))
    assert thresholds([spacious, tight, foreseen])[WRONGLY].found == 1
    assert thresholds([tight, foreseen])[WRONGLY].holds
    assert thresholds([spacious])[ALLOCATED_MEDIAN].found is None


@given(st.lists(st.tuples(st.integers(1, 10**12), st.integers(1, 10**12)), min_size=1, max_size=20))
def test_the_95th_percentile_is_never_below_the_median(sizes):
    found = thresholds([pair(measured, simulated) for measured, simulated in sizes])
    assert 0 <= found[ALLOCATED_MEDIAN].found <= found[ALLOCATED_P95].found
    assert found[RESERVED_MEDIAN].found == pytest.approx(found[ALLOCATED_MEDIAN].found)
