"""The phases of a script, from what is seen of it: passes of modules, backward passes, steps of optimizers, and calls.

A phase lasts until the next one is seen. What a script does between two of them, such as copying a batch to the card,
belongs to the earlier one.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from profiler.domain.memory import Phase
from profiler.scripts.session import ScriptSession

_TRAINING = frozenset({Phase.ROLLOUT, Phase.SCORE, Phase.REWARD, Phase.FORWARD, Phase.BACKWARD})
"""Phases that begin another optimizer step. Evaluation and checkpoints after a step belong to what it caused."""


class EndOfStepsError(SystemExit):
    """Ends the script after its optimizer steps, as `sys.exit(0)` would: through `finally` and exit handlers."""

    def __init__(self) -> None:
        super().__init__(0)


class PhaseWatch:
    """Recognises phases and steps of the thread that made it, or of one that works alone, and notifies a session."""

    def __init__(self, session: ScriptSession, *, steps: int | None, any_thread: bool = False) -> None:
        """Begin with loading.

        Args:
            session: Is notified.
            steps: Optimizer steps after which `EndOfStepsError` is raised in the main thread; None for no end.
            any_thread: Watch the thread that begins to work while no other one is in a pass or call: actors of Ray with
                `async` methods run all of them outside of the main thread.
        """
        self._session, self._steps, self._any_thread = session, steps, any_thread
        self._place = self._here()
        self._phase = Phase.LOAD
        self._within = False
        """Whether a call runs that is one phase as a whole."""
        self._depth = 0
        """Modules that run within each other, outside of such calls."""
        self._before_pass: Phase | None = None
        """The phase that a pass without gradient interrupts."""
        self._has_stepped = self._stepped_in_backward = self._has_optimizer = False
        self._trained: set[int] = set()
        self._models: WeakSet[Any] = WeakSet()
        self._models_with_gradient: WeakSet[Any] = WeakSet()
        self._optimizers: WeakSet[Any] = WeakSet()
        self.steps_run = self.backwards_run = 0
        self.has_ended_script = False
        """Whether `EndOfStepsError` was raised; a script may let it end the program in its own way."""
        session.enter(Phase.LOAD)

    @staticmethod
    def _here() -> tuple[int, int]:
        return os.getpid(), threading.get_ident()

    @property
    def _is_not_watched(self) -> bool:
        here = self._here()
        if self._any_thread and here[0] == self._place[0] and not self._within and not self._depth:
            self._place = here
        return here != self._place

    def move_here(self) -> None:
        """Watch this thread from here on, such as that of a forked process, which begins with loading."""
        self._place = self._here()
        self._within, self._depth, self._before_pass = False, 0, None
        self._enter(Phase.LOAD)

    def finish(self) -> None:
        """Take note that the script is over."""
        self._end_step()

    # ---- calls that are one phase as a whole -------------------------------------------------------------------------

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """The context of a call that is `phase` as a whole, whatever it calls."""
        if self._within or self._is_not_watched:
            yield
            return
        self._enter(phase)
        self._within = True
        try:
            yield
        finally:
            self._within = False

    @contextmanager
    def backward(self) -> Iterator[None]:
        """The context of a backward pass. Optimizers that step in hooks of gradients are part of it."""
        if self._within or self._is_not_watched:
            yield
            return
        with self.during(Phase.BACKWARD):
            yield
        self.backwards_run += 1
        if self._stepped_in_backward:
            self._stepped_in_backward = False
            self._enter(Phase.OPTIMIZER)
            self._has_stepped = True

    def checkpoint(self) -> Any:
        """The context of writing a file. What is written before training begins is part of loading."""
        return self.during(Phase.LOAD if self._phase is Phase.LOAD else Phase.CHECKPOINT)

    # ---- passes of modules -------------------------------------------------------------------------------------------

    def pass_begins(self, module: Any, *, with_gradient: bool) -> None:
        """Take note that a module is called."""
        if self._within or self._is_not_watched:
            return
        self._depth += 1
        first = next(module.parameters(), None) if self._depth == 1 else None
        if first is None:  # within another module, or a function in the form of a module
            return
        if module not in self._models:
            self._models.add(module)
            self._session.model_found(module)
        if with_gradient:
            if module not in self._models_with_gradient:
                self._models_with_gradient.add(module)
                self._session.model_trained(module)
            self._trained.add(id(first))
            self._resume(Phase.FORWARD)
            return
        if self._phase is Phase.FORWARD:
            self._before_pass = Phase.FORWARD
        evaluated = not module.training and any(id(each) in self._trained for each in module.parameters())
        self._resume(Phase.EVALUATION if evaluated else Phase.SCORE)

    def pass_ends(self, *, failed: bool) -> None:
        """Take note that the call of a module is over."""
        if self._within or self._is_not_watched:
            return
        self._depth -= 1
        if self._depth == 0 and self._before_pass is not None:
            before, self._before_pass = self._before_pass, None
            if not failed:
                self._resume(before)

    # ---- optimizers --------------------------------------------------------------------------------------------------

    def is_trained(self, parameters: Any) -> None:
        """Take note of parameters that an optimizer has."""
        self._has_optimizer = True
        self._trained.update(id(parameter) for parameter in parameters)

    def step_begins(self, optimizer: Any) -> None:
        """Take note that an optimizer begins its step, or that the gradients are clipped for it.

        A script without an optimizer updates its parameters itself: it has made a step where it clips their gradients.
        """
        if self._is_not_watched:
            return
        if optimizer is not None and optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self._session.optimizer_found(optimizer)
        if not self._within:
            self._resume(Phase.OPTIMIZER)
            self._has_stepped = self._has_stepped or not self._has_optimizer

    def step_ends(self) -> None:
        """Take note that an optimizer has made its step. Steps without a pass between them count as one."""
        if self._is_not_watched:
            return
        if self._phase is Phase.BACKWARD and self._within:
            self._stepped_in_backward = True
        elif not self._within:
            self._has_stepped = True

    def before_update(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """Return a closure of an optimizer's step, after which the step itself begins."""

        def run(*arguments: Any, **named: Any) -> Any:
            found = closure(*arguments, **named)
            self.step_begins(None)
            return found

        return run

    # ---- phases ------------------------------------------------------------------------------------------------------

    def _resume(self, phase: Phase) -> None:
        if phase is not self._phase:
            self._enter(phase)

    def _enter(self, phase: Phase) -> None:
        if phase is not Phase.OPTIMIZER:
            self._end_step()
        is_over = self._steps is not None and self.steps_run >= self._steps and phase in _TRAINING
        if is_over and threading.current_thread() is threading.main_thread():
            self.has_ended_script = True
            raise EndOfStepsError
        self._phase = phase
        self._session.enter(phase)

    def _end_step(self) -> None:
        if self._has_stepped:
            self._has_stepped = False
            self.steps_run += 1
            self._session.step_done(self.steps_run)
