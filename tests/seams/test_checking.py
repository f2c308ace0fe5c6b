"""A seam that moves refuses trials by name; a version that was never tested marks their records."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate.utils import memory as accelerate_memory
from counted import python_calls
from trl.kernels import chunked_logprob

from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.trials.trial import Backend
from profiler.seams import checked
from profiler.seams.checked import check_seams, note_on_versions, problem_of
from profiler.seams.seam import Absence, Equals, Exists, Parameters, Says, Seam, Uses


@pytest.fixture(autouse=True)
def without_cached_notes() -> Iterator[None]:
    note_on_versions.cache_clear()
    yield
    note_on_versions.cache_clear()


def installed_as(monkeypatch: pytest.MonkeyPatch, library: str, number: str) -> None:
    found = checked.installed

    def installed(asked: str) -> str | None:
        return number if asked == library else found(asked)

    monkeypatch.setattr(checked, "installed", installed)
    monkeypatch.setattr(checked, "installed", installed)


@pytest.mark.parametrize("backend", Backend)
def test_the_installed_versions_pass(backend: Backend) -> None:
    check_seams(backend)
    assert note_on_versions() == ""


def test_a_name_that_is_gone_refuses_by_name_library_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(chunked_logprob, "_addmm_fp32")
    with pytest.raises(
        UnsupportedTrialError, match=r"trl\.kernels\.chunked_logprob\._addmm_fp32 of trl 1\.16\.0 is missing"
    ):
        check_seams(Backend.SIMULATED)


def test_other_parameters_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerate_memory, "clear_device_cache", lambda collect, stream: None)
    with pytest.raises(UnsupportedTrialError, match=r"takes \(collect, stream\), expected \(garbage_collection\)"):
        check_seams(Backend.SIMULATED)


@pytest.mark.parametrize("backend", [Backend.CUDA, Backend.CPU])
def test_a_seam_of_the_simulation_refuses_no_real_trial(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(chunked_logprob, "_addmm_fp32")
    check_seams(backend)


def test_a_breakdown_needs_the_seams_of_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    check_seams(Backend.CUDA)
    with pytest.raises(UnsupportedTrialError, match="_storage_Use_Count"):
        check_seams(Backend.CUDA, breakdown=True)


def test_a_version_that_was_never_tested_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    installed_as(monkeypatch, "trl", "1.17.0")
    check_seams(Backend.SIMULATED)
    assert note_on_versions() == "whether figures hold with trl 1.17.0, which was never tested (tested: 1.16.0)"


def test_a_constant_that_moved_is_noted_and_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_logprob, "TOKEN_CHUNK_SIZE", 2048)
    check_seams(Backend.SIMULATED)
    note = note_on_versions()
    assert note.startswith("whether the estimate holds: trl.kernels.chunked_logprob.TOKEN_CHUNK_SIZE of trl 1.16.0")
    assert note.endswith("is 2048, expected 4096")


def seam(**changes: Any) -> Seam:
    values = {"owner": "json", "name": "dumps", "expected": Exists(), "used_by": (), "why": "", "since": "2.0"}
    return Seam(**(values | changes))


def test_a_module_that_is_gone_is_a_problem_and_no_traceback() -> None:
    assert problem_of(seam(owner="json.no_such_module")).startswith("is missing (No module named")
    assert problem_of(seam(owner="json:NoSuchClass")).startswith("is missing (module 'json' has no attribute")


@pytest.mark.parametrize(("number", "problem"), [("1.9.3", ""), ("2.0.0", "is missing"), ("2.1", "is missing")])
def test_a_name_may_be_absent_from_older_versions_only(
    number: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_as(monkeypatch, "json", number)
    assert problem_of(seam(name="no_such_name", absent_in=Absence.OLDER_VERSIONS)) == problem


def test_a_name_may_be_absent_from_some_builds() -> None:
    assert problem_of(seam(name="no_such_name", absent_in=Absence.SOME_BUILDS)) == ""


def clip_then_step(trainer: Any) -> None:
    trainer.clip()
    trainer.optimizer.step()


def says_something(name: str) -> str:
    return f"{name} does not support this"


@pytest.mark.parametrize(
    ("expected", "found", "problem"),
    [
        (Equals(1), 1, ""),
        (Equals(1), 2, "is 2, expected 1"),
        (Equals(1), True, "is True, expected 1"),
        (Parameters("trainer"), clip_then_step, ""),
        (Parameters("trainer", "more"), clip_then_step, "takes (trainer), expected (trainer, more)"),
        (Parameters(more=True), clip_then_step, ""),
        (Parameters("a"), torch.is_autocast_enabled, "has no signature"),
        (Parameters("self", "size"), torch.ops.aten.view.default, ""),
        (Uses("clip", "optimizer.step"), clip_then_step, ""),
        (Uses("optimizer.step", "clip"), clip_then_step, "does not use optimizer.step, clip in this order"),
        (Uses("trainer.step"), clip_then_step, "does not use trainer.step"),
        (Uses("step"), clip_then_step, ""),
        (Uses("zero_grad"), clip_then_step, "does not use zero_grad"),
        (Uses("step"), len, "has no Python code"),
        (Says("does not support"), says_something, ""),
        (Says("cannot"), says_something, "does not say 'cannot'"),
    ],
)
def test_expectations(expected: Any, found: Any, problem: str) -> None:
    assert expected.problem(found) == problem


def test_the_check_is_cheap() -> None:
    """Some 30 ms, as every worker does it: 96,000 calls with CPython 3.11. The libraries are imported by then."""

    def check() -> None:
        check_seams(Backend.SIMULATED)
        note_on_versions()

    check_seams(Backend.SIMULATED)
    checked.installed.cache_clear()
    assert python_calls(check) < 200_000


def test_the_registry_imports_no_library() -> None:
    """The process of the sweep can read it."""
    program = (
        "import sys, profiler.seams.libraries, profiler.seams.patching\n"
        "import profiler.seams.checked, profiler.seams.checked\n"
        "print([name for name in ('torch', 'trl', 'transformers', 'bitsandbytes') if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"
