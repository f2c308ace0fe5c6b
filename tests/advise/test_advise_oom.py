"""`python -m profiler.advise oom=LOG`: which request a card refused, why, and what to change."""

import io
import json
from collections.abc import Mapping

import pytest
from simulating import simulate

from profiler.advise.main import main
from profiler.advise.oom.cause import Cause, SimulatedTrial, explained
from profiler.advise.oom.diagnosis import phase_of
from profiler.allocator.oom_message import read_oom_message
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.identity import spec_to_mapping
from profiler.config.trials.specification import parse_point
from profiler.domain.errors import EXIT_OK
from profiler.domain.memory import GIB, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.step_shape import LargeRequest
from profiler.domain.trials.trial import Logprobs, TrialSpec
from profiler.storage.foreign.published import read_published
from profiler.worker import large_requests

MESSAGE = (
    "CUDA out of memory. Tried to allocate {requested}. GPU 0 has a total capacity of 15.73 GiB of which {free} is "
    "free. Including non-PyTorch memory, this process has 14.43 GiB memory in use. Of the allocated memory 11.82 GiB "
    "is allocated by PyTorch, and {unused} is reserved by PyTorch but unallocated."
)
LAPTOP = MESSAGE.format(requested="1.90 GiB", free="1.28 GiB", unused="2.41 GiB")
"""The row ``oxen-laptop-oom`` of the published measurements."""
BLOG = (
    "model=llama-3.2-1b",
    "lengths=forced",
    "beta=0.04",
    "logprobs=full",
    "attn_implementation=flash_attention_2",
    "optim=adamw_8bit",
    "gradient_checkpointing=false",
)
"""The protocol of its source."""


def _nothing(spec: TrialSpec, config: Mapping[str, object], *, allocated_bytes: int) -> SimulatedTrial:
    raise AssertionError("nothing is simulated with confirm=false")


def _diagnosed(capsys, tmp_path, log: str, *words: str, simulated=_nothing) -> dict:
    file = tmp_path / "train.log"
    file.write_text(log)
    confirm = ["confirm=false"] if simulated is _nothing else []
    assert main([f"oom={file}", *words, *confirm, "format=json"], simulate=simulated) == EXIT_OK
    return json.loads(capsys.readouterr().out)


def test_the_published_laptop_message(capsys, tmp_path):
    """1.90 GiB of an RTX 3080 laptop: pieces of memory, and logits of every position of rows of 994 tokens."""
    (row,) = [row for row in read_published() if row.id == "oxen-laptop-oom"]
    assert "capacity 15.73 GiB; in use 14.43; allocated 11.82; reserved but unallocated 2.41; free 1.28" in row.note
    found = _diagnosed(capsys, tmp_path, LAPTOP, *BLOG)
    oom = found["oom"]
    assert found["advice"]["gpu"] == "rtx-3080-laptop-16gb"
    assert oom["cause"] == "fragmentation"
    assert "3.69 GiB (1.28 GiB free and 2.41 GiB cached but unused)" in oom["why"]
    assert oom["tensors"] == []  # with 256 + 786 tokens nothing of this job has that size
    assert (oom["nearest"]["name"], oom["nearest"]["shape"]) == ("logits of the completions", [4, 787, 128256])
    assert "[4, 994, 128256]" in oom["reading"]
    assert "does not fit, whatever the fragments" in oom["job"]
    assert "expandable_segments:True" in oom["change"][0]
    assert found["advice"]["steps"][0]["name"] == "fused log-probabilities"


def test_the_prompts_of_the_laptop_message(capsys, tmp_path):
    """A prompt of 208 tokens and the logits of trl before 2025 are the request of the message."""
    oom = _diagnosed(capsys, tmp_path, LAPTOP, *BLOG, "max_prompt_length=208")["oom"]
    (tensor,) = oom["tensors"]
    assert (tensor["name"], tensor["shape"]) == ("logits of every position", [4, 994, 128256])
    assert not tensor["of_this_version"]
    assert tensor["phases"] == ["score", "forward", "backward"]


