"""Constraints of commands that ask whether a trial fits its card: it has to have one."""

from functools import partial

from profiler.constraints.constraint import Constraint, Where
from profiler.domain.trials.trial import Backend

_card = partial(Constraint, Where.CARD)

CARDS = (
    _card(
        {"backend": Backend.CPU},
        "has no card, and the question is whether the trial fits its card",
        "Leave backend out.",
    ),
    _card(
        {"gpu": None, "backend": Backend.CUDA},
        "is the whole card of the machine, which only a sweep looks for",
        "Name a card, such as gpu=h100-80gb.",
    ),
)
