"""The environment of an emulated process, and which Python runs it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UsageError
from profiler.emulation import launch
from profiler.emulation import launch as refusals
from profiler.emulation.building.build import COMPLETE, installed_environment
from profiler.emulation.card import card_description
from profiler.emulation.installing import STARTS, startable
from profiler.emulation.interpreter import TRIED_TORCH, VARIABLE, cache_folder, probe
from profiler.emulation.launch import EmulatedPython, Events, emulated_python, job_environment, process_environment

H100 = KNOWN_GPUS["h100-80gb"]
PYTHON = EmulatedPython(
    executable=Path("/env/bin/python"), torch="2.13.0+cu130", cuda="13.0", libraries=Path("/cache/torch-2.13.0")
)


def python_with(folder: Path, *, torch: str | None, cuda: str | None = "13.0", triton: bool = True) -> Path:
    """An interpreter of an environment with packages that only say their version."""
    site = folder / "site"
    (site / "torch").mkdir(parents=True)
    if torch is None:
        (site / "torch").rmdir()
    else:
        (site / "torch" / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
        (site / "torch" / "version.py").write_text(f"__version__ = {torch!r}\ncuda = {cuda!r}\ngit_version = 'abc'\n")
        (site / "torch-1.dist-info").mkdir()
        (site / "torch-1.dist-info" / "METADATA").write_text("Name: torch\nVersion: 1\nRequires-Dist: triton==3.7.1\n")
    if triton:
        (site / "triton").mkdir()
        (site / "triton" / "__init__.py").touch()
    python = folder / "python"
    script = f'#!/bin/sh\nexec python3 -S -c "import sys; sys.path.insert(0, {str(site)!r}); exec(sys.argv[1])" "$2"\n'
    python.write_text(script)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python


def test_a_process_gets_the_card_the_libraries_and_what_its_caller_has():
    base = {"HOME": "/home/me", "PATH": "/bin", "PYTHONPATH": "/code", "CUDA_VISIBLE_DEVICES": "", "LD_PRELOAD": "x.so"}
    found = process_environment(PYTHON, H100, cards=2, base=base)
    assert found["EMULATED_CARD"] == card_description(H100)
    assert found["EMULATED_CARDS"] == "2"
    assert found["EMULATED_EVENTS"] == "early"
    assert found["EMULATED_STRICT"] == "1"
    assert (
        found["LD_LIBRARY_PATH"] == found["TRITON_LIBCUDA_PATH"] == found["EMULATED_LIBRARIES"] == "/cache/torch-2.13.0"
    )
    assert found["HOME"] == "/home/me"
    assert found["PATH"] == "/env/bin:/bin"
    startup, code = found["PYTHONPATH"].split(":")
    assert (Path(startup) / "sitecustomize.py").is_file()
    assert code == "/code"
    assert not {"CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "WORLD_SIZE"} & set(found)


def test_no_library_reports_a_card_that_does_not_exist():
    found = process_environment(PYTHON, H100, base={"HF_HUB_DISABLE_TELEMETRY": "0"})
    reports = {"HF_HUB_DISABLE_TELEMETRY": "1", "RAY_USAGE_STATS_ENABLED": "0", "VLLM_NO_USAGE_STATS": "1"}
    reports |= {"DO_NOT_TRACK": "1"}
    assert found.items() >= reports.items()


def test_rank_0_of_several_has_what_a_launcher_sets_and_a_card_for_each():
    found = process_environment(PYTHON, H100, num_processes=8, base={})
    assert [found[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == ["0", "0", "8", "8"]
    assert found["EMULATED_CARDS"] == "8"
    assert process_environment(PYTHON, H100, cards=16, num_processes=8, base={})["EMULATED_CARDS"] == "16"
    # DeepSpeed asks for a launcher on one GPU too.
    assert process_environment(PYTHON, H100, num_processes=1, base={})["WORLD_SIZE"] == "1"


def test_late_events_and_unseen_entry_points_are_asked_for():
    found = process_environment(PYTHON, H100, base={}, events=Events.LATE, strict=False)
    assert found["EMULATED_EVENTS"] == "late"
    assert "EMULATED_STRICT" not in found


@pytest.mark.parametrize(("given", "found"), [(None, '{"CPU": 48}'), ('{"CPU": 8}', '{"CPU": 8}')])
def test_ray_finds_the_processors_of_a_machine_with_such_cards(monkeypatch, tmp_path, given, found):
    """Its programs ask for several per card, and wait for ever where there are fewer; the user's own number stays."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    base = {} if given is None else {"RAY_OVERRIDE_RESOURCES": given}
    assert job_environment(PYTHON, H100, cards=2, base=base, folder=tmp_path)["RAY_OVERRIDE_RESOURCES"] == found


@pytest.mark.parametrize(("base", "found"), [({}, "0"), ({"VLLM_USE_FLASHINFER_SAMPLER": "1"}, "1")])
def test_no_kernel_is_compiled_for_a_card_that_is_not_there(tmp_path, base, found):
    made = job_environment(PYTHON, H100, cards=1, base=base, folder=tmp_path)
    assert made["VLLM_USE_FLASHINFER_SAMPLER"] == found


