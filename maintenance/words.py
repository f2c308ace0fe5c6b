"""`key=value` words of the tools of maintainers."""

from collections.abc import Mapping, Sequence

from profiler.config.foreign_text import ForeignTextError, parse_yaml
from profiler.config.specification import unknown_key
from profiler.domain.errors import Fault


def read_words(words: Sequence[str], defaults: Mapping[str, object]) -> tuple[dict[str, object], list[Fault]]:
    """Return the value of each key of `defaults`, and the faults of `words`."""
    values, faults = dict(defaults), []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            faults.append(Fault(key="argument", found=word, problem="is not of the form key=value"))
        elif key not in defaults:
            faults.append(unknown_key(key, text, tuple(defaults)))
        else:
            try:
                values[key] = parse_yaml(text)
            except ForeignTextError as error:
                faults.append(Fault(key=key, found=text, problem=f"cannot be read as a value, because it {error}"))
    return values, faults
