"""Read a configuration file of trl or verl."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from profiler.domain.errors import Fault, UsageError
from profiler.estimate.command import CONFIG


def load_config(path: str) -> Mapping[str, object]:
    """Return the mapping in the YAML file `path`.

    Raises:
        UsageError: If there is no such file, or if it contains no mapping.
    """
    try:
        values = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise _fault(path, f"cannot be read ({error.strerror or type(error).__name__})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _fault(path, f"is not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(values, Mapping):
        raise _fault(path, "contains no keys with values")
    return values


def _fault(path: str, problem: str) -> UsageError:
    return UsageError([Fault(key=CONFIG, found=path, problem=problem)])
