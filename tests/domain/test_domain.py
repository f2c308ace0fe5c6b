"""The nouns: units, faults, lengths, cards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.trial import Backend, Lengths, TrialSpec, Tuning, completion_lengths
from profiler.domain.units import GIB, as_gib, gib_text


def test_gib_is_two_to_the_thirtieth() -> None:
    assert GIB == 2**30
    assert as_gib(3 * GIB // 2) == 1.5
    assert gib_text(85_899_345_920) == "80.0 GiB"


def test_a_fault_is_one_sentence_and_an_error_carries_all() -> None:
    fault = Fault(key="num_generations", found="1", problem="must be 2 or more", hint="GRPO compares completions.")
    assert fault.sentence() == "num_generations=1: must be 2 or more. GRPO compares completions."
    error = UsageError([fault, fault])
    assert error.exit_code == 2
    assert str(error).count("\n") == 1


def test_the_nearest_spelling_is_offered_only_if_it_is_near() -> None:
    assert nearest("h100-80g", list(KNOWN_GPUS)) == "Did you mean 'h100-80gb'?"
    assert nearest("zzz", list(KNOWN_GPUS)) == ""


def test_the_ragged_pattern_by_hand() -> None:
    found = completion_lengths(lengths=Lengths.RAGGED, rows=6, max_completion_length=800)
    assert found == (800, 700, 600, 500, 800, 700)


@given(st.sampled_from(list(Lengths)), st.integers(1, 70), st.integers(1, 5000))
def test_the_first_row_is_at_the_maximum_and_none_beyond_it(lengths: Lengths, rows: int, maximum: int) -> None:
    found = completion_lengths(lengths=lengths, rows=rows, max_completion_length=maximum)
    assert len(found) == rows
    assert found[0] == maximum
    assert all(1 <= length <= maximum for length in found)


@pytest.mark.parametrize("name", KNOWN_GPUS)
def test_a_card_has_less_memory_than_its_name_says(name: str) -> None:
    card = KNOWN_GPUS[name]
    box = int(name.rsplit("-", 1)[1].removesuffix("gb"))
    assert 0.9 * box * 1e9 < card.memory_bytes < 1.07 * box * 1e9
    assert card.source


@pytest.mark.parametrize(
    ("tuning", "beta", "keeps"),
    [(Tuning.FULL, 0.04, True), (Tuning.FULL, 0.0, False), (Tuning.LORA, 0.04, False), (Tuning.QLORA, 0.04, False)],
)
def test_who_keeps_a_reference_model(tuning: Tuning, beta: float, keeps: bool) -> None:
    spec = TrialSpec(backend=Backend.CPU, gpu=None, model="tiny", tuning=tuning, beta=beta)
    assert spec.keeps_reference_model is keeps
    assert spec.generation_batch_size == 16
