"""The label of a trial in tables, in parts, so that nothing has to be read from its text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from profiler.domain.trial import key_named

_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_./:\-]+")


@dataclass(frozen=True, kw_only=True)
class Label:
    """A method and the keys in which trials of that method differ."""

    method: str
    """``"LoRA + checkpointing"``."""
    keys: Mapping[str, object]
    """Values of the keys that the label states, in the order of the specification."""

    @property
    def text(self) -> str:
        """The label as one text: ``"LoRA + checkpointing, num_generations=8"``."""
        return ", ".join([self.method, *(f"{key}={value_text(value)}" for key, value in self.keys.items())])

    @property
    def numbers(self) -> Mapping[str, float]:
        """Values of the numeric keys that the label states: the axes along which the trial can be placed."""
        return {
            key: value
            for key, value in self.keys.items()
            if isinstance(value, int | float) and key_named(key).is_numeric
        }

    def without(self, *keys: str) -> "Label":
        """Return the label without some keys: what a curve along these keys is called."""
        return Label(method=self.method, keys={key: value for key, value in self.keys.items() if key not in keys})


def value_text(value: object) -> str:
    """Return a value as labels show it; different values have different texts."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "+".join(value_text(item) for item in value)
    if not isinstance(value, str):
        return repr(value)
    # Quoted where it could be read as something else.
    return str(value) if _PLAIN_TEXT.fullmatch(value) and value != "none" else repr(str(value))
