"""What is assumed where a file has a key of trl and does not state its value."""

from collections.abc import Mapping

from profiler.config.notes import Note
from profiler.config.options.reading import show
from profiler.config.trials.specification import DEFAULT_LORA_RANK
from profiler.config.trl.arguments.keys import KEY_OF, NEUTRAL_VALUES
from profiler.config.trl.config import PEFT_TARGETS, TRL_DEFAULTS
from profiler.domain.trials.trial import key_named

_DEFAULTS: Mapping[str, object] = {
    **TRL_DEFAULTS,
    "lora_rank": DEFAULT_LORA_RANK,
    "lora_target_modules": PEFT_TARGETS,
}

_LEFT_OUT = ("load_in_4bit", "use_peft", "generation_batch_size", "deepspeed", "fsdp")
"""Keys that are off where they are absent."""


def assumed_note(key: str, why: str) -> Note | None:
    """Return the note of an open value; None for a key that changes no memory."""
    if key in KEY_OF:
        name = KEY_OF[key]
        default = _DEFAULTS.get(name, key_named(name).default)
        return Note(key=name, text=f"{name}={show(default)} ({why})")
    if key in NEUTRAL_VALUES:
        return Note(key="", text=f"{key}={show((*NEUTRAL_VALUES[key], None)[0])} ({why})")
    return Note(key="", text=f"no {key} ({why})") if key in _LEFT_OUT else None
