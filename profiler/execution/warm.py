"""The warmed process that workers are forked from: what is slow to import is imported once."""

import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from types import ModuleType

from profiler.execution.child import run_child
from profiler.execution.job import WorkerJob
from profiler.measurement.visible import capability_environment, visible_gpus

PRELOAD = ("profiler.worker_imports",)
"""Modules that the warmed process imports, by name: the parent itself must not import torch."""


def warm_up(preload: Sequence[str], *, jobs: int) -> None:
    """Start the warmed process, if there is none yet; it imports `preload` while the caller goes on.

    A module that cannot be imported is left for the worker to complain about.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(preload))
    with _environment(_warm_environment(jobs)), _main_module_hidden():
        forkserver.ensure_running()


def start_process(job: WorkerJob, target: str, *, jobs: int) -> BaseProcess:
    """Fork a worker for `job` from the warmed process and start it. Waits for the warm-up if need be."""
    process = multiprocessing.get_context("forkserver").Process(
        target=run_child, args=(job, target), name=f"trial-{job.trial.trial_id}"
    )
    with _environment(_worker_environment(jobs)), _main_module_hidden():
        process.start()
    return process


def _warm_environment(jobs: int) -> Mapping[str, str]:
    """Variables of the warmed process: those of a worker, and what its imports would else ask CUDA for."""
    return {**_worker_environment(jobs), **capability_environment(visible_gpus().gpus)}


def _worker_environment(jobs: int) -> Mapping[str, str]:
    """Variables that must stand before torch and tokenizers are imported, unless the user has set them."""
    threads = max(1, len(os.sched_getaffinity(0)) // jobs)
    return {
        # bitsandbytes asks for CUDA at import: without this, that touches CUDA before the fork, and CUDA does not
        # survive a fork.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
    }


@contextmanager
def _environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """`os.environ` with `defaults` added where they are missing, for as long as the block runs."""
    added = [name for name in defaults if name not in os.environ]
    os.environ.update({name: defaults[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Without the parent's main module: multiprocessing would import it again in every worker, for nothing."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
