"""Where a script is seen from outside: torch's global hooks, and calls of torch, transformers and trl."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import wraps
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any
from weakref import WeakSet, ref

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from profiler.allocator.histories.recorded import HeldCategories, KnownBlocks
from profiler.allocator.settings import AllocatorConfig
from profiler.domain.cards.card import cublas_workspace_bytes
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.readings import CategoryShare
from profiler.scripts.phase_watch import PhaseWatch
from profiler.scripts.session import PhasesOnly
from profiler.seams.checked import owner_of, problem_of
from profiler.seams.libraries import SEAM_OF
from profiler.seams.patching import around_import, patched

Around = Callable[[PhaseWatch], AbstractContextManager[None]]
NoteContent = Callable[[Phase, tuple[CategoryShare, ...]], None]


def _call_of(phase: Phase) -> Around:
    return lambda watch: watch.during(phase)


def _scores(watch: PhaseWatch) -> AbstractContextManager[None]:
    """Return the context of log-probabilities: without gradient they are scores."""
    return nullcontext() if torch.is_grad_enabled() else watch.during(Phase.SCORE)


Calls = Mapping[str, tuple[tuple[str, str, Around], ...]]

_CALLS: Calls = {
    "torch": (
        ("torch.autograd", "backward", PhaseWatch.backward),
        ("torch", "save", PhaseWatch.checkpoint),
    ),
    "transformers.generation.utils": (
        ("transformers.generation.utils:GenerationMixin", "generate", _call_of(Phase.ROLLOUT)),
    ),
    "transformers.modeling_utils": (
        ("transformers.modeling_utils:PreTrainedModel", "save_pretrained", PhaseWatch.checkpoint),
    ),
    "transformers.trainer": (
        ("transformers.trainer:Trainer", "evaluate", _call_of(Phase.EVALUATION)),
        ("transformers.trainer:Trainer", "predict", _call_of(Phase.EVALUATION)),
        ("transformers.trainer:Trainer", "_save_checkpoint", PhaseWatch.checkpoint),
    ),
    "trl.trainer.grpo_trainer": (
        ("trl.trainer.grpo_trainer:GRPOTrainer", "_calculate_rewards", _call_of(Phase.REWARD)),
    ),
}
"""Calls that are one phase as a whole, by the module whose import defines them: owner, name and phase."""

_ENGINE = "vllm.v1.worker.gpu_worker:Worker"
_TRANSFER = ("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update")
"""What a trainer in another process lets an engine do to give it weights."""
_ASYNCHRONOUS = "trl.experimental.async_grpo.weight_transfer:WeightTransferClient"

_CALLS_OF_PROCESSES: Calls = {
    "vllm.v1.worker.gpu_worker": (
        (_ENGINE, "load_model", _call_of(Phase.LOAD)),
        (_ENGINE, "determine_available_memory", _call_of(Phase.LOAD)),
        (_ENGINE, "compile_or_warm_up_model", _call_of(Phase.LOAD)),
        (_ENGINE, "execute_model", _call_of(Phase.ROLLOUT)),
        (_ENGINE, "sample_tokens", _call_of(Phase.ROLLOUT)),
        (_ENGINE, "wake_up", _call_of(Phase.SYNC)),
        *((_ENGINE, name, _call_of(Phase.SYNC)) for name in _TRANSFER),
    ),
    "trl.generation.vllm_generation": (
        ("trl.generation.vllm_generation:VLLMGeneration", "generate", _call_of(Phase.ROLLOUT)),
        ("trl.generation.vllm_generation:VLLMGeneration", "sync_weights", _call_of(Phase.SYNC)),
    ),
    "trl.experimental.async_grpo.weight_transfer": (
        (_ASYNCHRONOUS, "init_weight_transfer", _call_of(Phase.SYNC)),
        (_ASYNCHRONOUS, "send_weights", _call_of(Phase.SYNC)),
    ),
    "verl.workers.engine_workers": (
        ("verl.workers.engine_workers:TrainingWorker", "infer_batch", _call_of(Phase.SCORE)),
        ("verl.workers.engine_workers:ActorRolloutRefWorker", "update_weights", _call_of(Phase.SYNC)),
    ),
    "verl.workers.rollout.vllm_rollout.utils": (
        (
            "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension",
            "update_weights_from_ipc",
            _call_of(Phase.SYNC),
        ),
    ),
}
"""Calls of the processes of a command: of an engine, of a trainer with one, and of those that verl starts."""

_CALLS_OF_A_TRAINER: Calls = {
    "trl.trainer.grpo_trainer": (
        ("trl.trainer.grpo_trainer:GRPOTrainer", "_generate", _call_of(Phase.ROLLOUT)),
        ("trl.trainer.grpo_trainer:GRPOTrainer", "_get_per_token_logps_and_entropies", _scores),
    ),
}
"""Calls of a trainer whose other models are not seen: a reference, or vLLM."""


@dataclass(frozen=True, kw_only=True)
class Unseen:
    """Calls that this version of a library does not have as expected, so that their phase is not recognised."""

    sentences: list[str]


@contextmanager
def watched(
    watch: PhaseWatch, *, models: Iterable[Any] | None = None, calls_of: Sequence[Calls] = ()
) -> Iterator[Unseen]:
    """While active, `watch` is notified of what the script does. Libraries are patched when the script imports them.

    Args:
        watch: Is notified.
        models: The only modules whose passes are seen, for a trainer: hooks of all modules take a share of the time of
            decoding. None sees every module.
        calls_of: More calls that are a phase as a whole.
    """
    unseen = Unseen(sentences=[])
    calls_of = [_CALLS, *calls_of] if models is None else [_CALLS, _CALLS_OF_A_TRAINER, *calls_of]
    with ExitStack() as stack:
        for handle in (*_module_hooks(watch, models), *_optimizer_hooks(watch)):
            stack.callback(handle.remove)
        stack.enter_context(_clipping(watch))
        stack.enter_context(_known_parameters(watch))
        for module, calls in ((module, calls) for each in calls_of for module, calls in each.items()):

            def wrap(_module: ModuleType | None = None, calls: tuple[tuple[str, str, Around], ...] = calls) -> None:
                for owner, name, around in calls:
                    _wrap(stack, unseen, watch, owner, name, around)

            if module in sys.modules:
                wrap()
            else:
                stack.callback(around_import(module, after=wrap))
        yield unseen


def follow(
    enter: Callable[[Phase], None],
    note: NoteContent | None = None,
    *,
    steps: int | None = None,
    step_done: Callable[[int], None] = lambda _: None,
) -> None:
    """From here to the end of this process, call `enter` when a phase begins; also in processes that it forks.

    Args:
        enter: Is called with the phase.
        steps: Optimizer steps after which the process ends; None for no end.
        step_done: Is called with the number of each optimizer step that is over.
        note: Is called at the end of a phase with what torch held of the current card at its peak, by category; None
            records nothing.
    """
    if note is not None:
        enter = _Contents(enter, note).enter
    watch = PhaseWatch(PhasesOnly(enter, step_done), steps=steps, any_thread=True)
    os.register_at_fork(after_in_child=watch.move_here)
    context = watched(watch, calls_of=[_CALLS_OF_PROCESSES])
    context.__enter__()
    _FOLLOWED.append(context)


_FOLLOWED: list[AbstractContextManager[Unseen]] = []
"""Kept: a context that is collected is left."""


def _wrap(stack: ExitStack, unseen: Unseen, watch: PhaseWatch, owner: str, name: str, around: Around) -> None:
    """Run a function of a library within the phase that it is."""
    seam = SEAM_OF[f"{owner}.{name}"]
    if problem := problem_of(seam):
        unseen.sentences.append(f"{seam.why}: {seam.key} {problem}")
        return
    place = owner_of(owner)
    call = getattr(place, name)

    @wraps(call)
    def within(*arguments: Any, **named: Any) -> Any:
        with around(watch):
            return call(*arguments, **named)

    @wraps(call)
    async def within_await(*arguments: Any, **named: Any) -> Any:
        with around(watch):
            return await call(*arguments, **named)

    found = within_await if iscoroutinefunction(call) else within
    stack.enter_context(patched([(place, name, found)]))


def _module_hooks(watch: PhaseWatch, models: Iterable[Any] | None) -> list[Any]:
    """Register hooks of every module, or of `models`."""

    def pass_begins(module: Any, _arguments: Any) -> None:
        if not torch.compiler.is_compiling():
            watch.pass_begins(module, with_gradient=torch.is_grad_enabled())

    def pass_ends(_module: Any, _arguments: Any, found: Any) -> None:
        if not torch.compiler.is_compiling():
            watch.pass_ends(failed=found is None)

    if models is None:
        return [
            register_module_forward_pre_hook(pass_begins),
            register_module_forward_hook(pass_ends, always_call=True),
        ]
    return [
        handle
        for model in models
        for handle in (
            model.register_forward_pre_hook(pass_begins),
            model.register_forward_hook(pass_ends, always_call=True),
        )
    ]


def _optimizer_hooks(watch: PhaseWatch) -> list[Any]:
    """Register hooks of every optimizer."""

    def step_begins(optimizer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        closure = named.get("closure") or next(iter(arguments[1:]), None)
        if not callable(closure):
            watch.step_begins(optimizer)
            return None
        # Lightning, for one, trains in the closure: the step begins when it has run.
        run = watch.before_update(closure)
        return (
            ((arguments[0], run, *arguments[2:]), named)
            if "closure" not in named
            else (arguments, {**named, "closure": run})
        )

    return [
        register_optimizer_step_pre_hook(step_begins),
        register_optimizer_step_post_hook(lambda *_: watch.step_ends()),
    ]


def _clipping(watch: PhaseWatch) -> AbstractContextManager[None]:
    """Let the optimizer phase begin where gradients are clipped, as in a trial."""

    def first(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def within(*arguments: Any, **named: Any) -> Any:
            watch.step_begins(None)
            return call(*arguments, **named)

        return within

    place = torch.nn.utils
    return patched([(place, name, first(getattr(place, name))) for name in ("clip_grad_norm_", "clip_grad_value_")])


def _known_parameters(watch: PhaseWatch) -> AbstractContextManager[None]:
    """Let `watch` know which parameters an optimizer has, so that an evaluation differs from a reference model."""
    add = torch.optim.Optimizer.add_param_group

    @wraps(add)
    def add_param_group(self: Any, param_group: Any) -> None:
        add(self, param_group)
        watch.is_trained(self.param_groups[-1]["params"])

    return patched([(torch.optim.Optimizer, "add_param_group", add_param_group)])


# ---- what is held at the peak of a phase -----------------------------------------------------------------------------


class _Contents:
    """Records torch's requests from its first one on, and says at the end of a phase what was held at its peak.

    The recorder of torch is passive: it changes no request. A forked process has no card of its parent's.
    """

    def __init__(self, enter: Callable[[Phase], None], note: NoteContent) -> None:
        self._enter, self._note = enter, note
        self._phase, self._records = Phase.LOAD, False
        self._held = HeldCategories(AllocatorConfig())
        self._models: list[ref[Any]] = []
        self._modules: WeakSet[Any] = WeakSet()
        self._optimizers: WeakSet[Any] = WeakSet()
        register_module_forward_pre_hook(self._called)
        register_optimizer_step_pre_hook(lambda optimizer, *_: self._optimizers.add(optimizer))
        os.register_at_fork(after_in_child=self._forget)
        torch.cuda._lazy_call(self._record)  # type: ignore[no-untyped-call]

    def _called(self, module: Any, _arguments: Any) -> None:
        """Know a module that no known one contains."""
        if not torch.compiler.is_compiling() and module not in self._modules:
            self._modules.update(module.modules())
            self._models.append(ref(module))

    def _forget(self) -> None:
        self._records = False

    def _record(self) -> None:
        self._records = True
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python", clear_history=True)

    def enter(self, phase: Phase) -> None:
        """Say what the phase that ends held, and begin the next one."""
        if self._records:
            try:
                self._say()
            except Exception as error:  # whatever it is, it is not the program's
                self._records = False
                with suppress(Exception):
                    torch.cuda.memory._record_memory_history(enabled=None)
                problem = f"{type(error).__name__}: {error}"
                sys.stderr.write(f"What this process holds by category is not known from here on: {problem}\n")
        self._phase = phase
        self._enter(phase)

    def _say(self) -> None:
        entries = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
        self._record()
        self._note(self._phase, self._held.read(entries, self._phase, self._known()))

    def _known(self) -> KnownBlocks:
        models = [model for model in (each() for each in self._models) if model is not None]
        trained = {
            id(parameter) for each in self._optimizers for group in each.param_groups for parameter in group["params"]
        }
        found: dict[tuple[int, int], Category] = {}
        shapes: set[int] = set()
        for model in models:
            parameters = list(model.parameters())
            scores = bool(trained) and not any(id(each) in trained for each in parameters)
            for tensor in (*parameters, *model.buffers()):
                _note_storage(found, tensor, Category.REFERENCE if scores else Category.WEIGHTS)
                _note_storage(found, tensor.grad, Category.GRADIENTS)
            shapes.update(size for each in parameters for size in _gradient_bytes(each))
        for value in (value for each in self._optimizers for state in each.state.values() for value in state.values()):
            _note_storage(found, value, Category.OPTIMIZER_STATE)
        return KnownBlocks(
            categories=found,
            gradient_bytes=frozenset(shapes),
            row_bytes=frozenset(size for model in models for size in _row_bytes(model)),
            workspace_bytes=cublas_workspace_bytes(torch.cuda.get_device_capability(), torch.__version__),
        )


def _note_storage(found: dict[tuple[int, int], Category], tensor: Any, category: Category) -> None:
    """Note the storage of a tensor; one of the host has an address that no card has."""
    if isinstance(tensor, torch.Tensor):
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = local.untyped_storage()
        found.setdefault((storage.data_ptr(), storage.nbytes()), category)


def _gradient_bytes(parameter: Any) -> Iterator[int]:
    """Yield the sizes of whole gradients of a parameter, or of those that FSDP 1 has made one, in two or four bytes."""
    parts = [shape.numel() for shape in getattr(parameter, "_shapes", (parameter.shape,))]
    for values in {sum(parts), *parts}:
        yield from (2 * values, 4 * values)


def _row_bytes(model: Any) -> Iterator[int]:
    """Yield the bytes of one row of a language model's logits, in two or four bytes."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    width = getattr(text, "vocab_size", None)
    yield from (2 * width, 4 * width) if isinstance(width, int) else ()