def test_a_request_that_the_simulation_knows(capsys, tmp_path):
    def simulated(spec: TrialSpec, config: Mapping[str, object], *, allocated_bytes: int) -> SimulatedTrial:
        assert (spec.gpu, config["vocab_size"]) == ("rtx-3080-laptop-16gb", 128256)
        requests = [
            LargeRequest(
                phase=phase,
                size_bytes=4 * 994 * 128256 * 4,
                operation="aten._to_copy",
                shape=(4, 994, 128256),
                dtype="float32",
                module=module,
                allocated_bytes=allocated,
            )
            for phase, module, allocated in (
                (Phase.FORWARD, "", int(12.06 * GIB)),
                (Phase.SCORE, "reference: ", int(11.67 * GIB)),
            )
        ]
        refused = {"status": "oom", "refused_in": Phase.BACKWARD, "refused_bytes": 3 * GIB}
        return SimulatedTrial(requests=tuple(requests), **refused)

    first, second, refused = _diagnosed(capsys, tmp_path, LAPTOP, *BLOG, simulated=simulated)["oom"]["simulated"]
    assert "in score, with 11.67 GiB allocated" in first  # the nearest to 11.82 GiB
    assert "in forward, with 12.06 GiB allocated" in second
    assert refused == "The simulated card refuses 3.00 GiB in backward."


def test_the_simulated_requests_of_a_trial(monkeypatch, capsys):
    spec = parse_point(
        {"backend": "simulated", "model": "tiny", "gpu": "t4-16gb", "logprobs": "full", "rollout": "synthetic"},
        architecture_of=lambda name: builtin_architecture(name),
    )
    job = {
        "spec": spec_to_mapping(spec) | {"max_prompt_length": 8, "max_completion_length": 500, "steps": 1},
        "model_config": dict(BUILTIN_MODELS["tiny"].config),
        "allocated_bytes": 0,
    }
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(job)))
    monkeypatch.setattr(large_requests, "_SMALLEST_BYTES", 1)
    assert large_requests.main() == 0
    found = json.loads(capsys.readouterr().out)
    vocabulary = BUILTIN_MODELS["tiny"].config["vocab_size"]
    logits = [each for each in found["requests"] if each["shape"][-1:] == [vocabulary]]
    assert {(4, 501, vocabulary)} <= {tuple(each["shape"]) for each in logits if each["phase"] == "forward"}
    assert found["verdict"]["status"] == "ok"


def test_equal_requests_are_distinguished_by_the_memory_in_use():
    trace = simulate(logprobs=Logprobs.FULL).trace
    low = large_requests.large_requests(trace, near=0, at_least=1)
    high = large_requests.large_requests(trace, near=10**12, at_least=1)
    assert [each.size_bytes for each in low] == sorted((each.size_bytes for each in low), reverse=True)
    assert sum(each.allocated_bytes for each in low) < sum(each.allocated_bytes for each in high)


@pytest.mark.parametrize(
    ("requested", "free", "unused", "cause"),
    [
        ("1.90 GiB", "1.28 GiB", "2.41 GiB", Cause.FRAGMENTS),
        ("1.90 GiB", "0.28 GiB", "1.61 GiB", Cause.NEED),
        ("20.00 MiB", "10.00 MiB", "9.00 MiB", Cause.NEED),
    ],
)
def test_need_or_fragmentation(requested, free, unused, cause):
    assert explained(read_oom_message(MESSAGE.format(requested=requested, free=free, unused=unused))).cause is cause


def test_other_processes_are_named():
    message = MESSAGE.format(requested="1.90 GiB", free="0.10 GiB", unused="0.10 GiB")
    message = message.replace("Including", "Process 17 has 4.00 GiB memory in use. Including")
    assert explained(read_oom_message(message)).cause is Cause.OTHERS
    assert explained(read_oom_message("CUDA out of memory. Tried to allocate 1.90 GiB.")).cause is Cause.UNKNOWN


