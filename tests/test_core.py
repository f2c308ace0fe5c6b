"""The commands of the bare distribution, without the packages that only extras bring."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from forked import Forking
from measured_runs import stored, trial
from other_systems import AS_ON, WITHOUT_ON
from own_histories import ALLOC, FREE, recorded

from profiler.commands import COMMANDS, WATCHING
from profiler.domain.errors import EXIT_OK, EXIT_USAGE

ROOT = Path(__file__).parents[1]
MIB = 2**20

WITHOUT = [
    "PIL",
    "accelerate",
    "bitsandbytes",
    "datasets",
    "filelock",
    "fsspec",
    "huggingface_hub",
    "hydra",
    "markupsafe",
    "matplotlib",
    "numpy",
    "omegaconf",
    "packaging",
    "pandas",
    "peft",
    "psutil",
    "pyarrow",
    "pynvml",
    "requests",
    "rich",
    "torch",
    "transformers",
    "trl",
    "wcwidth",
]

HIDDEN = f"""
import sys
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {WITHOUT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hook())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in {WITHOUT} else real(name, *rest)
"""

PROGRAM = """
import sys
sys.argv[0] = "grpo-vram"
from grpo_vram import main
sys.exit(main())
"""

SHARED = """
import contextlib
with contextlib.suppress(ImportError):
    import grpo_vram, profiler.console, profiler.estimate.main
