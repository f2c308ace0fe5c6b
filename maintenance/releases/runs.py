"""The runs, as data: which releases of a package run which jobs; and how one runs, in an environment of its release."""

import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from profiler.domain.errors import ProfilerError

SCRIPT = Path(__file__).parents[2] / "examples" / "scripts" / "trl_recipe.py"
"""Of every job: its words choose the trainer and the tuning."""

FSDP = SCRIPT.with_name("trl_recipe_fsdp.yaml")
"""With several GPUs, how accelerate shares the job among them."""

GPU = "h100-80gb"

TRAINERS = ("sft", "dpo", "grpo")
TUNINGS = ("full", "lora", "qlora")
MODELS: Mapping[str, str] = {"0.5B": "Qwen/Qwen2.5-0.5B", "7B": "Qwen/Qwen2.5-7B"}
TIMEOUT_S = 300


@dataclass(frozen=True, kw_only=True)
class Size:
    """The model of a job, and how many GPUs share it."""

    model: str = next(iter(MODELS))
    """A key of `MODELS`."""
    gpus: int = 1

    @property
    def title(self) -> str:
        """Such as ``"0.5B, 2 GPUs"``."""
        return self.model if self.gpus == 1 else f"{self.model}, {self.gpus} GPUs"

    @property
    def ending(self) -> str:
        """Of the names of its files: such as ``"-7B"``; empty for the first size."""
        return "" if self == Size() else f"-{self.title.replace(', ', '-').replace(' ', '-')}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training with the script."""

    trainer: str
    tuning: str
    size: Size = field(default_factory=Size)


def _jobs(trainers: Sequence[str], tunings: Sequence[str], size: Size) -> tuple[Job, ...]:
    return tuple(Job(trainer=trainer, tuning=tuning, size=size) for trainer in trainers for tuning in tunings)


_ONE = Size()
_LARGE = Size(model="7B")
_SHARDED = _jobs(("sft", "grpo"), ("full",), Size(gpus=2))


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package whose releases are compared; every other one stays as it is."""

    name: str
    releases: Sequence[str]
    """In ascending order: the last patch of each minor release."""
    jobs: Sequence[Job]
    """Those whose memory it may change."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """What a release takes for granted and the others no longer have, by how the release begins."""
    engine: str = ""
    """The package of an engine that makes the completions, next to the trainer; the word of the script for it."""
    distribution: str = ""
    """Its name where packages are installed from, if that is another one."""
    why_some_fail: str = ""
    """What some releases fail for, in the sources."""

    @property
    def installed(self) -> str:
        """The name of what is installed."""
        return self.distribution or self.name

    @property
    def sizes(self) -> Sequence[Size]:
        """Those of its jobs, each once."""
        return tuple(dict.fromkeys(job.size for job in self.jobs))

    def jobs_of(self, size: Size) -> Sequence[Job]:
        """Return the jobs of one size."""
        return [job for job in self.jobs if job.size == size]


TRL = Package(
    name="trl",
    releases=(
        *("0.19.1", "0.20.0", "0.21.0", "0.22.2", "0.23.1", "0.24.0", "0.25.1", "0.26.2", "0.27.2", "0.28.0", "0.29.1"),
        *("1.0.0", "1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.1", "1.6.0", "1.7.1", "1.8.0", "1.9.2", "1.10.0", "1.11.0"),
        *("1.12.0", "1.13.0", "1.14.2", "1.15.0", "1.16.0"),
    ),
    jobs=(
        *_jobs(TRAINERS, TUNINGS[:2], _ONE),
        *_jobs(("sft", "grpo"), TUNINGS[1:], _LARGE),
        *_SHARDED,
    ),
    needs={"": "requests"},
    why_some_fail="The packages that GRPO and DPO of 0.19 to 0.28 miss are optional. `_is_package_available` of "
    "transformers 5 returns a pair, `(False, None)` for a package that is missing, and these releases take it for true "
    "(such as `is_weave_available` in `trl/import_utils.py`). 0.29 has a function of its own.",
)
VLLM = "0.24.0"
"""The emulated release of vLLM (`emulated_environments/trl.txt`)."""
ACCEPTED_VLLM: Mapping[str, str] = {
    **dict.fromkeys(("0.19.1", "0.20.0"), ">=0.8.3"),
    **dict.fromkeys(("0.21.0", "0.22.2", "0.23.1"), ">=0.10.0"),
    **dict.fromkeys(("0.24.0", "0.25.1"), "==0.10.2"),
    "0.26.2": ">=0.10.2,<=0.11.2",
    **dict.fromkeys(("0.27.2", "0.28.0", "0.29.1"), ">=0.10.2,<=0.12.0"),
    "1.0.0": ">=0.10.2,<=0.17.1",
    "1.1.0": ">=0.11.0,<=0.17.1",
    "1.2.0": ">=0.11.0,<=0.18.0",
    **dict.fromkeys(("1.3.0", "1.4.0", "1.5.1"), ">=0.12.0,<=0.18.0"),
    "1.6.0": ">=0.12.0,<=0.19.0",
    "1.7.1": ">=0.14.0,<=0.23.0",
    "1.8.0": ">=0.16.0,<=0.23.0",
    "1.9.2": ">=0.17.0,<=0.25.1",
    "1.10.0": ">=0.17.0,<=0.26.0",
    **dict.fromkeys(("1.11.0", "1.12.0"), ">=0.19.0,<=0.27.1"),
    "1.13.0": ">=0.19.1,<=0.28.0",
    "1.14.2": ">=0.20.0,<=0.30.0",
    "1.15.0": ">=0.21.0,<=0.31.0",
    "1.16.0": ">=0.22.0,<=0.31.0",
}
"""Releases of vLLM that each release of trl accepts.