@pytest.mark.parametrize(
    ("functions", "phase"),
    [
        (
            ("train", "training_step", "_generate_and_score_completions", "generate", "_sample", "forward"),
            Phase.ROLLOUT,
        ),
        (("training_step", "_generate_and_score_completions", "_get_per_token_logps", "forward"), Phase.SCORE),
        (("training_step", "compute_loss", "forward"), Phase.FORWARD),
        (("training_step", "backward", "_engine_run_backward"), Phase.BACKWARD),
        (("train", "from_pretrained"), Phase.LOAD),
        (("main",), None),
    ],
)
def test_the_traceback_names_the_phase(functions, phase):
    assert phase_of(functions) is phase


def test_a_job_that_fits_by_the_estimate_is_asked_about_its_version(capsys, tmp_path):
    log = MESSAGE.format(requested="4.00 GiB", free="1.00 GiB", unused="1.00 GiB")
    found = _diagnosed(capsys, tmp_path, log, "model=qwen2.5-0.5b", "tuning=lora")
    assert found["oom"]["cause"] == "need"
    assert "so it fits" in found["oom"]["job"]
    assert found["oom"]["change"] == [
        "What to change: check the prompt lengths and the version of trl: up to 1.14 log-probabilities need logits of "
        "all completions. trl=VERSION with config=FILE counts those of your release."
    ]


def test_a_job_of_a_release_with_all_logits_is_not_asked_about_its_version(capsys, tmp_path):
    log = MESSAGE.format(requested="4.00 GiB", free="1.00 GiB", unused="1.00 GiB")
    found = _diagnosed(capsys, tmp_path, log, "model=qwen2.5-0.5b", "tuning=lora", "logprobs=selective")
    assert not any("version of trl" in line for line in found["oom"]["change"])


def _refusing(more_gib: float):
    """Return a simulation that refuses a request, with `more_gib` beyond the card."""

    def simulated(spec: TrialSpec, config: Mapping[str, object], *, allocated_bytes: int) -> SimulatedTrial:
        needed = int((15.73 + more_gib) * GIB)
        return SimulatedTrial(status="oom", refused_in=Phase.BACKWARD, refused_bytes=GIB, needed_bytes=needed)

    return simulated


JOB = ("model=qwen2.5-1.5b", "tuning=lora", "max_completion_length=512")


def test_advice_is_not_contradicted_by_its_own_simulation(capsys, tmp_path):
    """The estimate says that the job fits, its simulation does not: changes are found for what the simulation needs."""
    log = MESSAGE.format(requested="4.00 GiB", free="1.00 GiB", unused="0.20 GiB")
    assert _diagnosed(capsys, tmp_path, log, *JOB)["advice"]["before"]["verdict"] == "fits"
    found = _diagnosed(capsys, tmp_path, log, *JOB, simulated=_refusing(1.0))
    advice, total = found["advice"], int(15.73 * GIB)
    assert "contradicts that and decides" in found["oom"]["job"]
    assert found["oom"]["change"] == ["What to change is below."]
    assert advice["steps"]
    more = advice["more_by_simulation_bytes"]
    assert advice["before"]["needed_bytes"] + more == pytest.approx(16.73 * GIB, rel=1e-6)
    assert advice["after"]["needed_bytes"] + more <= total + GIB // 100
    file = tmp_path / "train.log"
    assert main([f"oom={file}", *JOB], simulate=_refusing(1.0)) == EXIT_OK
    text = " ".join(capsys.readouterr().out.split())
    assert "It fits as it is." not in text
    assert "It does not fit, because by its simulation it needs" in text


def test_the_dearer_of_both_decides(capsys, tmp_path):
    """The simulation fits and the estimate does not: the job ran out of memory, so the estimate stays."""

    def fits(spec: TrialSpec, config: Mapping[str, object], *, allocated_bytes: int) -> SimulatedTrial:
        return SimulatedTrial(status="ok", needed_bytes=10 * GIB)

    log = MESSAGE.format(requested="4.00 GiB", free="1.00 GiB", unused="0.20 GiB")
    found = _diagnosed(capsys, tmp_path, log, "model=qwen2.5-7b", simulated=fits)
    assert "the estimate decides, because the job did run out of memory" in found["oom"]["job"]
    assert found["advice"]["steps"]
