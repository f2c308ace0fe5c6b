"""The vocabulary: units, faults, keys of a trial, lengths, cards."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.memory import GIB, Origin, as_gib, gib_text
from profiler.domain.text import count_text
from profiler.domain.trials.keys import Kind
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import (
    SPEC_KEYS,
    TRIAL_KEYS,
    Backend,
    Lengths,
    TrialSpec,
    Tuning,
    completion_lengths,
    key_named,
)


def test_gib_is_two_to_the_thirtieth() -> None:
    assert GIB == 2**30
    assert as_gib(3 * GIB // 2) == 1.5
    assert gib_text(85_899_345_920) == "80.0 GiB"


def test_a_fault_is_one_sentence_and_an_error_lists_all() -> None:
    fault = Fault(key="num_generations", found="1", problem="must be 2 or more", hint="GRPO compares completions.")
    assert fault.sentence() == "num_generations=1: must be 2 or more. GRPO compares completions."
    error = UsageError([fault, fault])
    assert error.exit_code == 2
    assert str(error).count("\n") == 1


def test_the_nearest_spelling_is_suggested_only_if_it_is_near() -> None:
    assert nearest("h100-80g", list(KNOWN_GPUS)) == "Did you mean 'h100-80gb'?"
    assert nearest("zzz", list(KNOWN_GPUS)) == ""


def test_the_ragged_pattern_by_hand() -> None:
    found = completion_lengths(lengths=Lengths.RAGGED, rows=6, max_completion_length=800)
    assert found == (800, 700, 600, 500, 800, 700)


@given(st.sampled_from(list(Lengths)), st.integers(1, 70), st.integers(1, 5000))
def test_the_first_row_has_the_maximum_length_and_no_row_more(lengths: Lengths, rows: int, maximum: int) -> None:
    found = completion_lengths(lengths=lengths, rows=rows, max_completion_length=maximum)
    assert len(found) == rows
    assert found[0] == maximum
    assert all(1 <= length <= maximum for length in found)


def test_only_figures_of_a_real_gpu_are_measured() -> None:
    origins = {backend: backend.origin for backend in Backend}
    assert origins == {
        Backend.CUDA: Origin.MEASURED,
        Backend.EMULATED: Origin.EMULATED,
        Backend.SIMULATED: Origin.SIMULATED,
        Backend.CPU: None,
    }
    assert [backend for backend in Backend if backend.names_its_card] == [Backend.EMULATED, Backend.SIMULATED]
    assert [backend for backend in Backend if backend.reads_counters] == [Backend.CUDA, Backend.EMULATED]


@pytest.mark.parametrize("name", KNOWN_GPUS)
def test_the_memory_of_a_card_is_near_that_of_its_name(name: str) -> None:
    card = KNOWN_GPUS[name]
    box = int(name.rsplit("-", 1)[1].removesuffix("gb"))
    assert 0.9 * box * 1e9 < card.memory_bytes < 1.07 * box * 1e9
    assert card.source


def test_every_key_is_declared_with_a_meaning_and_its_kind() -> None:
    assert tuple(TrialSpec.__dataclass_fields__) == SPEC_KEYS
    assert all(key.meaning for key in TRIAL_KEYS)
    kinds = {key.name: key.kind for key in TRIAL_KEYS}
    assert (kinds["gpu"], kinds["tuning"], kinds["dataset"]) == (Kind.CHOICE, Kind.CHOICE, Kind.TEXT)
    assert (kinds["lora_rank"], kinds["bf16"]) == (Kind.COUNT, Kind.FLAG)
    assert (kinds["beta"], kinds["lora_target_modules"]) == (Kind.NUMBER, Kind.NAMES)
    assert key_named("num_generations").is_numeric
    assert not key_named("bf16").is_numeric
    assert key_named("optim").allowed == tuple(Optimizer)


def test_a_value_of_a_key_is_allowed_by_its_own_declaration() -> None:
    for key in TRIAL_KEYS:
        if key.default is not None and key.kind is Kind.COUNT:
            assert key.minimum <= int(str(key.default)) <= key.maximum
        assert key.earlier is None or key.since, key.name
        assert not key.since or key.earlier is not None or key.null, key.name
        assert set(key.recipes) <= set(Recipe)


def test_no_other_module_lists_the_keys() -> None:
    root = Path(__file__).parents[2] / "profiler"
    found = [path.name for path in root.rglob("*.py") if "fields(TrialSpec)" in path.read_text(encoding="utf-8")]
    assert found == []


@pytest.mark.parametrize(
    ("tuning", "beta", "keeps"),
    [(Tuning.FULL, 0.04, True), (Tuning.FULL, 0.0, False), (Tuning.LORA, 0.04, False), (Tuning.QLORA, 0.04, False)],
)
def test_only_full_fine_tuning_with_a_kl_term_keeps_a_reference_model(tuning: Tuning, beta: float, keeps: bool) -> None:
    spec = TrialSpec(backend=Backend.CPU, gpu=None, model="tiny", tuning=tuning, beta=beta)
    assert spec.keeps_reference_model is keeps
    assert spec.generation_batch_size == 16


@given(st.integers(0, 10**12))
def test_a_count_has_three_digits_and_one_exponent(count: int) -> None:
    assert re.fullmatch(r"\d{1,3}|\d{1,3}(\.\d{1,2})?e(3|6|9|12)", count_text(count))


def test_a_count_that_rounds_up_has_the_next_exponent() -> None:
    assert [count_text(count) for count in (999, 999_499, 999_885_952)] == ["999", "999e3", "1e9"]
