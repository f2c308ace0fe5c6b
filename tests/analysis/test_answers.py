"""What a section says first, by hand."""

import builders
import pytest

from profiler.analysis.answers import reaches, savings, spans
from profiler.analysis.comparison import compare
from profiler.domain.trial import Backend
from profiler.rendering.wording import answer_sentences


def section_of(folder, specs):
    (section,) = compare(builders.tables(folder, builders.records(specs)).runs)
    return section


@pytest.fixture
def methods(tmp_path):
    return section_of(tmp_path, builders.lora_vs_full_specs())


def test_savings_are_against_the_first_method(methods):
    found = {saving.method: saving for saving in savings(methods)}
    assert list(found) == list(methods.rows[1:])
    ratios = [
        1 - methods.cells["LoRA", model].result_bytes / methods.cells["full", model].result_bytes
        for model in methods.models
    ]
    assert (found["LoRA"].least, found["LoRA"].most) == (min(ratios), max(ratios))
    assert all(saving.against == "full" for saving in found.values())


def test_how_far_each_method_goes(methods):
    found = {reach.method: reach for reach in reaches(methods)}
    assert found["full"].fits.model == "qwen2.5-3b"
    assert found["full"].fails.model == "qwen2.5-7b"
    assert found["LoRA"].fails is None


def test_one_key_is_told_by_its_least_and_its_most(tmp_path):
    alike = [builders.spec(num_generations=n, per_device_train_batch_size=8) for n in (4, 8)]
    section = section_of(tmp_path / "a", alike)
    assert spans(section) == ()  # in the made-up world the group by itself changes nothing
    assert savings(section) == ()
    longer = section_of(tmp_path / "b", [builders.spec(max_completion_length=n) for n in (256, 4096)])
    (span,) = spans(longer)
    assert (span.method, span.key) == ("full + checkpointing", "max_completion_length")
    assert (span.least[0], span.most[0]) == ("256", "4096")
    assert span.least[1] < span.most[1]
    assert answer_sentences(longer)[0].startswith("full + checkpointing of qwen2.5-0.5b: ")


def test_the_cpu_says_nothing_of_memory(tmp_path):
    spec = builders.spec(backend=Backend.CPU, gpu=None)
    (section,) = compare(builders.tables(tmp_path, [builders.record(spec, outcome=builders.on_cpu())]).runs)
    assert answer_sentences(section) == []
