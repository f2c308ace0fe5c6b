"""Rollout by vLLM in the process that trains: trl's colocate mode, and its memory without vLLM.

vLLM's memory without vLLM: blocks of the sizes that its own accounting gives, for a simulated GPU.

trl's `VLLMGeneration` stays what it is, with its order of synchronising weights, waking the engine and putting it to
sleep. Only the engine in it is replaced.
"""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from profiler.analytical.explanation.engine_start import engine_start_text
from profiler.analytical.formulas.vllm_memory import VllmMemory, vllm_memory
from profiler.config.models.architecture import read_architecture
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Category
from profiler.domain.trials.trial import TrialSpec, Weights
from profiler.seams.patching import patched
from profiler.training.placement import Placement

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

    def generating(self, model: Any, *, evaluates: bool = False) -> AbstractContextManager[None]:
        """Do nothing."""
        del model, evaluates
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


_TOKEN = 2
"""The token of every completion; memory does not depend on it."""

WEIGHTS, KV_CACHE = "weights", "kv_cache"
"""vLLM's names of what sleeps."""


class VllmBlocks:
    """What trl calls of vLLM's `LLM`, with one block of memory per part of the engine."""

    def __init__(self, parts: VllmMemory, placement: Placement) -> None:
        self._parts = parts
        self._placement = placement
        self._awake: dict[str, torch.Tensor] = {}
        self._sizes = {WEIGHTS: int(parts.weights + parts.state), KV_CACHE: int(parts.kv_cache)}
        self._buffers = self._block(int(parts.buffers))  # they do not sleep
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=self))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))
        self.wake_up(tags=[WEIGHTS])
        self._run()
        self.wake_up(tags=[KV_CACHE])

    def wake_up(self, tags: Iterable[str]) -> None:
        """Take the memory of parts that sleep."""
        for tag in tags:
            if tag not in self._awake:
                self._awake[tag] = self._block(self._sizes[tag])

    def sleep(self, level: int) -> None:
        """Return the memory of weights and cache to the driver; at level 1 the host keeps the weights."""
        del level
        self._awake.clear()
        torch.cuda.empty_cache()

    def generate(self, prompts: Iterable[Any], *, tokens: int) -> list[list[int]]:
        """Return completions of `tokens` tokens."""
        self._run()
        return [[_TOKEN] * tokens for _ in prompts]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy weights into the engine's own, which takes no memory."""
        for _ in weights:
            pass

    def reset_prefix_cache(self) -> None:
        """Do nothing."""

    def _run(self) -> None:
        """Run a forward: its activations exist for as long as it takes."""
        self._block(int(self._parts.activations))

    def _block(self, size_bytes: int) -> torch.Tensor:
        with self._placement.attributed(Category.ENGINE):
            return torch.empty(size_bytes, dtype=torch.uint8, device=self._placement.device)


class BlockRollout:
    """trl's generation by vLLM, with `VllmBlocks` in place of the engine."""

    def __init__(self, spec: TrialSpec, placement: Placement) -> None:
        self._spec = spec
        self._placement = placement

    def arguments(self) -> Mapping[str, Any]:
        """Return trl's arguments of vLLM."""
        return engine_arguments(self._spec)

    def starting(self, *, model: Any, tokenizer: Any, folder: Path) -> AbstractContextManager[None]:
        """While active, trl's trainer starts the blocks in place of vLLM."""
        del tokenizer, folder
        config = self._placement.whole_config or model.config.to_dict()
        architecture = read_architecture(config, model=self._spec.model)
        parts = vllm_memory(self._spec, architecture)
        refusal = engine_start_text(self._spec, architecture)
        if refusal:
            raise UnsupportedTrialError(refusal)
        return patched([(grpo_trainer, "VLLMGeneration", _generation_of(parts, self._placement))])

    def generating(self, model: Any, *, evaluates: bool = False) -> AbstractContextManager[None]:
        """Do nothing."""
        del model, evaluates
        return nullcontext()


def _generation_of(parts: VllmMemory, placement: Placement) -> type[VLLMGeneration]:
    """Return trl's class with an engine of blocks."""

    class BlockGeneration(VLLMGeneration):
        def _init_vllm(self) -> None:
            self.llm = VllmBlocks(parts, placement)
            if self.enable_sleep_mode:
                self.llm.sleep(level=2)
            self._llm_weights_sleeping = self.enable_sleep_mode

        def generate(self, prompts: list[list[int]], *_: Any, **__: Any) -> tuple[Any, ...]:
            if self._llm_weights_sleeping:
                self.sync_weights()
            self.llm.wake_up(tags=[KV_CACHE])
            completions = self.llm.generate(prompts, tokens=self.max_completion_length)
            if self.enable_sleep_mode:
                self.llm.sleep(level=2)
                self._llm_weights_sleeping = True
            return prompts, completions, [[[0.0]] * len(ids) for ids in completions], None

    return BlockGeneration