@pytest.mark.parametrize(("steps", "found"), [(None, None), (7, "7")])
def test_processes_of_a_job_know_after_how_many_steps_they_end(tmp_path, steps, found):
    made = job_environment(PYTHON, H100, cards=1, base={}, folder=tmp_path, steps=steps)
    assert made.get("EMULATED_STEPS") == found


def test_the_processes_of_one_job_see_each_other_and_no_others():
    first = process_environment(PYTHON, H100, base={})
    assert process_environment(PYTHON, H100, base={})["EMULATED_PROCESSES"] == first["EMULATED_PROCESSES"]
    inherited = process_environment(PYTHON, H100, base={"EMULATED_PROCESSES": "/dev/shm/job"})
    assert inherited["EMULATED_PROCESSES"] == "/dev/shm/job"


def test_an_environment_is_looked_at_without_importing_torch(tmp_path):
    found = probe(python_with(tmp_path, torch="2.13.0+cu130"))
    assert (found.torch, found.cuda, found.torch_minor, found.has_triton) == ("2.13.0+cu130", "13.0", "2.13", True)
    assert found.site_packages == tmp_path / "site"
    assert found.search_path[0] == tmp_path / "site"
    assert found.requires == ("triton==3.7.1",)


@pytest.mark.parametrize(("words", "is_found"), [((), True), (("-I",), False)])
def test_an_environment_of_ours_needs_no_pythonpath(tmp_path, monkeypatch, words, is_found):
    """A script may replace it. What is not ours is left as it is."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    folders = [tmp_path / "cache" / "environment", tmp_path / "other"]
    ours, other = [startable(python_with(folder, torch="2.13.0+cu130")).site_packages for folder in folders]
    assert not (other / STARTS).exists()
    program = f"import site, sys; site.addsitedir({str(ours)!r}); print('/profiler/emulation/startup' in sys.path)"
    command, variables = [sys.executable, *words, "-c", program], {"EMULATED_PROFILER": "/profiler"}
    assert subprocess.check_output(command, env=variables, text=True) == f"{is_found}\n"


@pytest.mark.parametrize(
    ("packages", "problem"),
    [
        ({"torch": None}, "has no torch"),
        ({"torch": "2.13.0+cpu", "cuda": None}, "has torch 2.13.0+cpu, which is not a CUDA build"),
        ({"torch": "2.13.0+cu130", "triton": False}, "has no triton"),
        ({"torch": "9.99.0+cu130"}, f"tried with {', '.join(TRIED_TORCH)} only. strict=false goes on."),
    ],
)
def test_an_environment_that_cannot_be_used_is_one_sentence(tmp_path, monkeypatch, packages, problem):
    monkeypatch.setattr(refusals, "has_real_driver", lambda: False)
    with pytest.raises(UsageError) as caught:
        emulated_python(python_with(tmp_path, **packages))
    assert str(caught.value).startswith(f"python={tmp_path}/python: has ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_interpreter_that_does_not_run_is_one_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"does not run \(No such file or directory\)"):
        probe(tmp_path / "none")
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'a reason' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match=r"does not run \(a reason\)"):
        probe(broken)


def test_a_minor_version_that_was_never_tried_runs_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(refusals, "has_real_driver", lambda: False)
    monkeypatch.setattr(launch, "libraries_of", lambda interpreter: tmp_path)
    found = emulated_python(python_with(tmp_path / "a", torch="9.99.0+cu130"), strict=False)
    assert (found.torch, found.libraries) == ("9.99.0+cu130", tmp_path)


def test_a_real_driver_is_refused_unless_the_user_asks(monkeypatch):
    monkeypatch.setattr(refusals, "has_real_driver", lambda: True)
    with pytest.raises(UsageError, match="a real NVIDIA driver is present"):
        refusals.refuse_real_driver({})
    refusals.refuse_real_driver({refusals.ALLOW_VARIABLE: "1"})
    monkeypatch.setattr(refusals, "has_real_driver", lambda: False)
    refusals.refuse_real_driver({})


def test_the_environment_that_was_installed_last_is_found(tmp_path):
    variables = {"GRPO_VRAM_CACHE": str(tmp_path)}
    with pytest.raises(UsageError, match=r"Run python -m profiler\.emulation install"):
        installed_environment(variables)
    for number, name in enumerate(("torch-2.12.0", "torch-2.13.0", "torch-2.14.0")):
        folder = tmp_path / "emulated_environments" / name
        folder.mkdir(parents=True)
        if name != "torch-2.14.0":  # was interrupted
            (folder / COMPLETE).touch()
            os.utime(folder / COMPLETE, (number, number))
    assert installed_environment(variables) == tmp_path / "emulated_environments/torch-2.13.0/bin/python"
    assert installed_environment({**variables, "EMULATION_PYTHON": "/mine/python"}) == Path("/mine/python")


def test_the_cache_folder_is_the_users_own_and_can_be_moved():
    assert cache_folder({"HOME": "/home/me"}) == Path("/home/me/.cache/grpo-vram-profiler")
    assert cache_folder({"HOME": "/home/me", "XDG_CACHE_HOME": "/big"}) == Path("/big/grpo-vram-profiler")
    assert cache_folder({"XDG_CACHE_HOME": "/big", "GRPO_VRAM_CACHE": "/mine"}) == Path("/mine")