Source: `is_vllm_available` in `trl/import_utils.py`, which warns of others. Before 0.24 it looks at no release: these
are of the extra `vllm` in the package's metadata.
"""
TRL_WITH_VLLM = Package(
    name="trl-vllm",
    distribution="trl",
    engine="vllm",
    releases=tuple(each for each in TRL.releases if VLLM in SpecifierSet(ACCEPTED_VLLM[each])),
    jobs=_jobs(("grpo",), TUNINGS[1::-1], _ONE),
    needs={"": "requests"},
    why_some_fail="Releases up to 0.23 take `vllm_ascend` for installed, by the pair that transformers 5 returns (see "
    "trl).",
)
"""Those that accept the emulated vLLM."""
TRANSFORMERS = Package(
    name="transformers",
    releases=(
        *("4.56.2", "4.57.6", "5.0.0", "5.1.0", "5.2.0", "5.3.0", "5.4.0", "5.5.4", "5.6.2", "5.7.0", "5.8.1", "5.9.0"),
        *("5.10.4", "5.11.0", "5.12.1", "5.13.1", "5.14.1", "5.15.1", "5.16.1", "5.17.0", "5.18.0", "5.19.0", "5.20.2"),
        *("5.21.1", "5.22.2", "5.23.0", "5.24.0"),
    ),
    jobs=(*_jobs(("sft",), ("full", "qlora"), _ONE), *_jobs(("grpo",), ("lora",), _ONE)),
    # Later ones ask for a huggingface_hub that release 4 of transformers refuses.
    needs={"4.": "datasets==4.7.0"},
)
"""From the first on that trl 1.16 accepts."""
PEFT = Package(
    name="peft",
    releases=("0.15.2", "0.16.0", "0.17.1", "0.18.1", "0.19.1", "0.20.0", "0.21.2"),
    jobs=_jobs(("grpo",), ("lora",), _ONE),
)
ACCELERATE = Package(
    name="accelerate",
    releases=("1.10.1", "1.11.0", "1.12.0", "1.13.0", "1.14.0", "1.15.0"),
    jobs=(*_jobs(("sft",), ("full",), _ONE), *_jobs(("grpo",), ("lora",), _ONE), *_SHARDED),
    why_some_fail="1.14 was the first to make the final norm and the embedding a unit of their own, without an LM head "
    "that is tied to it, and torch 2.13 refuses a parameter in two units. 1.15 has the head in that unit too "
    "(`tail_modules` of `fsdp2_prepare_model` in `accelerate/utils/fsdp_utils.py`).",
)
"""From the first on that trl 1.16 accepts."""
BITSANDBYTES = Package(
    name="bitsandbytes",
    releases=("0.46.1", "0.47.0", "0.48.2", "0.49.2", "0.50.2"),
    jobs=(*_jobs(("sft",), ("qlora",), _ONE), *_jobs(("sft", "grpo"), ("qlora",), _LARGE)),
    why_some_fail="The wheels before 0.48 have no library for CUDA 13 (`libbitsandbytes_cuda130.so`), for which torch "
    "is built.",
)
"""From the first on that transformers 5.23 accepts."""
PACKAGES: Sequence[Package] = (TRL, TRL_WITH_VLLM, TRANSFORMERS, PEFT, ACCELERATE, BITSANDBYTES)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One job with one release."""

    package: str
    release: str
    trainer: str
    tuning: str
    model: str = Size.model
    gpus: int = Size.gpus

    @property
    def size(self) -> Size:
        """Return its model and its GPUs."""
        return Size(model=self.model, gpus=self.gpus)

    @property
    def job(self) -> str:
        """Such as ``"grpo, lora"``, or ``"sft, full, 0.5B, 2 GPUs"`` for another size than the first."""
        return ", ".join((self.trainer, self.tuning, *(() if self.size == Size() else (self.size.title,))))

    @property
    def command(self) -> tuple[str, ...]:
        """Return the script and its words, with the launcher of several GPUs in front."""
        engine, launcher = package_of(self).engine, tuple[str, ...]()
        if engine:
            launcher = ("python",)
        elif self.gpus > 1:
            launcher = ("accelerate", "launch", "--config_file", str(FSDP))
        model = () if self.model == Size.model else ("--model", MODELS[self.model])
        tuning = () if self.tuning == TUNINGS[0] else (f"--{self.tuning}",)
        words = (*tuning, *model, *((f"--{engine}",) if engine else ()))
        return (*launcher, str(SCRIPT), "--trainer", self.trainer, *words)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of `profiler.run` for its cards: an engine is followed in commands, not in scripts."""
        if package_of(self).engine:
            return (f"gpus={self.gpus}x{GPU}",)
        several = () if self.gpus == 1 else ("events=early", f"num_processes={self.gpus}")
        return ("backend=emulated", f"gpu={GPU}", *several)

    def folder(self, place: Path) -> Path:
        """Return the folder of its results."""
        return place / self.package / self.release / f"{self.trainer}-{self.tuning}{self.size.ending}"


def package_of(run: Run) -> Package:
    """Return the package of a run."""
    return next(package for package in PACKAGES if package.name == run.package)


RUNS: Sequence[Run] = tuple(
    Run(
        package=package.name,
        release=release,
        trainer=job.trainer,
        tuning=job.tuning,
        model=job.size.model,
        gpus=job.size.gpus,
    )
    for package in PACKAGES
    for release in package.releases
    for job in package.jobs
)

SAID, CODE, VERSIONS = "said.txt", "exit_code.txt", "versions.json"
"""In the folder of a run: what the command printed; its exit code, which is written last; and versions of packages."""

OTHERS = ("torch", "trl", "transformers", "peft", "vllm")
"""Packages of which all but one stay as they are."""


def has_ended(run: Run, place: Path) -> bool:
    """Whether a run has ended, well or not."""
    return (run.folder(place) / CODE).exists()


def python_of(run: Run, place: Path, base: Path) -> Path:
    """Return the Python of a release; make its environment first if there is none.

    Args:
        run: Whose package and release it has.
        place: The folder of all environments.
        base: A Python with torch's CUDA build and every package that is needed; they are seen behind the release.

    Raises:
        ProfilerError: The release could not be installed.
    """
    folder = place / f"{run.package}-{run.release}"
    python = folder / "bin" / "python"
    if (folder / CODE).exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    of_base = _said(str(base), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])")
    _said(sys.executable, "-m", "venv", "--without-pip", str(folder))
    own = Path(_said(str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"))
    (own / "base.pth").write_text(of_base + "\n")
    pip = (str(base), "-m", "pip", "install", "--quiet", "--target", str(own))
    package = package_of(run)
    also = [each for begin, each in package.needs.items() if run.release.startswith(begin)]
    _said(*pip, "--no-deps", f"{package.installed}=={run.release}", *also)
    for wanted in unmet(own, of_base):
        _said(*pip, "--no-deps", *wanted)
    (folder / CODE).write_text("0")
    return python


_ROUNDS = 5
"""What is installed may require something itself."""


def unmet(own: Path, *behind: str) -> Iterator[Sequence[str]]:
    """Return what the packages in `own` require in other versions, until nothing is left.

    Args:
        own: A folder of packages.
        behind: Folders of the packages that are seen where `own` has none.
    """
    for _ in range(_ROUNDS):
        importlib.invalidate_caches()
        there: dict[str, str] = {}
        for each in distributions(path=[str(own), *behind]):
            there.setdefault(canonicalize_name(each.name), each.version)
        texts = (text for each in distributions(path=[str(own)]) for text in each.requires or ())
        wanted = [
            each for each in map(Requirement, texts) if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
        found = [f"{each.name}{each.specifier}" for each in wanted if not _is_met(each, there)]
        if not found:
            return
        yield found


def _is_met(wanted: Requirement, there: Mapping[str, str]) -> bool:
    version = there.get(canonicalize_name(wanted.name))
    return version is not None and wanted.specifier.contains(version, prereleases=True)


def _said(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProfilerError(f"{' '.join(words[:5])} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


def emulate(run: Run, place: Path, python: Path) -> None:
    """Run the script on an emulated H100 with the Python of the release, and keep what it says, whatever that is."""
    folder = run.folder(place)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    keys = (
        *(*run.keys, f"python={python}", "breakdown=true", "strict=false", "steps=2"),
        *(f"timeout_s={TIMEOUT_S}", f"results_dir={folder}"),
    )
    with (folder / SAID).open("w", encoding="utf-8") as said:
        done = subprocess.run(
            [sys.executable, "-m", "profiler.run", *keys, *run.command],
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if package_of(run).engine:  # the record of a command has no versions
        program = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {OTHERS}}}))"
        (folder / VERSIONS).write_text(_said(str(python), "-c", program))
    (folder / CODE).write_text(str(done.returncode))


def run_pending(
    runs: Sequence[Run],
    place: Path,
    *,
    python: Callable[[Run], Path],
    at_most: int | None,
    say: Callable[[str], None],
    emulated: Callable[[Run, Path, Path], None] = emulate,
) -> int:
    """Run what has not ended, at most `at_most` of it; return how much is left."""
    pending = [run for run in runs if not has_ended(run, place)]
    now = pending[:at_most]
    for run in now:
        emulated(run, place, python(run))
        say(f"{run.package} {run.release}, {run.job}: exit code {(run.folder(place) / CODE).read_text()}")
    return len(pending) - len(now)
