"""Rollout by vLLM in the process that trains: trl's colocate mode, unchanged."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from trl.generation import vllm_generation

from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.trials.trial import TrialSpec, Weights
from profiler.seams.patching import patched

_WITHOUT_REPORTS = {"VLLM_NO_USAGE_STATS": "1"}
_WITHOUT_FLASHINFER = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
"""vLLM's sampler by torch: it looks for flashinfer, which is in its requirements and need not be installed."""


_TOO_LITTLE_FREE = "less than desired GPU memory utilization"
_NO_CACHE = ("No available memory for the cache blocks", "To serve at least one request")
"""Parts of the ValueErrors of an engine that cannot start: next to the trainer, or in its own part of the card."""


def engine_arguments(spec: TrialSpec) -> Mapping[str, Any]:
    """Return trl's arguments of vLLM, of the same names as the keys of the trial.

    The specification decides the lengths of completions, so no token ends one.
    """
    return {
        "use_vllm": True,
        "vllm_mode": str(spec.vllm_mode),
        "vllm_gpu_memory_utilization": spec.vllm_gpu_memory_utilization,
        "vllm_enable_sleep_mode": spec.vllm_enable_sleep_mode,
        "vllm_max_model_length": spec.vllm_max_model_length,
        "vllm_tensor_parallel_size": spec.vllm_tensor_parallel_size,
        "vllm_model_impl": str(spec.vllm_model_impl),
        "generation_kwargs": {"ignore_eos": True},
    }


class VllmRollout:
    """trl's generation by vLLM, with an engine of random weights where the trial has random weights."""

    def __init__(self, spec: TrialSpec) -> None:
        self._spec = spec

    def arguments(self) -> Mapping[str, Any]:
        """Return trl's arguments of vLLM."""
        return engine_arguments(self._spec)

    @contextmanager
    def starting(self, *, model: Any, tokenizer: Any, folder: Path) -> Iterator[None]:
        """While active, trl's trainer can start vLLM without a download."""
        for name, value in _environment().items():
            os.environ.setdefault(name, value)
        try:
            with self._weights(model, tokenizer, folder):
                yield
        except ValueError as error:
            raise _refusal(error) from error

    def _weights(self, model: Any, tokenizer: Any, folder: Path) -> AbstractContextManager[None]:
        """Return the context in which vLLM has the weights of the trial."""
        if self._spec.weights is Weights.PRETRAINED:
            return nullcontext()
        model.name_or_path = str(_written(model, tokenizer, folder / "engine"))
        return patched([(vllm_generation, "LLM", partial(vllm_generation.LLM, load_format="dummy"))])

    def generating(self, model: Any) -> AbstractContextManager[None]:
        """Do nothing."""
        del model
        return nullcontext()


def _refusal(error: ValueError) -> Exception:
    """Return what an error of vLLM's start means for the trial; the error itself if it is another one."""
    message = str(error)
    if _TOO_LITTLE_FREE in message:
        return torch.OutOfMemoryError(f"vLLM did not start: {message}")
    if any(words in message for words in _NO_CACHE):
        return UnsupportedTrialError(f"vLLM did not start: {message}")
    return error


def _environment() -> Mapping[str, str]:
    """Return the variables that vLLM and trl read, for those that are not set."""
    of_vllm = _WITHOUT_REPORTS if find_spec("flashinfer") else {**_WITHOUT_REPORTS, **_WITHOUT_FLASHINFER}
    return {**of_vllm, "MASTER_PORT": str(_free_port())}


def _free_port() -> int:
    """Return a port that is free: trl would take 29500 if it is, so two trials that start together would collide."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _written(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Write what vLLM reads of a model: its `config.json` and its tokenizer."""
    folder.mkdir()
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
