"""References between keys of a verl configuration in YAML, as OmegaConf spells them."""

import re
from collections.abc import Iterator, Mapping

from profiler.config.notes import Note
from profiler.config.verl.keys import MEMORY_KEYS
from profiler.domain.errors import shortened

_REFERENCE = re.compile(r"\$\{\s*(?:oc\.select:\s*)?([A-Za-z_][\w.]*)\s*(?:,.*)?\}", re.DOTALL)

_MOST_STEPS = 10

_LONGEST_SHOWN = 60


def resolved(flat: Mapping[str, object]) -> dict[str, object]:
    """Return the keys with references to other keys that are stated replaced, and without all other references.

    ``${...}`` to a key that is not stated is verl's own default, ``???`` is on its command line.
    """
    found = {key: _followed(value, flat) for key, value in flat.items()}
    return {key: value for key, value in found.items() if not _is_reference(value)}


def unresolved_notes(flat: Mapping[str, object]) -> Iterator[Note]:
    """Return a note per key that decides memory and whose value only the machine knows, as of ``${oc.env:NAME}``."""
    for key in MEMORY_KEYS:
        value = _followed(flat.get(key), flat)
        if isinstance(value, str) and "${" in value and not _REFERENCE.fullmatch(value):
            spelled = shortened(value, _LONGEST_SHOWN)
            yield Note(key="", text=f"verl's default of {key} ({spelled} is not read)")


def _followed(value: object, flat: Mapping[str, object]) -> object:
    for _ in range(_MOST_STEPS):
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[1] not in flat:
            break
        value = flat[match[1]]
    return value


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and ("${" in value or value == "???")