"""
"""What most commands import. If a part of it needs what is hidden, each command meets that by itself."""

LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB "
    "of which 1.20 GiB is free. Including non-PyTorch memory, this process has 22.43 GiB memory in use. Of the "
    "allocated memory 20.11 GiB is allocated by PyTorch, and 1.90 GiB is reserved by PyTorch but unallocated."
)


@pytest.fixture(scope="module")
def core():
    """Return a function that runs `grpo-vram` without those packages, and without what Python has on Linux only."""
    environment = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    started = {}

    def run(*words: str, folder: Path, system: str = "linux") -> subprocess.CompletedProcess[str]:
        if system not in started:
            first = AS_ON.format(system=system, missing=WITHOUT_ON[system]) + HIDDEN + SHARED
            started[system] = Forking(first, environment)
        return started[system].run(PROGRAM, *words, folder=folder, environment={**environment, "HOME": str(folder)})

    yield run
    for each in started.values():
        each.end()


@pytest.fixture
def folder(tmp_path):
    history = recorded([], capacity_bytes=5000 * MIB)
    history.do((ALLOC, 1500 * MIB, 0))
    history.do((FREE, 0, 0))
    (tmp_path / "run.pickle").write_bytes(pickle.dumps(history.snapshot()))
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "grpo.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-7B\nnum_generations: 8\n")
    (tmp_path / "run.sh").write_text("accelerate launch --num_processes 1 grpo.py --config grpo.yaml\n")
    code = "from trl import *\nGRPOTrainer('Qwen/Qwen2.5-7B', args=GRPOConfig())"
    (tmp_path / "n.ipynb").write_text(f'{{"cells": [{{"cell_type": "code", "source": {json.dumps(code)}}}]}}')
    own = "model: {name: Qwen/Qwen2.5-7B}\nours: {a: 1, b: 2, c: 3}\ngrpo: {num_generations: 8, beta: 0.1}\n"
    (tmp_path / "own.yaml").write_text(own)
    stored(tmp_path / "measured", trial())
    return tmp_path


ON_LINUX_ONLY = [
    *((name,) for name, command in COMMANDS.items() if command.on_linux_only),
    *((name, words) for name, each in COMMANDS.items() for words, needs in each.uses.items() if needs.on_linux_only),
]
JOB = ("model=qwen2.5-7b", "tuning=lora", "gpu=4090")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("estimate", *JOB), "Fits: 18.8 GiB"),
        (("qwen2.5-7b", "tuning=lora", "gpu=4090"), "Fits: 18.8 GiB"),
        (("grpo.yaml", "gpu=4090"), "Does not fit: at least"),
        (("estimate", "gpu=4090", "--", "trl", "grpo", "--config", "grpo.yaml"), "Does not fit: at least"),
        (("estimate", "gpu=4090", "config=run.sh"), "Does not fit: at least"),
        (("estimate", "gpu=4090", "config=n.ipynb"), "Does not fit: at least"),
        (("estimate", "gpu=4090", "config=own.yaml"), "Does not fit: at least"),
        (("estimate", *JOB, "alloc_conf=roundup_power2_divisions:8", "format=json"), "peak_allocated_bytes"),
        (("estimate", *JOB, "num_generations=4,8", "recipe=grpo"), "2 trials"),
        (("estimate", "model=qwen2.5-7b", "gpu=any"), "rtx-5080-16gb"),
        (("estimate", *JOB, f"max_completion_length={','.join(map(str, range(100, 170)))}"), "70 trials"),
        (("solve", "max_completion_length", *JOB), "max_completion_length"),
        (("solve", "max_completion_length,num_generations", *JOB), "limit"),
        (("solve", "gpu", "model=qwen2.5-7b", "tuning=lora"), "rtx-5080-16gb"),
        (("advise", "model=qwen2.5-7b", "gpu=4090"), "gradient_checkpointing"),
        (("advise", "oom=train.log"), "The card refused 2.00 GiB"),
        (("advise", "oom=train.log", "config=grpo.yaml"), "The card refused 2.00 GiB"),
        (("replay", "run.pickle"), "peak of reserved memory"),
        (("share", "measured"), "allocated 8.00 GiB: estimate"),
        (("monitor", "--help"), "watch="),
        (("--help",), "grpo-vram COMMAND"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_a_command_of_the_core_needs_no_other_package(core, folder, words, says):
    found = core(*words, folder=folder)
    assert found.returncode == EXIT_OK, found.stderr
    assert says in found.stdout, found.stdout


SLOW_TO_IMPORT = {
    "http.client",
    "importlib.metadata",
    "profiler.analytical.explanation.boundary",
    "profiler.config.shell.running",
    "profiler.config.trl.config",
}
"""What only other answers need, with 5 to 30 ms each."""


def test_the_first_answer_imports_what_it_needs(folder):
    program = HIDDEN + PROGRAM.replace(
        "sys.exit(main())", f"main(); sys.exit(repr({SLOW_TO_IMPORT} & {{*sys.modules}}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, "qwen2.5-7b", "tuning=lora", "gpu=4090"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert found.stdout.startswith("Fits: 18.8 GiB")
    assert found.stderr.strip() == "set()"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("monitor",), "nvidia-ml-py, which would find one, is not installed"),
        (("monitor", "true"), "Install the extra 'sweep'"),
        (("sweep", "+grid=lora_vs_full"), "Install the extra 'sweep'"),
        (("report", "results"), "Install the extra 'sweep'"),
        (("run", "train.py"), "Install the extra 'sweep'"),
        (("claims",), "Install the extra 'sweep'"),
        (("share", str(ROOT / "results" / "reference" / "h200" / "tables" / "large")), "Install the extra 'sweep'"),
        (("seams",), "Install the extra 'simulate'"),
        (("emulation",), "Install the extra 'emulate'"),
        (("replay", "run.pickle", "figure=a.png"), "Install the extra 'sweep'"),
        (("solve", "max_completion_length,num_generations", *JOB, "figure=a.png"), "Install the extra 'sweep'"),
        (("estimate", "model=somebody/model"), "HF_HUB_OFFLINE is set, and the local cache has no copy"),
    ],
)
def test_what_needs_more_is_one_sentence(core, folder, words, says):
    found = core(*words, folder=folder)
    assert found.returncode == EXIT_USAGE, found.stderr
    assert found.stdout == ""
    assert len(found.stderr.splitlines()) == 1
    assert says in found.stderr


@pytest.mark.parametrize("words", [("qwen2.5-7b",), ("solve", "gpu", "model=qwen2.5-7b")])
def test_no_command_runs_next_to_the_former_distribution(tmp_path, words):
    for name, version in (("grpo_vram", "0.2.0"), ("grpo_vram_profiler", "0.1.0")):
        notes = tmp_path / "site" / f"{name}-{version}.dist-info" / "METADATA"
        notes.parent.mkdir(parents=True)
        notes.write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    found = subprocess.run(
        [sys.executable, "-m", "grpo_vram", *words],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path / 'site'}"},
        check=False,
    )
    assert (found.returncode, found.stdout) == (EXIT_USAGE, "")
    assert "installation=grpo-vram-profiler 0.1.0: has the same files as grpo-vram" in found.stderr
    assert "Uninstall grpo-vram-profiler and grpo-vram, then install grpo-vram again." in found.stderr


# ---- a folder `profiler` of the user ---------------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path):
    (tmp_path / "work" / "profiler").mkdir(parents=True)
    (tmp_path / "work" / "profiler" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    return tmp_path / "work"


def python(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python, which finds `grpo_vram`."""
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=folder, env={"PYTHONPATH": str(ROOT)}, check=False
    )


