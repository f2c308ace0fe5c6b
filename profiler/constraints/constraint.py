"""One row of the table of constraints, and how a trial is compared with it."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any

from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import Fault
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Attention, TrialSpec, key_named


class Where(StrEnum):
    """Which commands refuse what breaks a constraint."""

    EVERYWHERE = "everywhere"
    """All of them: trl or a library under it refuses it too, or nobody has constructed it."""
    SWEEP = "sweep"
    """A sweep; the closed form counts it. `solve` and `advise` do not confirm it by a simulation."""
    CLOSED_FORM = "closed form"
    """`estimate`, `solve` and `advise`; a sweep may run it."""
    CARD = "card"
    """`solve` of a key and `advise`, which ask whether a trial fits its card."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One trial that a command is asked about."""

    spec: TrialSpec
    architecture: Architecture | None
    """The model; None if it is not known."""
    adapts_experts: bool = False
    """Whether adapters are on the experts of a mixture; the formulas of adapters say so."""
    has_wide_states: bool = False
    """Whether a tensor that is trained in bfloat16 has states in 32 bits in an optimizer of 8; the formulas say so."""
    counts_adapters: bool = True
    """Whether there are formulas for the adapters."""

    @property
    def model(self) -> Architecture:
        """The model, for constraints with a condition on it (`Constraint.model`)."""
        assert self.architecture is not None
        return self.architecture


Predicate = Callable[[Any], object]
"""Whether a value is one that breaks a constraint; any true value."""

Text = str | Callable[[Case], str]
"""A text in which ``{spec.KEY}`` and ``{model.FIELD}`` stand for values of the trial, or how it is made."""


def stated(value: object) -> bool:
    """Hold for every value but null and an empty list."""
    return value is not None and value != ()


def anything(_: object) -> bool:
    """Hold for every value: the condition on the key is in `Constraint.when`."""
    return True


def above(limit: float) -> Predicate:
    """Return a condition that holds for larger numbers."""
    return lambda value: value is not None and value > limit


def one_of(*values: object) -> Predicate:
    """Return a condition that holds for some values."""
    return lambda value: value in values


def other_than(*values: object) -> Predicate:
    """Return a condition that holds for all values but some."""
    return lambda value: value not in values


def has_tower(architecture: Architecture) -> bool:
    """Hold for a model with a vision tower."""
    return architecture.vision is not None


@dataclass(frozen=True)
class Constraint:
    """One combination of keys that is refused.

    It is skipped where one of its keys already has a fault, or has no meaning in the recipe of the trial.
    """

    where: Where
    values: Mapping[str, object]
    """The keys that it reads, each with the value that breaks it or a condition. The sentence begins with the first."""
    problem: Text
    hint: Text = ""
    _: KW_ONLY
    model: Predicate | None = None
    """A condition on the architecture, if it reads more of the model than its name; false where that is not known."""
    when: Callable[[Case], object] = anything
    """A condition on several keys."""
    found: Text | None = None
    """What to show as the value of the first key, if that is not the value as a user types it."""

    def is_about(self, recipe: Recipe) -> bool:
        """Return whether a recipe has all of the keys."""
        return all(recipe in key_named(key).recipes for key in self.values)

    def is_broken(self, case: Case) -> bool:
        """Return whether the trial is refused."""
        if self.model is not None and (case.architecture is None or not self.model(case.architecture)):
            return False
        for key, predicate in self.values.items():
            value = getattr(case.spec, key)
            if not (predicate(value) if callable(predicate) else value == predicate):
                return False
        return bool(self.when(case))

    def fault(self, case: Case) -> Fault:
        """Return the sentence for a trial that breaks it."""
        key = next(iter(self.values))
        found = _typed(getattr(case.spec, key)) if self.found is None else _text(self.found, case)
        return Fault(key=key, found=found, problem=_text(self.problem, case), hint=_text(self.hint, case))


def _text(text: Text, case: Case) -> str:
    return text.format(spec=case.spec, model=case.architecture) if isinstance(text, str) else text(case)


def _typed(value: object) -> str:
    """Return a value as a user types it; names of a list are joined by commas."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _cannot_split_rows(case: Case) -> bool:
    """Return whether a trial does not run with its `cp_size`."""
    spec, size = case.spec, case.spec.cp_size or 1
    is_tried = spec.recipe is Recipe.SFT and spec.fsdp_version == 2 and spec.attn_implementation is Attention.SDPA
    return not is_tried or spec.num_processes % size != 0 or (spec.max_length or 0) % (2 * size) != 0


SPLIT_ROWS = Constraint(
    Where.EVERYWHERE,
    {"cp_size": above(1), "recipe": anything},
    "splits each row over GPUs, which trl's GRPO and RLOO refuse; recipe=sft does so with fsdp_version=2 and "
    "attn_implementation=sdpa, if cp_size divides num_processes, and twice as much max_length",
    "Set cp_size=1.",
    when=_cannot_split_rows,
)
"""Source: `GRPOConfig.__post_init__` of trl 1.16, `_prepare_context_parallel_inputs` of transformers 5.23.

Ring attention gives each GPU two parts of a row, one from each end.
"""
