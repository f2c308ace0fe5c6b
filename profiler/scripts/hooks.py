"""Where a script is seen from outside: torch's global hooks, and calls of torch, transformers and trl."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from profiler.domain.memory import Phase
from profiler.scripts.phase_watch import PhaseWatch
from profiler.scripts.session import PhasesOnly
from profiler.seams.checked import owner_of, problem_of
from profiler.seams.libraries import SEAM_OF
from profiler.seams.patching import around_import, patched

Around = Callable[[PhaseWatch], AbstractContextManager[None]]


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


def follow(enter: Callable[[Phase], None]) -> None:
    """From here to the end of this process, call `enter` when a phase begins; also in processes that it forks."""
    watch = PhaseWatch(PhasesOnly(enter), steps=None, any_thread=True)
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
