"""The built wheel with the packages that it depends on, and no other: what its commands do without torch."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from action_steps import ESTIMATE, INSTALL, RECIPE, run_step
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from maintenance.planted_faults.faults import FAULTS
from profiler import commands
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.domain.machines.extras import ON_INDEX, TRAINING, Extra
from profiler.domain.text import packed_text
from profiler.emulation.building.library_sources import unpacked

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PACKED = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["texts"]
KEPT = ROOT / "results" / "reference" / "logprobs"
NAMING = (".github", "docs", "examples", "grpo_vram", "maintenance", "notebooks", "profiler", "scripts", "skills")
"""Folders whose texts may say how to install."""

OF_MODULE = {"hydra": "hydra-core", "pynvml": "nvidia-ml-py"}
"""Distributions that are not named as their module is."""

LLAMA = {
    "architectures": ["MineForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}


@pytest.fixture(scope="module")
def wheel(made_once) -> Path:
    """The built wheel."""

    def make(folder: Path) -> None:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
        built = subprocess.run(build, capture_output=True, text=True, check=False)
        if built.returncode and "hatchling" in built.stderr:
            pytest.skip("hatchling, which builds the wheel, cannot be downloaded")
        assert built.returncode == 0, built.stderr

    (found,) = made_once("wheel", make).glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bare(wheel, made_once) -> Path:
    """A folder with the unpacked wheel and links to what it requires, taken from this environment."""
    return made_once("bare", lambda site: unpack(wheel, site))


@pytest.fixture(scope="module")
def with_tables(wheel, made_once) -> Path:
    """`bare`, with the packages of the extra `sweep`."""
    return made_once("with_tables", lambda site: unpack(wheel, site, Extra.SWEEP))


@pytest.fixture
def fresh(bare, tmp_path) -> Path:
    """The Python of a new environment with pip and what the wheel requires, but not the wheel."""
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (metadata,) = bare.glob("grpo_vram-*.dist-info")
    link(site, [distribution("pip"), *required(Distribution.at(metadata))])
    return tmp_path / "venv" / "bin" / "python"


def unpack(wheel: Path, site: Path, extra: str = "") -> None:
    """Unpack the wheel into a folder, and link what it requires, with an extra of it or without."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (metadata,) = site.glob("*.dist-info")
    link(site, required(Distribution.at(metadata), extra))


def link(site: Path, distributions: Iterable[Distribution]) -> None:
    """Link the files of distributions of this environment into a folder."""
    for each in distributions:
        for top in {Path(str(file)).parts[0] for file in each.files or () if not str(file).startswith("..")}:
            target = site / top
            if not target.exists() and top != "__pycache__":
                target.symlink_to(Path(str(each.locate_file(top))))


def required(of: Distribution, extra: str = "") -> Iterator[Distribution]:
    """The distributions that `of` requires, with an extra of it or without, and those that they require."""
    seen: set[str] = set()
    waiting = [of]
    while waiting:
        for requirement in map(Requirement, waiting.pop().requires or ()):
            name = canonicalize_name(requirement.name)
            if name in seen or (
                requirement.marker and not any(requirement.marker.evaluate({"extra": each}) for each in ("", extra))
            ):
                continue
            seen.add(name)
            found = distribution(name)
            yield found
            waiting.append(found)


