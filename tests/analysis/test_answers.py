"""The answers of a section, computed by hand."""

import builders
import pytest

from profiler.analysis.findings.answers import reaches, savings, spans
from profiler.analysis.sweep_report import sweep_report
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Backend
from profiler.rendering.sweep.words import answer_sentences


def report_of(folder, specs):
    (part,) = sweep_report(builders.tables(folder, builders.records(specs)), grid="made_up").sections
    return part


@pytest.fixture
def methods(tmp_path):
    return report_of(tmp_path, builders.lora_vs_full_specs()).section


def test_savings_are_against_the_first_method(methods):
    found = {saving.method: saving for saving in savings(methods)}
    assert list(found) == list(methods.rows[1:])
    ratios = [
        1 - methods.cells["LoRA", model].result_bytes / methods.cells["full", model].result_bytes
        for model in methods.models
    ]
    assert (found["LoRA"].least_ratio, found["LoRA"].most_ratio) == (min(ratios), max(ratios))
    assert all(saving.against == "full" for saving in found.values())


def test_how_far_each_method_goes(methods):
    found = {reach.method: reach for reach in reaches(methods)}
    assert found["full"].fits.model == "qwen2.5-3b"
    assert found["full"].fails.model == "qwen2.5-7b"
    assert found["LoRA"].fails is None


def test_a_key_is_described_by_its_least_and_its_most(tmp_path):
    alike = [builders.spec(num_generations=n, per_device_train_batch_size=8) for n in (4, 8)]
    section = report_of(tmp_path / "a", alike).section
    assert spans(section) == ()  # in the made-up outcomes the group changes nothing
    assert savings(section) == ()
    longer = report_of(tmp_path / "b", [builders.spec(max_completion_length=n) for n in (256, 4096)])
    (span,) = spans(longer.section)
    assert (span.method, span.key) == ("full + checkpointing", "max_completion_length")
    assert (span.least[0], span.most[0]) == ("256", "4096")
    assert span.least[1] < span.most[1]
    assert answer_sentences(longer)[0].startswith("full + checkpointing of qwen2.5-0.5b: ")


def test_without_gpu_memory_there_are_no_answers(tmp_path):
    record = builders.record(builders.spec(backend=Backend.CPU, gpu=None), outcome=builders.on_cpu())
    (part,) = sweep_report(builders.tables(tmp_path, [record]), grid="made_up").sections
    assert answer_sentences(part) == []


def test_keys_that_are_no_numbers_have_spans_too(tmp_path):
    lengths = {"max_completion_length": 4096, "gradient_checkpointing": False}
    (span,) = spans(
        report_of(
            tmp_path,
            [builders.spec(optim=optim, **lengths) for optim in (Optimizer.SGD, Optimizer.ADAMW_TORCH_FUSED)],
        ).section
    )
    assert (span.key, span.least[0], span.most[0]) == ("optim", "sgd", "adamw_torch_fused")


def test_a_sentence_names_twelve_methods_and_counts_the_others(tmp_path):
    optims = (Optimizer.SGD, Optimizer.ADAMW_TORCH_FUSED, Optimizer.ADAMW_8BIT, Optimizer.ADAFACTOR)
    specs = [
        builders.spec(model=model, optim=optim, max_completion_length=length, max_prompt_length=prompt)
        for model in ("qwen2.5-0.5b", "qwen2.5-3b")
        for optim in optims
        for length in (256, 512)
        for prompt in (100, 200)
    ]
    *_, fitting = answer_sentences(report_of(tmp_path, specs))
    # By hand: 4 optimizers x 2 x 2 lengths are 16 methods.
    assert fitting.count("fits") == 12
    assert fitting.endswith("; and 4 more: the table has them.")
