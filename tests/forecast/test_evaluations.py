"""Evaluations of a forecast: what a file and a command line say of them, and how the answer speaks of them."""

import json
from dataclasses import replace

import pytest
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st

from profiler.analysis.forecast.lengths import RunLengths, distribution_of, evaluated_rows
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.domain.runs.forecast import steps_of_epoch
from profiler.domain.trials.trial import Evaluations, TrialSpec
from profiler.forecast.main import main


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def answer(capsys, *words, engine):
    assert main([*words, "format=json"], engine=engine) == EXIT_OK
    return json.loads(capsys.readouterr().out)


SFT_FILE = """
model_name_or_path: Qwen/Qwen2.5-7B
max_length: 2048
use_peft: true
eval_strategy: steps
eval_steps: 0.1
eval_on_start: true
eval_delay: 3
"""


def test_evaluations_of_a_file_are_counted(capsys, tmp_path):
    file, engine = tmp_path / "sft.yaml", FakeEngine()
    file.write_text(SFT_FILE)
    words = ["gpu=h100", "steps=50", "seeds=2", "completions=uniform(100,3000)"]
    found = answer(capsys, f"config={file}", *words, engine=engine)
    (request,) = engine.requests
    evaluations, other = (draw.evaluations for draw in request.draws)
    assert evaluations == other
    assert (evaluations.eval_steps, evaluations.eval_delay, evaluations.eval_on_start) == (5, 3, True)
    assert (evaluations.per_device_eval_batch_size, len(evaluations.completions)) == (8, 128)
    assert max(evaluations.completions) <= 2048
    assert not any("Not counted" in note for note in found["notes"])
    assert any(note.startswith("Evaluated after every 5 steps and the last one and before") for note in found["notes"])
    answer(capsys, f"config={file}", *words, "eval_strategy=no", engine=engine)
    assert engine.requests[-1].draws[0].evaluations is None


GRPO_FILE = """
model_name_or_path: Qwen/Qwen2.5-7B
use_peft: true
beta: 0.04
max_completion_length: 600
per_device_train_batch_size: 8
gradient_accumulation_steps: 1
num_generations: 8
num_generations_eval: 4
eval_strategy: steps
eval_steps: 10
per_device_eval_batch_size: 16
"""


def test_evaluations_that_generate_are_sampled(capsys, tmp_path):
    file, engine = tmp_path / "grpo.yaml", FakeEngine()
    file.write_text(GRPO_FILE)
    words = [f"config={file}", "gpu=h100", "steps=50", "seeds=2", "completions=uniform(100,200)", "growth=2"]
    found = answer(capsys, *words, "max_eval_samples=30", engine=engine)
    evaluations, other = (draw.evaluations for draw in engine.requests[-1].draws)
    assert (evaluations.num_generations_eval, evaluations.per_device_eval_batch_size, evaluations.rows) == (4, 16, 120)
    # Five evaluations, each with completions of its own; those of the last one are twice as long.
    assert evaluations.count(50) == 5 and len(evaluations.completions) == 5 * 120
    own = [evaluations.completions_of(number) for number in range(5)]
    longest = [max(each) for each in own]
    assert longest == sorted(longest) and 350 < longest[-1] <= 400
    assert len(set(own)) == 5 and not set(own) & {other.completions_of(number) for number in range(5)}
    said = "Evaluated after every 10 steps and the last one: 30 prompts with 4 completions each, 16 at once"
    assert any(note.startswith(said) for note in found["notes"])
    answer(capsys, *words, "eval_strategy=no", engine=engine)
    assert engine.requests[-1].draws[0].evaluations is None


@given(st.integers(1, 60), st.integers(1, 60), st.booleans(), st.integers(1, 20), st.integers(1, 8), st.floats(0.5, 3))
def test_sampled_completions_are_of_the_run(steps, every, on_start, prompts, each, growth):
    keys = {"per_device_eval_batch_size": each, "num_generations_eval": each, "eval_on_start": on_start}
    when = Evaluations(eval_steps=every, completions=(), **keys)
    spec = TrialSpec(backend="simulated", gpu="h100-80gb", model="tiny", steps=steps, max_completion_length=90)
    lengths = RunLengths(
        prompts=distribution_of("uniform(5,900)", least=1),
        completions=distribution_of("lognormal(60,0.8)", least=1),
        growth=distribution_of(str(growth), least=0.01),
    )
    found = evaluated_rows(when, prompts, lengths, spec, seed=1)
    evaluations = on_start + sum(when.follows(step, steps) for step in range(1, steps + 1))
    assert found.count(steps) == evaluations
    assert (found.rows, len(found.completions)) == (prompts * each, evaluations * prompts * each)
    assert max(found.prompts) <= spec.max_prompt_length and min(found.completions) >= 1
    assert max(found.completions) <= 90


