"""Environments with a CUDA build: their packages, and what is taken out of them."""

import os
import re
import shutil
import subprocess
from importlib import metadata

import pytest
from filelock import FileLock
from packaging.version import Version

from profiler.domain.errors import EXIT_USAGE, UsageError
from profiler.domain.machines import extras
from profiler.emulation import installing
from profiler.emulation.building import build
from profiler.emulation.building.build import COMPLETE, installed_environment
from profiler.emulation.installing import (
    InstallationError,
    _release_kernels,
    constrained_versions,
    default_torch,
    for_trials,
    install,
    needed_packages,
    of_file,
    pinned_packages,
    sections,
)
from profiler.emulation.main import main

TRIALS = for_trials("2.13.0")


def test_constraints_are_read_by_normalised_name():
    text = "# all\nJinja2==3.1.6\npydantic_core==2.50.4  # needed\n\n"
    assert constrained_versions(text) == {"jinja2": "3.1.6", "pydantic-core": "2.50.4"}


def test_packages_are_those_that_the_profiler_needs_without_torch_and_the_vendors(monkeypatch):
    requires = {
        "mine": ["a>=1", "b[extra]; python_version > '3'", "windows-only; sys_platform == 'win32'", "torch"],
        "a": ["c", "optional; extra == 'other'"],
        "b": ["d; extra == 'extra'"],
        "torch": ["nvidia-cudnn-cu13==9; sys_platform == 'linux'", "sympy"],
    }
    monkeypatch.setattr(metadata, "requires", lambda name: requires.get(name))
    monkeypatch.setattr(metadata, "version", lambda name: "1")
    assert needed_packages("mine") == {"a", "b", "c", "d", "torch", "nvidia-cudnn-cu13", "sympy"}


def test_pins_of_the_project_are_complete():
    pins = dict(line.split("==") for line in pinned_packages())
    assert {"trl", "transformers", "peft", "accelerate", "bitsandbytes", "nvidia-ml-py", "sympy"} <= set(pins)
    assert not [name for name in pins if name in ("torch", "triton") or name.startswith("nvidia-cu")]
    constraints = constrained_versions((installing.Path(__file__).parents[2] / "constraints.txt").read_text())
    assert all(constraints.get(name, version) == version for name, version in pins.items())
    assert default_torch() == constraints["torch"]


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """Replaces the commands of an installation; keeps them."""
    commands = []

    def run(command, what):
        commands.append(list(command))
        if "venv" in command:
            installing.Path(command[-1]).mkdir(parents=True)

    monkeypatch.setenv("GRPO_VRAM_CACHE", str(tmp_path))
    monkeypatch.setattr(installing, "_run", run)
    monkeypatch.setattr(installing, "_required_triton", lambda folder: "3.7.1")
    monkeypatch.setattr(installing, "slim", lambda site, major: commands.append(["slim", major]))
    monkeypatch.setattr(installing, "require_compilers", lambda: None)

    class Installed:
        torch, cuda, site_packages = "2.13.0+cu130", "13.0", None

    monkeypatch.setattr(installing, "probe", lambda path: Installed)
    return commands


def test_an_environment_gets_the_cuda_build_its_triton_and_the_pins(pip, tmp_path):
    said = []
    python = install(TRIALS, base=None, announce=said.append)
    assert python == tmp_path / "emulated_environments" / "torch-2.13.0" / "bin" / "python"
    assert [command[-1] for command in pip[1:3]] == ["torch===2.13.0", "triton==3.7.1"]
    assert all("--no-deps" in command for command in pip[1:4])
    assert pip[4] == ["slim", "13"]
    assert "about 2 GB" in said[0]
    assert str(python.parents[1]) in said[0]
    before = len(pip)
    install(TRIALS, base=None, announce=said.append)
    assert len(pip) == before
    assert said[-1] == "It is there already."


@pytest.mark.parametrize(
    ("text", "torch", "installed"),
    [
        ("torch==2.11.0\nverl==0.9.1\n", "2.11.0", ["torch===2.11.0", "triton==3.7.1", "FILE"]),
        ("ray==2.60.0  # no torch\n", default_torch(), [f"torch==={default_torch()}", "triton==3.7.1", "PINS", "FILE"]),
    ],
)
def test_an_environment_of_a_file_has_what_it_lists(pip, tmp_path, text, torch, installed):
    """All that it lists if torch is one of them; else what trials need as well. Another text is another environment."""
    file = tmp_path / "own.txt"
    file.write_text(text)
    contents = of_file(file)
    python = install(contents, base=None, announce=lambda line: None)
    named = {str(file): "FILE", pinned_packages()[-1]: "PINS"}
    assert contents.torch == torch
    assert [named.get(command[-1], command[-1]) for command in pip[1:-1]] == installed
    assert all("--no-deps" in command for command in pip[1:-1])
    assert python.parents[1].name.startswith("own-")
    file.write_text(text + "six==1.17.0\n")
    assert of_file(file).name != contents.name
    with pytest.raises(UsageError, match="no environment with a CUDA build"):
        installed_environment()  # trials do not run in it


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"torch>=2\n", "pins no package"), (b"\xff", "cannot be read (it is not text)"), (None, "must be a file")],
)
def test_a_file_without_pinned_packages_is_refused(pip, tmp_path, capsys, content, problem):
    file = tmp_path / "own.txt"
    if content is not None:
        file.write_bytes(content)
    assert main(["install", f"requirements={file}"]) == EXIT_USAGE
    assert f"requirements={file}: {problem}" in capsys.readouterr().err
    assert pip == []


