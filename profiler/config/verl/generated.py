"""The keys of verl's generated configurations with their defaults: facts, of verl 0.8.0.dev (b178a3c, 2026-01-29).

Source: `verl/trainer/config/_generated_ppo_trainer.yaml` and `_generated_ppo_megatron_trainer.yaml` of
https://github.com/volcengine/verl. They are data, in `defaults.json`: by section, and those that both have first. null
is also a default that refers to another key. Left out: sections of profilers and of Ray, and names of classes.
"""

import json
from collections.abc import Mapping
from pathlib import Path

VERL_VERSION = "0.8.0.dev"

Sections = Mapping[str, Mapping[str, object]]

_DEFAULTS: Mapping[str, Sections] = json.loads(Path(__file__).with_name("defaults.json").read_text(encoding="utf-8"))


def _by_key(*parts: str) -> dict[str, object]:
    """Return the defaults of some parts of the file as ``section.key``."""
    sections = (section for part in parts for section in _DEFAULTS[part].items())
    return {f"{name}.{key}": default for name, keys in sections for key, default in keys.items()}


FSDP_DEFAULTS: Mapping[str, object] = _by_key("both", "fsdp")
"""Defaults of `ppo_trainer`, which trains with FSDP."""

MEGATRON_DEFAULTS: Mapping[str, object] = _by_key("both", "megatron")
"""Defaults of `ppo_megatron_trainer`."""
