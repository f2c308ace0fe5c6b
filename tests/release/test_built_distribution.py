"""The built distribution: its contents, and what it answers where nothing but it and its one package are installed.

`make dist` builds it, and runs these tests in an environment that has pytest, pipx and uv only; `make test` skips them.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

DIST = "GRPO_VRAM_DIST"
"""Environment variable: the folder with one wheel and one sdist."""
PYTHONS = "GRPO_VRAM_PYTHONS"
"""Environment variable: the Pythons to install into, as commands or paths, separated by spaces."""
CONSTRAINTS = "GRPO_VRAM_CONSTRAINTS"
"""Environment variable: versions of the packages of the extras, with which a sweep is run; none is run without."""

pytestmark = pytest.mark.skipif(DIST not in os.environ, reason="make dist builds the distribution")

FOLDER = Path(os.environ.get(DIST, "dist")).resolve()
JOB = ("qwen2.5-7b", "tuning=lora", "gpu=4090")
ANSWER = "Fits: 18.0 GiB"
COMMANDS = [
    (JOB, ANSWER),
    (("solve", "max_completion_length", "model=qwen2.5-7b", "tuning=lora", "gpu=4090"), "max_completion_length"),
    (("advise", "model=qwen2.5-7b", "gpu=4090"), "gradient_checkpointing"),
]


def only(pattern: str) -> Path:
    (found,) = FOLDER.glob(pattern)
    return found


def run(*words: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program that finds neither this checkout nor the hub."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
    called = [str(word) for word in words]
    return subprocess.run(called, capture_output=True, encoding="utf-8", env=environment, check=False, **options)


def test_the_wheel_has_the_program_and_nothing_else():
    with zipfile.ZipFile(only("*.whl")) as wheel:
        names = wheel.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"grpo_vram", "profiler"}
    assert {"profiler/py.typed", "profiler/sweeps/grid/lora_vs_full.yaml", "grpo_vram/__init__.py"} <= set(names)
    assert not [name for name in names if re.search(r"(^|/)(tests?|maintenance|results)(/|$)|\.pyc$", name)]


def test_the_sdist_has_what_the_wheel_is_built_from_and_no_results():
    with tarfile.open(only("*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "PKG-INFO"} <= names
    assert {name.partition("/")[0] for name in names if "/" in name} == {"grpo_vram", "profiler", "sweeps"}


def test_the_metadata_name_the_version_and_the_two_packages():
    version = re.search(r'__version__ = "(.+)"', (Path(__file__).parents[2] / "profiler" / "__init__.py").read_text())[
        1
    ]
    with zipfile.ZipFile(only("*.whl")) as wheel:
        text = wheel.read(f"grpo_vram-{version}.dist-info/METADATA").decode()
    assert f"\nName: grpo-vram\nVersion: {version}\n" in text
    core = [line for line in re.findall(r"^Requires-Dist: (.+)$", text, re.MULTILINE) if "extra ==" not in line]
    assert sorted(re.match(r"[\w-]+", line)[0].lower() for line in core) == ["pyyaml"]


@pytest.fixture(scope="module", params=os.environ.get(PYTHONS, sys.executable).split())
def interpreter(request) -> str:
    """The program of one Python."""
    program = shutil.which(request.param)
    if program is not None and not run(program, "--version").returncode:
        return program
    # pyenv has a program for each version, which runs only where that version was chosen.
    versions = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for found in versions.glob(f"{request.param.removeprefix('python')}.*/bin/python"):
        return str(found)
    pytest.skip(f"{request.param} is not on this machine")


def environment(interpreter: str, home: Path) -> Path:
    """Make an empty environment and return its folder of programs."""
    assert not (made := run(interpreter, "-m", "venv", home)).returncode, made.stderr
    return home / Path(sysconfig.get_path("scripts", "venv", vars={"base": "x"})).name


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


@pytest.fixture(scope="module")
def installed(interpreter, tmp_path_factory) -> Path:
    """The folder of programs of an empty environment of one Python, into which pip installed the wheel."""
    scripts = environment(interpreter, tmp_path_factory.mktemp("environment") / "new")
    before = size(scripts.parent)
    pip = run(scripts / "python", "-m", "pip", "install", "--quiet", only("*.whl"))
    assert pip.returncode == 0, pip.stderr
    assert 5_000_000 < size(scripts.parent) - before <= 15_000_000
    return scripts


@pytest.mark.parametrize(("words", "says"), COMMANDS, ids=lambda value: value[0] if isinstance(value, tuple) else "")
def test_a_command_answers_in_an_empty_environment(installed, tmp_path, words, says):
    found = run(installed / "grpo-vram", *words, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert says in found.stdout


def test_it_says_how_the_wheel_is_installed_with_an_extra(installed, tmp_path):
    found = run(installed / "grpo-vram", "sweep", "+grid=lora_vs_full", cwd=tmp_path)
    assert found.returncode == 2
    assert "[sweep]'" in found.stderr
    assert only("*.whl").name in found.stderr


@pytest.fixture(scope="module")
def uv() -> str:
    beside = shutil.which("uv", path=str(Path(sys.executable).parent))
    return beside or shutil.which("uv") or pytest.skip("uv is not installed")


def test_uvx_answers_from_the_wheel(uv, interpreter, tmp_path):
    words = ("tool", "run", "--no-python-downloads", "--python", interpreter, "--from", only("*.whl"), "grpo-vram")
    found = run(uv, *words, *JOB, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(ANSWER)
    refused = run(uv, *words, "sweep", "+grid=lora_vs_full", cwd=tmp_path)
    assert refused.returncode == 2
    assert re.search(r"Install the extra 'sweep': uvx --from '.+\.whl\[sweep\]' grpo-vram\.", refused.stderr)


def test_pipx_answers_from_the_wheel(interpreter, monkeypatch, tmp_path):
    if run(sys.executable, "-m", "pipx", "--version").returncode:
        pytest.skip("pipx is not installed")
    monkeypatch.setenv("PIPX_HOME", str(tmp_path / "pipx"))
    words = (sys.executable, "-m", "pipx", "run", "--python", interpreter, "--spec", only("*.whl"), "grpo-vram")
    found = run(*words, *JOB, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(ANSWER)


@pytest.mark.skipif(CONSTRAINTS not in os.environ, reason="make dist CONSTRAINTS=constraints.txt installs the extras")
def test_the_extras_run_a_sweep(interpreter, tmp_path):
    constraints = Path(os.environ[CONSTRAINTS]).resolve()
    python = environment(interpreter, tmp_path / "new") / "python"
    wheel = f"{only('*.whl')}[sweep,simulate]"
    pip = run(python, "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel)
    assert pip.returncode == 0, pip.stderr
    found = run(python, "-m", "profiler.sweep", "+grid=lora_vs_full", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "OOM 187.0" in found.stdout
    assert (tmp_path / "results" / "lora_vs_full" / "report.html").is_file()