def test_another_torch_than_that_of_the_file_is_refused(pip, tmp_path, capsys):
    (tmp_path / "own.txt").write_text("torch==2.11.0\n")
    assert main(["install", "torch=2.13.0", f"requirements={tmp_path / 'own.txt'}"]) == EXIT_USAGE
    assert "pins 2.11.0. Leave one of them out." in capsys.readouterr().err
    assert pip == []


@pytest.mark.parametrize(
    "name", ["axolotl", "llamafactory", "ms_swift", "openrlhf", "ray", "torchtitan", "trl", "verl"]
)
def test_files_of_environments_pin_each_package_once(name):
    path = installing.Path(__file__).parents[2] / "emulated_environments" / f"{name}.txt"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert len(constrained_versions(path.read_text())) == len(lines)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[\w.]+", line) for line in lines)
    assert not [line for line in lines if re.match(r"nvidia-(?!ml-py)|cuda-", line)]


def test_the_environment_of_verl_has_a_peft_that_verl_reads():
    """From 0.21 on peft selects entries by names of modules, which FSDP 1 wraps: verl 0.9.1 gets none."""
    path = installing.Path(__file__).parents[2] / "emulated_environments" / "verl.txt"
    pinned = constrained_versions(path.read_text())
    assert pinned["verl"] == "0.9.1"
    assert Version(pinned["peft"]) < Version("0.21")


def test_without_the_trainer_here_nothing_is_installed(pip, monkeypatch, capsys):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "trl" else name)
    assert main(["install"]) == EXIT_USAGE
    assert re.search(r"install: needs trl, which is not installed.*\[measure\]", capsys.readouterr().err)
    assert pip == []


def test_an_installation_that_waits_for_another_says_so(pip, tmp_path, monkeypatch):
    folder = tmp_path / "emulated_environments"
    folder.mkdir()
    other, said = FileLock(folder / "torch-2.13.0.lock"), []
    other.acquire()
    monkeypatch.setattr(build, "_SILENT_S", 0.0)

    def announce(line):
        said.append(line)
        if "Waiting" in line:
            other.release()

    install(TRIALS, base=None, announce=announce)
    assert said[1] == "Waiting for another process that makes this environment."


def test_an_interrupted_installation_starts_again(pip, tmp_path):
    folder = tmp_path / "emulated_environments" / "torch-2.13.0"
    (folder / "half").mkdir(parents=True)
    install(TRIALS, base=None, announce=lambda line: None)
    assert not (folder / "half").exists()
    assert (folder / COMPLETE).exists()


def test_what_pip_says_becomes_one_sentence():
    with pytest.raises(InstallationError, match=r"^Could not install torch 9: ERROR: No matching distribution"):
        installing._run(
            ["sh", "-c", "printf 'a\\nERROR: No matching distribution\\n\\nhint\\n' >&2; exit 1"], "torch 9"
        )
    with pytest.raises(InstallationError, match="could not be started"):
        installing._run(["no-such-python"], "the environment")


def test_sections_of_a_compiled_file_are_read():
    listing = "  [28] .nv_fatbin        PROGBITS        0000000005d6a2c0 5d6a2c0 118a5b30 00   A  0   0 16\n"
    assert sections(listing) == {".nv_fatbin": (0x5D6A2C0, 0x118A5B30)}


@pytest.mark.skipif(shutil.which("gcc") is None or shutil.which("readelf") is None, reason="gcc or readelf not found")
def test_kernels_are_released_and_the_rest_of_the_file_stays(tmp_path):
    source, library = tmp_path / "x.c", tmp_path / "x.so"
    source.write_text(
        '__attribute__((section(".nv_fatbin"))) char kernels[1 << 20] = {1}; char other[9] = "the rest";\n'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    linked = tmp_path / "linked.so"
    os.link(library, linked)
    before = library.stat()
    _release_kernels(library)
    assert library.stat().st_blocks == before.st_blocks  # of a store as well
    linked.unlink()
    _release_kernels(library)
    assert library.stat().st_size == before.st_size
    if library.stat().st_blocks == before.st_blocks:
        pytest.skip("this file system has no holes")
    assert library.stat().st_blocks * 512 < 2**19
    assert b"the rest" in library.read_bytes()