def run(bare: Path, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m profiler...` with nothing but `bare` and the standard library."""
    program = f"import sys; sys.path = [{str(bare)!r}, *[p for p in sys.path if 'site-packages' not in p]]; "
    program += f"sys.argv = {['-m', *words[1:]]!r}; import runpy; runpy.run_module({words[0]!r}, run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, cwd=folder, check=False
    )


def test_every_step_of_the_action_runs_with_the_built_wheel(wheel, fresh, tmp_path):
    (tmp_path / "grpo.yaml").write_text(RECIPE)
    inputs = {"config": "grpo.yaml", "python": str(fresh), "package": str(wheel)}
    # Without the sources of this checkout; pip asks no index, because all that the wheel requires is there.
    alone = {"PYTHONPATH": "", "PIP_NO_INDEX": "1", "PIP_REQUIRE_VIRTUALENV": "1"}
    assert run_step(ESTIMATE, tmp_path, environment=alone, gpu="h100", **inputs).returncode == 127
    installed = run_step(INSTALL, tmp_path, environment=alone, gpu="h100", **inputs)
    assert (installed.returncode, installed.stderr) == (0, "")
    found = run_step(ESTIMATE, tmp_path, environment=alone, gpu="t4", **inputs)
    assert (found.returncode, found.stderr) == (4, "")
    assert "does not pass fail_if=does_not_fit" in (tmp_path / "summary.md").read_text()


def test_the_extras_bring_what_the_code_says_that_they_bring():
    extras = PROJECT["optional-dependencies"]
    assert set(Extra) | {"dev"} == set(extras)

    def names(entries: Iterable[str]) -> set[str]:
        found: set[str] = set()
        for requirement in map(Requirement, entries):
            if requirement.name == PROJECT["name"]:
                found |= {name for extra in requirement.extras for name in names(extras[extra])}
            found.add(requirement.name)
        return found

    assert set(TRAINING) <= names(extras["simulate"])
    assert {"nvidia-ml-py", *TRAINING} <= names(extras["measure"])
    assert {"vllm", "nvidia-ml-py", *TRAINING} <= names(extras["vllm"])
    assert names(extras["simulate"]) | names(extras["measure"]) | names(extras["emulate"]) <= names(extras["dev"])
    for command in commands.COMMANDS.values():
        for needs in (command, *command.uses.values()):
            assert {OF_MODULE.get(name, name) for name in needs.imports} <= names(extras[needs.extra])
    assert not names(PROJECT["dependencies"]) & {*TRAINING, "hydra-core", "nvidia-ml-py", "vllm"}


def assert_can_be_installed(text: str) -> None:
    """Check what `pip install` names: files that are here, or packages, and not this program, which is on no index."""
    found = re.search(r"pip install (.+)\.$", text.strip(), re.MULTILINE)
    assert found is not None, text
    words = [word for word in shlex.split(found[1]) if word != "-e"]
    assert words
    for word in words:
        place = word.partition("[")[0]
        assert Path(place).exists() if "/" in place else Requirement(word).name != PROJECT["name"], word


def test_the_bare_wheel_estimates(bare, tmp_path):
    found = run(bare, "profiler.estimate", "model=qwen2.5-7b", "tuning=lora", "format=json", folder=tmp_path)
    assert found.returncode == EXIT_OK, found.stderr
    assert json.loads(found.stdout)["peak_allocated_bytes"] > 2**34


def test_the_bare_wheel_reads_a_config_json_and_solves(bare, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "model_type": "llama"}))
    found = run(bare, "profiler.solve", "num_generations", "model=config.json", "gpu=4090", folder=tmp_path)
    assert found.returncode == EXIT_OK, found.stderr
    assert "num_generations" in found.stdout
    assert "Not simulated, because accelerate, " in found.stderr
    assert_can_be_installed(found.stderr)


def test_the_bare_wheel_advises(bare, tmp_path):
    found = run(bare, "profiler.advise", "model=qwen2.5-7b", "gpu=rtx-4090-24gb", folder=tmp_path)
    assert found.returncode == EXIT_OK, found.stderr
    assert "gradient_checkpointing" in found.stdout


def test_the_bare_wheel_answers_python(bare, tmp_path):
    (tmp_path / "asks.py").write_text(
        "import grpo_vram\n"
        "keys = {'model': 'qwen2.5-7b', 'tuning': 'lora', 'gpu': '4090'}\n"
        "found = grpo_vram.estimate(**keys), grpo_vram.advise(**keys), grpo_vram.smallest_card(**keys)\n"
        "print(found[0].peak_allocated_bytes, grpo_vram.solve('max_completion_length', **keys).largest)\n"
    )
    program = "import sys; sys.path = [{bare!r}, *[p for p in sys.path if 'site-packages' not in p]]; "
    program = program.format(bare=str(bare)) + "import runpy; runpy.run_path('asks.py')"
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (found.returncode, found.stderr) == (EXIT_OK, "")
    assert all(int(number) > 0 for number in found.stdout.split())


def test_the_extra_sweep_draws_a_report(with_tables, tmp_path):
    for table in KEPT.glob("*.parquet"):
        (tmp_path / table.name).write_bytes(table.read_bytes())
    found = run(with_tables, "profiler.report", ".", folder=tmp_path)
    assert found.returncode == EXIT_OK, found.stderr
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "figures" / "categories.png").is_file()


def test_claims_are_judged_in_a_clone(with_tables, tmp_path):
    found = run(with_tables, "profiler.claims", folder=tmp_path)
    assert (found.returncode, found.stdout) == (EXIT_USAGE, "")
    assert found.stderr.startswith("command=claims: needs a clone of the project, whose kept results it reads")
    assert len(found.stderr.splitlines()) == 1


def test_the_bare_wheel_lists_the_commands(bare, tmp_path):
    found = run(bare, "profiler", folder=tmp_path)
    assert found.returncode == EXIT_OK, found.stderr
    assert all(command.summary in found.stdout for command in commands.COMMANDS.values())


@pytest.mark.parametrize(
    ("config", "words", "extra"),
    [
        ({**LLAMA, "model_type": "starcoder2"}, ["profiler.estimate", "model=config.json"], "simulate"),
        ({}, ["profiler.sweep", "+grid=lora_vs_full"], "sweep"),
        ({}, ["profiler.seams"], "simulate"),
    ],
    ids=["family", "sweep", "seams"],
)
def test_what_needs_more_is_one_sentence_that_names_the_extra(bare, tmp_path, config, words, extra):
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = run(bare, *words, folder=tmp_path)
    assert found.returncode == EXIT_USAGE, found.stderr
    assert len(found.stderr.splitlines()) == 1
    assert f"Install the extra '{extra}'" in found.stderr
    assert_can_be_installed(found.stderr)


def test_code_of_a_repository_needs_the_users_script(bare, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "model_type": "x", "auto_map": {"A": "b.C"}}))
    found = run(bare, "profiler.estimate", "model=config.json", folder=tmp_path)
    assert found.returncode == EXIT_USAGE, found.stderr
    assert len(found.stderr.splitlines()) == 1
    assert found.stderr.endswith("run it: python -m profiler.run gpu=CARD train.py.\n")


def test_the_core_is_small(bare):
    """At most three small packages, and 15 MB beyond an empty environment, with the bytecode that pip makes."""
    packages = list(required(Distribution.at(next(bare.glob("grpo_vram-*.dist-info")))))
    assert len(packages) <= 3
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", str(bare / "profiler"), str(bare / "grpo_vram")], check=True
    )
    own = [path for top in ("profiler", "grpo_vram") for path in (bare / top).rglob("*") if path.is_file()]
    of_packages = [Path(str(each.locate_file(file))) for each in packages for file in each.files or ()]
    assert sum(path.stat().st_size for path in (*own, *of_packages) if path.is_file()) <= 15_000_000


@pytest.mark.parametrize(
    "name", ["emulation/driver", "emulation/inside", "simulation", "substitutes", "training", "worker"]
)
def test_the_packed_folders_are_those_of_the_clone(bare, name, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_VRAM_CACHE", str(tmp_path))
    own, packed = ROOT / "profiler" / name, bare / "profiler" / f"{name}.tar.xz"
    assert not (bare / "profiler" / name).exists()
    folder = unpacked(packed) / own.name
    assert unpacked(packed) == folder.parent
    assert [each.name for each in folder.parents[1].iterdir()] == [folder.parent.name]

    def contents(of: Path) -> dict[str, bytes]:
        files = (each for each in of.rglob("*") if each.is_file() and each.parent.name != "__pycache__")
        return {each.relative_to(of).as_posix(): each.read_bytes() for each in files}

    assert contents(folder) == contents(own)


@pytest.mark.parametrize("can_be_kept", [True, False])
def test_a_packed_package_is_imported_from_its_archive(bare, tmp_path, can_be_kept):
    """Also by a user without a folder of his own."""
    (tmp_path / "file").write_text("")
    cache = tmp_path / ("cache" if can_be_kept else "file")
    program = "from profiler.substitutes import options; print(options.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(bare), "GRPO_VRAM_CACHE": str(cache), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    place = Path(found.stdout.strip())
    assert place.is_relative_to(tmp_path)
    assert place.is_relative_to(cache) == can_be_kept


@pytest.mark.parametrize("name", PACKED)
def test_the_packed_texts_are_those_of_the_clone(bare, name):
    text = Path(name)
    folder, own = bare / text.parent, ROOT / text.parent
    assert not (folder / text.name).exists()
    assert packed_text(folder, text.name) == packed_text(own, text.name) == (own / text.name).read_text()


def test_no_document_or_hint_names_what_is_on_no_index():
    """Change ON_INDEX after the first upload, and then the documents."""
    assert not ON_INDEX
    ends = (".md", ".py", ".yml", ".yaml", ".ipynb", ".sh", ".txt", "Dockerfile", "Makefile")
    paths = [*ROOT.iterdir(), *(path for folder in NAMING for path in (ROOT / folder).rglob("*"))]
    texts = {path: path.read_text() for path in paths if path.name.endswith(ends) and path.is_file() and path != FAULTS}
    assert {ROOT / "README.md", ROOT / "docs" / "install.md"} <= set(texts)
    wrong = re.compile(r"(uvx|pipx run|pip install) +['\"]?grpo-vram")
    assert [str(path) for path, text in texts.items() if wrong.search(text)] == []


def test_packages_that_the_distribution_requires_are_named_as_pip_names_them():
    for requirement in map(Requirement, PROJECT["dependencies"]):
        try:
            distribution(requirement.name)
        except PackageNotFoundError:  # pragma: no cover
            pytest.fail(f"{requirement.name} is not installed")
