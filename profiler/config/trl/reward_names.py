"""Which rewards of a recipe are models: hub ids, folders, and names with the size of a model.

trl's own script takes names of functions in `reward_funcs` and a model in `reward_model_name_or_path`
(`trl/scripts/grpo.py`, 1.16); scripts of users pass `reward_funcs` on, where `GRPOTrainer` loads each text as a model.
"""

import re
from collections.abc import Iterator, Mapping

from profiler.config.models.lookup import builtin_of_folder
from profiler.config.notes import Note

_SIZE = re.compile(r"(?<![a-z0-9])\d+(?:[._]\d+)?[bm](?![a-z0-9])", re.IGNORECASE)
"""Billions or millions of parameters in a name: ``8B`` in ``skywork-qwen3-8b``."""


def reward_models(flat: Mapping[str, object]) -> list[str]:
    """Return the models that score completions, without a slash by the built-in model that they are named after."""
    return list(dict.fromkeys(_counted(name) for name in _named(flat)))


def reward_notes(flat: Mapping[str, object]) -> Iterator[Note]:
    """Return a note per model that is counted by its name."""
    for name in dict.fromkeys(_named(flat)):
        if _counted(name) != name:
            yield Note(key="reward_models", text=f"the reward model {name} as {_counted(name)} (by its name)")


def _named(flat: Mapping[str, object]) -> list[str]:
    functions = [name for name in _texts(flat.get("reward_funcs")) if "/" in name or _SIZE.search(name)]
    return [*_texts(flat.get("reward_model_name_or_path")), *functions]


def _texts(value: object) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str) and each]


def _counted(name: str) -> str:
    return name if "/" in name else builtin_of_folder(name) or name
