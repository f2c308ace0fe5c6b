"""`confirm=true`: the simulation of a trial next to its estimate."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

import grpo_vram
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_USAGE
from profiler.domain.memory import GIB, Phase
from profiler.domain.runs.outcome import CardFacts, Outcome, Peaks, Status, UnlimitedCard, Verdict
from profiler.domain.runs.readings import OutOfMemory, PhasePeak
from profiler.domain.trials.trial import TrialSpec
from profiler.estimate.main import main, simulated_outcome

JOB = ("model=qwen2.5-7b", "tuning=lora", "confirm=true")
FITS = Outcome(
    verdict=Verdict(status=Status.OK),
    card=CardFacts(context_bytes=GIB),
    peaks=Peaks(
        allocated_bytes=10 * GIB,
        phase=Phase.BACKWARD,
        phases=(PhasePeak(phase=Phase.BACKWARD, peak_allocated_bytes=10 * GIB, peak_reserved_bytes=12 * GIB),),
    ),
    unlimited=UnlimitedCard(
        required_allocated_bytes=10 * GIB, required_reserved_bytes=12 * GIB, required_unreleasable_bytes=11 * GIB
    ),
)
OOM = replace(
    FITS,
    verdict=Verdict(
        status=Status.OOM,
        oom=OutOfMemory(
            phase=Phase.FORWARD, requested_bytes=GIB, free_bytes=0, allocated_bytes=9 * GIB, reserved_bytes=9 * GIB
        ),
        message="CUDA out of memory.",
    ),
)
NO_ANSWER = Outcome(verdict=Verdict(status=Status.UNSUPPORTED, message="an operation is unknown"))


def returning(outcome: Outcome) -> Callable[[TrialSpec], Outcome]:
    return lambda _: outcome


def never(spec: TrialSpec) -> Outcome:
    raise AssertionError(f"{spec} was simulated")


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    found = capsys.readouterr()
    return " ".join(found.out.split()), " ".join(found.err.split())


def test_both_verdicts_and_both_peaks_are_said(capsys):
    assert main([*JOB, "gpu=4090"], simulate=returning(FITS)) == EXIT_OK
    out, _ = said(capsys)
    # By hand: 11 GiB of segments and 1 GiB of context, of a card of 23.64 GiB.
    assert out.startswith(
        "Simulated: fits, 12.0 GiB with fragments and context, 11.6 GiB of the 23.6 GiB of rtx-4090-24gb are left. "
        "Estimated: fits, "
    )
    # The estimate has 18,421,730,160 and 18,975,031,296 bytes.
    assert "Simulated: peak allocated 10.00 GiB, in backward (the estimate is 71.6 % higher); reserved 12.00 GiB" in out
    assert "reserved 12.00 GiB (the estimate is 47.3 % higher)." in out
    assert "Simulations: On 4 NVIDIA H200 and 1 NVIDIA H100" in out


def test_a_trial_that_does_not_fit_says_where_it_ends(capsys):
    assert main([*JOB, "gpu=rtx-3080-laptop-16gb"], simulate=returning(OOM)) == EXIT_OK
    out, _ = said(capsys)
    assert out.startswith(
        "Simulated: does not fit, out of memory in forward; at least 12.0 GiB with context. Estimated"
    )
    assert "peak allocated 10.00 GiB (the estimate" in out  # the phase of the peak is that of an unlimited card
    small = replace(OOM, unlimited=replace(OOM.unlimited, required_unreleasable_bytes=20 * GIB))
    main([*JOB, "gpu=t4"], simulate=returning(small))
    assert "at least 21.0 GiB with context, 6.2 GiB more than the 14.8 GiB of t4-16gb." in said(capsys)[0]


@pytest.mark.parametrize(
    ("card", "outcome", "expected"),
    [
        ("h100", FITS, EXIT_OK),
        ("h100", OOM, EXIT_ANSWER_IS_NO),  # the estimate says that it fits
        ("rtx-3080-laptop-16gb", FITS, EXIT_OK),  # the estimate says that it does not
        ("h100", NO_ANSWER, EXIT_OK),  # that of the estimate
        ("rtx-3080-laptop-16gb", NO_ANSWER, EXIT_ANSWER_IS_NO),
    ],
)
@pytest.mark.parametrize("layout", ["table", "json"])
def test_the_simulation_decides_where_it_has_an_answer(capsys, layout, card, outcome, expected):
    words = [*JOB, f"gpu={card}", "fail_if=does_not_fit", f"format={layout}"]
    assert main(words, simulate=returning(outcome)) == expected


def test_a_simulation_without_an_answer_says_why(capsys):
    assert main([*JOB, "gpu=h100"], simulate=returning(NO_ANSWER)) == EXIT_OK
    out, _ = said(capsys)
    assert out.startswith("Not simulated: an operation is unknown Estimated: fits, ")
    assert "Simulated" not in out
    assert "Simulations" not in out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("gpu=24GiB",), "only an estimate knows gpu yet"),
        (("num_processes=2",), "only an estimate knows num_processes yet"),
    ],
)
def test_what_only_an_estimate_knows_is_not_simulated(capsys, words, reason):
    assert main([*JOB, *words], simulate=never) == EXIT_OK
    confirmed, errors = said(capsys)
    assert reason in errors
    main([*(word for word in JOB if word != "confirm=true"), *words], simulate=never)
    assert said(capsys)[0] == confirmed


def test_a_job_of_verl_is_not_simulated(capsys):
    words = ("config=verl", "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B", "gpu=b300", "confirm=true")
    assert main(words, simulate=never) == EXIT_OK
    assert "only an estimate of jobs of verl" in said(capsys)[1]


@pytest.mark.parametrize("words", [("gpu=any",), ("num_generations=2,4",)])
def test_a_table_of_several_trials_is_refused(capsys, words):
    assert main([*JOB, *words], simulate=never) == EXIT_USAGE
    assert "confirm=true: is for the estimate of one trial on one card" in said(capsys)[1]


@pytest.mark.parametrize("words", [JOB[:2], (*JOB[:2], "confirm=false")])
def test_nothing_is_simulated_unless_it_is_asked_for(capsys, words):
    assert main([*words], simulate=never) == EXIT_OK
    assert "imulated:" not in said(capsys)[0]


@pytest.mark.slow
def test_the_simulated_peaks_are_those_of_the_real_trainer(capsys, simulated_tiny_trial):
    words, outcome = simulated_tiny_trial
    capsys.readouterr()
    assert main([*words, "confirm=true", "format=json"]) == EXIT_OK
    found = json.loads(capsys.readouterr().out)["simulated"]
    peaks = outcome.unlimited
    assert (found["status"], found["origin"]) == ("ok", "simulated")
    assert found["required_allocated_bytes"] == peaks.required_allocated_bytes
    assert found["required_reserved_bytes"] == peaks.required_reserved_bytes
    assert found["needed_bytes"] == peaks.required_unreleasable_bytes + outcome.card.context_bytes
    assert {each["phase"]: each["peak_allocated_bytes"] for each in found["phases"]} == {
        each.phase.value: each.peak_allocated_bytes for each in outcome.peaks.phases
    }


@pytest.fixture
def simulated_tiny_trial():
    from simulating import small_spec

    from profiler.domain.models.builtin_models import BUILTIN_MODELS
    from profiler.worker.simulated import run_simulated

    spec = replace(small_spec(), model="tiny", max_completion_length=8, steps=1)
    words = [
        f"{key}={value}"
        for key, value in {
            "model": spec.model,
            "gpu": spec.gpu,
            "num_generations": spec.num_generations,
            "max_prompt_length": spec.max_prompt_length,
            "max_completion_length": spec.max_completion_length,
            "per_device_train_batch_size": spec.per_device_train_batch_size,
            "gradient_accumulation_steps": spec.gradient_accumulation_steps,
            "steps_per_generation": spec.steps_per_generation,
            "lengths": spec.lengths.value,
            "steps": spec.steps,
        }.items()
    ]
    return words, run_simulated(spec, BUILTIN_MODELS["tiny"].config)


def test_python_has_the_outcome_too(monkeypatch):
    monkeypatch.setattr("profiler.api.answers.simulated_outcome", returning(FITS))
    found = grpo_vram.estimate(model="qwen2.5-7b", tuning="lora", gpu="h100", confirm=True)
    assert found.simulated == FITS
    assert str(found).startswith("Simulated: fits, 12.0 GiB")
    assert "Simulations: " in found.how_wrong
    assert grpo_vram.estimate(model="qwen2.5-7b", tuning="lora").simulated is None
    sharded = grpo_vram.estimate(model="qwen2.5-7b", tuning="lora", num_processes=2, confirm=True)
    assert sharded.simulated is None
    assert any("only an estimate knows num_processes" in line for line in sharded.assumed)


def test_a_trial_without_a_record_has_no_answer(monkeypatch):
    monkeypatch.setattr("profiler.execution.records_of", lambda specs: [None for _ in specs])
    assert simulated_outcome(None).message == "its process left no record"
