"""The backend of a sweep: resolve `auto` by the visible GPUs, and refuse what a real GPU cannot do."""

from collections.abc import Iterable, Mapping

from profiler.config.options.run_options import RunOptions
from profiler.config.trials.specification import AUTO
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.cards.gpu_names import name_card
from profiler.domain.errors import Fault
from profiler.domain.memory import gib_text
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.trial import Backend, DistributedType, TrialSpec
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus

_CPU_BUILD = "+cpu"


def resolve_auto(
    points: Iterable[Mapping[str, object]], visible: VisibleGpus, *, torch_version: str | None
) -> tuple[list[Mapping[str, object]], str]:
    """Return `points` with `backend=auto` replaced, and a line with the choice and its reason; empty without `auto`."""
    backend, reason = _choose(visible, torch_version)
    resolved: list[Mapping[str, object]] = []
    replaced = False
    for point in points:
        is_auto = point.get("backend") == AUTO
        replaced = replaced or is_auto
        resolved.append({**point, "backend": str(backend)} if is_auto else point)
    return resolved, f"backend=auto: {backend}, because {reason}." if replaced else ""


def _choose(visible: VisibleGpus, torch_version: str | None) -> tuple[Backend, str]:
    if not visible.gpus:
        return Backend.SIMULATED, visible.note
    name = visible.gpus[0].name
    if torch_version is not None and torch_version.endswith(_CPU_BUILD):
        return Backend.SIMULATED, f"torch {torch_version} is a build without CUDA, though {name} is visible"
    return Backend.CUDA, f"{name} is visible"


def real_gpu_faults(
    points: Iterable[Mapping[str, object]], visible: VisibleGpus, *, torch_version: str | None
) -> list[Fault]:
    """Return the faults of points on a real GPU: there is none, or it is smaller than the card to cap it to."""
    on_gpu = [point for point in points if point.get("backend") == Backend.CUDA]
    if not on_gpu:
        return []
    backend, reason = _choose(visible, torch_version)
    if backend is not Backend.CUDA:
        hint = "backend=simulated runs the same trainer without a GPU, and so does backend=emulated."
        return [Fault(key="backend", found="cuda", problem=f"needs a GPU, but {reason}", hint=hint)]
    smallest = min(visible.gpus, key=lambda gpu: gpu.memory_bytes)
    named = [name_card(gpu).name for point in on_gpu if isinstance(gpu := point.get("gpu"), str)]
    caps = dict.fromkeys(gpu for gpu in named if gpu in KNOWN_GPUS)
    return [
        Fault(
            key="gpu",
            found=cap,
            problem=(
                f"a real card can only be capped to a smaller one; {cap} has {gib_text(KNOWN_GPUS[cap].memory_bytes)}, "
                f"the card of this machine {gib_text(smallest.memory_bytes)}"
            ),
            hint="backend=simulated can simulate any card.",
        )
        for cap in caps
        if KNOWN_GPUS[cap].memory_bytes > smallest.memory_bytes
        and not KNOWN_GPUS[cap].is_called(smallest.name, smallest.memory_bytes)
    ]


def too_few_gpus(specs: Iterable[TrialSpec], visible: VisibleGpus) -> list[Fault]:
    """Return a fault for each number of processes that is larger than the number of visible GPUs of one kind."""
    gpus, _ = gpus_alike(visible)
    counts = dict.fromkeys(spec.num_processes for spec in specs if spec.backend is Backend.CUDA)
    seen = f"only {len(gpus)} is visible" if len(gpus) == 1 else f"only {len(gpus)} are visible"
    return [
        Fault(
            key="num_processes",
            found=str(count),
            problem=f"needs {count} GPUs of one kind, and {seen}",
            hint=f"Use at most num_processes={len(gpus)}, or backend=emulated.",
        )
        for count in counts
        if gpus and count > len(gpus)
    ]


def other_python_faults(points: Iterable[Mapping[str, object]], options: RunOptions | None) -> list[Fault]:
    """Return the faults of trials in another Python: several backends in one sweep, or one that runs in this one."""
    backends = list(dict.fromkeys(str(point.get("backend")) for point in points))
    if Backend.EMULATED in backends and len(backends) > 1:
        return [
            Fault(
                key="backend",
                found=",".join(backends),
                problem="emulated cannot run with another backend in one sweep, because it runs in another Python",
                hint="Run one sweep per backend: with the same results_dir one table shows both.",
            )
        ]
    if options is None or options.python is None or set(backends) <= {Backend.EMULATED, Backend.SIMULATED}:
        return []
    problem = "is for backend=simulated and backend=emulated; the others run in the Python of this program"
    hint = "Add one of them, or leave python out."
    return [Fault(key="python", found=str(options.python), problem=problem, hint=hint)]


def missing_engine(specs: Iterable[TrialSpec], backend: Backend, versions: Versions) -> list[Fault]:
    """Return the fault of trials of `backend` that run vLLM where it is not installed."""
    if versions.vllm is not None or not any(spec.use_vllm and spec.backend is backend for spec in specs):
        return []
    where = "the Python of the emulation" if backend is Backend.EMULATED else "this environment"
    return [
        Fault(
            key="use_vllm",
            found="true",
            problem=f"vLLM is not installed in {where}",
            hint='Run `pip install "trl[vllm]"` there, or use backend=simulated, which needs no vLLM.',
        )
    ]


def missing_deepspeed(specs: Iterable[TrialSpec], backend: Backend, versions: Versions) -> list[Fault]:
    """Return the fault of trials of `backend` that run DeepSpeed where it is not installed."""
    if versions.deepspeed is not None or not any(
        spec.distributed_type is DistributedType.DEEPSPEED and spec.backend is backend for spec in specs
    ):
        return []
    return [
        Fault(
            key="distributed_type",
            found="deepspeed",
            problem="DeepSpeed is not installed in the Python of the trials",
            hint="Run `DS_BUILD_OPS=0 pip install deepspeed` there.",
        )
    ]


def gpus_alike(visible: VisibleGpus) -> tuple[tuple[VisibleGpu, ...], str]:
    """Return the GPUs that equal the first, and a line about the others: one table is about one kind of card."""
    if not visible.gpus:
        return (), ""
    first = visible.gpus[0]
    alike = tuple(gpu for gpu in visible.gpus if (gpu.name, gpu.memory_bytes) == (first.name, first.memory_bytes))
    others = ", ".join(dict.fromkeys(gpu.name for gpu in visible.gpus if gpu not in alike))
    line = f"Only {first.name} is used, not {others}. Set CUDA_VISIBLE_DEVICES to choose." if others else ""
    return alike, line