def test_the_prompts_of_a_file_say_when_an_epoch_ends(capsys, tmp_path):
    """By hand, 20 prompts in generations of one are 20 steps; 4 prompts of a generation of 8 are left out."""
    file, lengths, engine = tmp_path / "grpo.yaml", tmp_path / "lengths.jsonl", FakeEngine()
    file.write_text(GRPO_FILE.replace("eval_strategy: steps", "eval_strategy: epoch"))
    lengths.write_text('{"prompt": 30, "completion": 90}\n' * 20)
    words = [f"config={file}", "gpu=h100", "steps=50", "seeds=1", f"lengths={lengths}"]
    answer(capsys, *words, engine=engine)
    assert engine.requests[-1].draws[0].evaluations.eval_steps == 20
    spec = TrialSpec(backend="simulated", gpu="h100-80gb", model="tiny", num_generations=8, steps_per_generation=8)
    assert steps_of_epoch(replace(spec, per_device_train_batch_size=8, gradient_accumulation_steps=4), 100) == 24
    assert main([*words[:-1], "completions=5"], engine=engine) == EXIT_USAGE
    assert "Give lengths=FILE with a line for each row, pair or prompt" in capsys.readouterr().err


def test_few_steps_with_evaluations_by_vllm_are_asked_for(capsys, tmp_path):
    file, engine = tmp_path / "grpo.yaml", FakeEngine()
    file.write_text(GRPO_FILE)
    answer(capsys, f"config={file}", "use_vllm=true", "gpu=h100", "steps=9", "completions=100", engine=engine)
    assert engine.requests[-1].draws[0].evaluations.eval_steps == 10


def test_the_worst_case_has_an_evaluation_that_generates(capsys, tmp_path):
    file = tmp_path / "grpo.yaml"
    file.write_text(GRPO_FILE)
    words = [f"config={file}", "gpu=h100", "steps=20", "seeds=1", "completions=100"]
    batches = "per_device_eval_batch_size=256"
    # Of the first the only batch has 200 rows.
    more = ([batches, "max_eval_samples=50"], [batches, "max_eval_samples=60"], ["eval_strategy=no"])
    found = [answer(capsys, *words, *each, engine=FakeEngine())["estimate"]["peak_allocated_bytes"] for each in more]
    assert found[1] > found[0] > found[2]


def test_a_peak_of_an_evaluation_is_said(capsys):
    words = ["recipe=sft", "max_length=512", "completions=100", "eval_steps=4", "steps=8", "seeds=1"]
    assert main(["model=qwen2.5-7b", "tuning=lora", "gpu=h100", *words], engine=FakeEngine()) == EXIT_OK
    said = " ".join(capsys.readouterr().out.split())
    assert "The largest peak is that of an evaluation; steps of training take" in said
    assert "The estimate's worst case, one step of the longest rows" in said


def test_the_worst_case_has_an_evaluation_of_rows(capsys):
    words = ["recipe=sft", "model=qwen2.5-0.5b", "gpu=h100", "logprobs=nll", "completions=100", "steps=8", "seeds=1"]
    more = (["eval_steps=4"], ["eval_steps=4", "per_device_eval_batch_size=16"], ["eval_strategy=no"])
    found = [answer(capsys, *words, *each, engine=FakeEngine())["estimate"]["peak_allocated_bytes"] for each in more]
    assert found[1] > found[0] > found[2]


@pytest.mark.parametrize(("release", "said"), [("1.5", ""), ("1.14", "Assumed: trl 1.10 to 1.14 evaluate with")])
def test_only_a_loss_that_was_not_read_is_assumed(capsys, tmp_path, release, said):
    file = tmp_path / "sft.yaml"
    file.write_text(SFT_FILE)
    words = [f"config={file}", f"trl={release}", "gpu=h100", "steps=50", "seeds=2", "completions=100"]
    (note,) = [note for note in answer(capsys, *words, engine=FakeEngine())["notes"] if note.startswith("Evaluated")]
    rest = note.partition("would stay too.")[2].strip()
    assert rest.startswith(said) and bool(rest) is bool(said)


def test_an_evaluation_that_generates_is_refused(capsys, tmp_path):
    file = tmp_path / "sft.yaml"
    file.write_text(SFT_FILE + "generate_during_eval: true")
    assert main([f"config={file}", "gpu=h100", "completions=100"], engine=FakeEngine()) == EXIT_USAGE
    said = capsys.readouterr().err
    assert said == "generate_during_eval=true: generates completions in an evaluation, which has no forecast.\n"