def test_python_itself_would_import_the_folder(foreign):
    assert "the wrong one" in python("-c", "import profiler", folder=foreign).stderr


def test_the_console_script_does_not_import_it(foreign, tmp_path):
    script = tmp_path / "grpo-vram"
    script.write_text("import sys\nfrom grpo_vram import main\nsys.exit(main())\n")
    for words in ([str(script)], ["-c", script.read_text()]):
        found = python(*words, "qwen2.5-7b", "tuning=lora", "gpu=4090", folder=foreign)
        assert (found.returncode, found.stderr) == (EXIT_OK, "")
        assert found.stdout.startswith("Fits: 18.8 GiB")


def test_the_other_name_of_the_package_does_not_import_it(foreign):
    program = "import grpo_vram, profiler; print(grpo_vram.__version__, profiler.__file__)"
    found = python("-c", program, folder=foreign)
    assert found.stdout.split()[1:] == [str(ROOT / "profiler" / "__init__.py")], found.stderr


def test_a_foreign_package_that_is_imported_already_is_named(foreign):
    (foreign / "profiler" / "__init__.py").write_text("")
    found = python("-c", "import profiler, grpo_vram", folder=foreign)
    assert "is imported as 'profiler' already: import grpo_vram before it" in found.stderr


@pytest.mark.parametrize("system", ["darwin", "win32"])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("grpo.yaml", "gpu=4090"), "Does not fit: at least"),
        (("estimate", "gpu=4090", "--", "trl", "grpo", "--config", "grpo.yaml"), "Does not fit: at least"),
        (("estimate", "gpu=4090", "config=run.sh"), "Does not fit: at least"),
        (("estimate", "gpu=4090", "config=n.ipynb"), "Does not fit: at least"),
        (("estimate", "gpu=4090", "config=own.yaml"), "Does not fit: at least"),
        (("solve", "max_completion_length", *JOB), "max_completion_length"),
        (("advise", "oom=train.log"), "The card refused 2.00 GiB"),
        (("replay", "run.pickle"), "peak of reserved memory"),
        (("share", "measured"), "allocated 8.00 GiB: estimate"),
        (("monitor", "--help"), "watch="),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_the_core_needs_nothing_that_only_linux_has(core, folder, system, words, says):
    found = core(*words, folder=folder, system=system)
    assert found.returncode == EXIT_OK, found.stderr
    assert says in found.stdout, found.stdout


@pytest.mark.parametrize("system", ["darwin", "win32"])
@pytest.mark.parametrize("words", ON_LINUX_ONLY)
def test_what_needs_linux_says_so(core, folder, system, words):
    found = core(*(sys.executable if word == WATCHING else word for word in words), folder=folder, system=system)
    assert found.returncode == EXIT_USAGE, found.stderr
    assert f"runs on Linux only, and this is {system}." in found.stderr
    assert (
        "estimate, solve, advise, forecast, report, monitor (without COMMAND), replay, share and claims run on"
        in found.stderr
    )
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [(name,) for name, each in COMMANDS.items() if not each.on_linux_only])
def test_what_does_not_need_linux_is_not_refused(core, folder, words):
    found = core(*words, "--help", folder=folder, system="darwin")
    assert "runs on Linux only" not in found.stderr
