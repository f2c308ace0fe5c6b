"""Read a configuration file of trl or verl."""

from collections.abc import Mapping

from profiler.config.foreign_text import MOST_YAML_BYTES, ForeignTextError, parse_yaml
from profiler.domain.errors import Fault, UsageError
from profiler.estimate.command import CONFIG
from profiler.storage.foreign_files import expanded, read_bytes, reason


def load_config(path: str) -> Mapping[str, object]:
    """Return the mapping in the YAML file `path`.

    Raises:
        UsageError: If there is no such file, or if it contains no mapping.
    """
    try:
        values = parse_yaml(read_bytes(expanded(path), most_bytes=MOST_YAML_BYTES).decode())
    except OSError as error:
        raise _fault(path, f"cannot be read ({reason(error)})") from error
    except UnicodeDecodeError as error:
        raise _fault(path, f"is not valid YAML ({error})") from error
    except ForeignTextError as error:
        raise _fault(path, str(error)) from error
    if not isinstance(values, Mapping):
        raise _fault(path, "contains no keys with values")
    return values


def _fault(path: str, problem: str) -> UsageError:
    return UsageError([Fault(key=CONFIG, found=path, problem=problem)])
