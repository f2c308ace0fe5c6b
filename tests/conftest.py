"""Makes `tests/` importable, and the tests independent of the machine and of the shell that starts them."""

import atexit
import gc
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # every test finds the builders in one place

# The same examples in each run, so that a change is judged by itself; `--hypothesis-profile=search` looks for new ones.
# Without a limit of time per example: the first one imports libraries, and the machine may be busy.
settings.register_profile("search", parent=settings.get_profile("default"), derandomize=False, deadline=None)
settings.register_profile(
    "same", parent=settings.get_profile("search"), derandomize=True, database=None, max_examples=25
)
settings.load_profile("same")

_CLEARED = (
    "ACCELERATE_",
    "ALL_PROXY",
    "CLICOLOR",
    "COLUMNS",
    "CUDA_VISIBLE_DEVICES",
    "FORCE_COLOR",
    "FTP_PROXY",
    "GITHUB_STEP_SUMMARY",
    "GRPO_VRAM_LIVE_DIR",
    "HF_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "LINES",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_",
    "MATPLOTLIBRC",
    "MPLBACKEND",
    "NO_COLOR",
    "NVIDIA_VISIBLE_DEVICES",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONOPTIMIZE",
    "PYTHONSAFEPATH",
    "PYTHONWARNINGS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "RANK",
    "SLURM_",
    "TRANSFORMERS_",
    "WORLD_SIZE",
)
"""Beginnings of variables that change what a test sees, in capital letters."""

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def _clear_environment() -> None:
    for name in [name for name in os.environ if name.upper().startswith(_CLEARED)]:
        del os.environ[name]
    os.environ["LC_ALL"] = "C.UTF-8"
    # Otherwise each process rewrites the assertions of every test anew, which takes ten seconds.
    sys.dont_write_bytecode = False
    # Threads of OpenMP wait in loops, which costs more than the work of a tiny model where processes share the cores:
    # 25 s instead of 1.5 s for four losses and their gradients.
    os.environ["OMP_NUM_THREADS"] = "1"
    if paths := os.environ.get("PYTHONPATH"):  # tests change the current folder
        os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in paths.split(os.pathsep))


def _have_a_home() -> None:
    """Libraries keep caches in the home folder, which a container need not have."""
    home = os.environ.get("HOME")
    if not home or not os.access(home, os.W_OK):
        os.environ["HOME"] = tempfile.mkdtemp(prefix="home-of-tests-")


def _find_python() -> None:
    """Tests call `python`, as in an activated environment; a machine may have `python3` alone."""
    if shutil.which("python") is None:
        folder = Path(tempfile.mkdtemp(prefix="python-of-tests-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        (folder / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        (folder / "python").chmod(0o755)
        os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{folder}"


def _have_no_emulated_environment() -> None:
    """Hide the environment that `python -m profiler.emulation install` made, unless the tests are to use one."""
    if "EMULATION_PYTHON" not in os.environ:
        folder = tempfile.mkdtemp(prefix="cache-of-tests-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["GRPO_VRAM_CACHE"] = folder


def _let_signals_end_children() -> None:
    """Give children the usual signals, which `nohup` and `&` let all processes ignore; this process ignores them still.

    A handler becomes the default in a new program, and what is ignored stays ignored.
    """
    for number in _ENDINGS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDINGS)


_clear_environment()
_have_a_home()
_find_python()
_have_no_emulated_environment()
_let_signals_end_children()
os.umask(0o022)
gc.disable()  # until all tests are collected: imported modules stay, and searching them takes a quarter of the time


_SLOWEST = (
    "worker/test_forecast_engine.py",
    "test_readme.py",
    "cluster/test_submitit.py",
    "execution/test_warm_process.py",
    "test_cost_of_a_change.py",
    "simulation/test_few_layers.py",
    "execution/test_ranks.py",
    "documentation/test_tutorials.py",
    "stress/test_signals.py",
    "domain/test_child_python.py",
    "callback/test_other_systems.py",
    "run/test_run_simulated.py",
    "emulation/test_two_processes.py",
    "simulation/test_nothing_is_left.py",
    "test_scale.py",
    "sweep/test_sweep_is_interrupted.py",
    "formats/test_answers_stay.py",
    "estimate/test_silently_wrong.py",
    "analysis/test_repeat.py",
    "sweep/test_up_to_cuda.py",
    "analytical/test_sft_estimate.py",
    "simulation/test_results_version.py",
    "seams/test_branches_by_device.py",
    "worker/test_simulated.py",
    "measurement/test_untouched_cuda.py",
    "test_bare_distribution.py",
    "rendering/test_page_in_a_browser.py",
    "analytical/test_preference_estimates.py",
    "bad_input/test_fuzz.py",
    "bad_input/test_odd_content.py",
    "emulation/test_jobs_on_cards.py",
    "execution/test_trials_on_gpus.py",
    "execution/test_progress_and_host.py",
    "analytical/test_replayed.py",
    "campaign/test_kept_measurements.py",
    "run/test_run_process.py",
    "execution/test_ends_of_the_sweep.py",
    "execution/test_stress.py",
)
"""Modules with the longest tests, in their order. Last they would keep one process busy while the others have ended."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the slowest modules start first; processes that have nothing left take tests from the end of the list."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(_SLOWEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


_NEW_OBJECTS = 50_000
"""After how many new objects garbage is collected. After 700, as usual, the closed form's tests take a sixth longer."""


def pytest_collection_finish() -> None:
    """Let collections of garbage search only what tests make: to search torch and trl takes half a second each time."""
    gc.freeze()
    gc.unfreeze = _refuse_to_unfreeze
    gc.set_threshold(_NEW_OBJECTS)
    gc.enable()
    _remember_packages()


def _remember_packages() -> None:
    """Let accelerate look for a package once. It looks for PEFT, DeepSpeed and LOMO some fifty times in a trial."""
    if (imports := sys.modules.get("accelerate.utils.imports")) is not None:
        imports._is_package_available = cache(imports._is_package_available)


def _refuse_to_unfreeze() -> None:
    """Afterwards each simulated trial of this process would take a second longer, a fifth of the time of all tests."""
    raise RuntimeError("gc.unfreeze() in the process of the tests: call what does it (mypy's API) in one of its own")


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Make a folder once for all processes of a run, and return it: `made_once(name, make)` calls `make(folder)`."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder_of(name: str, make: Callable[[Path], object]) -> Path:
        folder = base / name
        with FileLock(base / f"{name}.lock"):
            if not folder.exists():
                unfinished = base / f"{name}.unfinished"
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                make(unfinished)
                unfinished.rename(folder)
        return folder

    return folder_of


_WITH_PALETTES = "rendering/test_figures.py"
"""Has the tests of the files of figures as they are kept."""


@pytest.fixture(autouse=True, scope="module")
def in_all_colors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the colors of a figure as they are: to find a palette takes three quarters of the time of drawing it."""
    theme = sys.modules.get("profiler.rendering.figures.theme")
    if theme is None or request.path == Path(__file__).parent / _WITH_PALETTES:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theme, "_with_few_colors", lambda png: png)
        yield


@pytest.fixture(scope="module")
def longer_than_imports_s() -> float:
    """A limit that a warmed process which imports what it should keeps here and now, however busy the machine is."""
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import profiler.execution"], check=True)
    return float(round(3 + 10 * (time.monotonic() - began_s)))
