"""Read the files that describe a job: YAML, JSON, a Python script that trains with trl, or a shell script for verl."""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.config.file_kinds import part_of
from profiler.config.foreign_text import (
    MOST_JSON_BYTES,
    MOST_SCRIPT_BYTES,
    MOST_YAML_BYTES,
    ForeignTextError,
    parse_json,
    parse_yaml,
)
from profiler.config.parts import Part
from profiler.config.run_script import read_run_script
from profiler.config.training_script import script_part
from profiler.config.verl_config import SECTION, flattened
from profiler.config.verl_sources import VerlSource, file_source, script_source
from profiler.domain.errors import Fault, UsageError
from profiler.estimate.command import CONFIG
from profiler.storage.foreign_files import expanded, read_bytes, reason

VERL, VERL_MEGATRON = "verl", "verl-megatron"
"""Values of `config` that name verl's own configurations, `ppo_trainer` and `ppo_megatron_trainer`."""

_MOST_BYTES = {".json": MOST_JSON_BYTES, ".py": MOST_SCRIPT_BYTES}


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """What one file says: a part of a job of trl, or a configuration of verl."""

    path: str
    part: Part | None = None
    verl: VerlSource | None = None


def load_config(path: str) -> ConfigFile:
    """Return what the file `path` says; `VERL` is verl's own default configuration.

    Raises:
        UsageError: There is no such file, or it describes no job.
    """
    if path in (VERL, VERL_MEGATRON):
        return ConfigFile(path=path, verl=VerlSource(megatron=path == VERL_MEGATRON))
    try:
        file = expanded(path)
        text = read_bytes(file, most_bytes=_MOST_BYTES.get(file.suffix, MOST_YAML_BYTES))
        if file.suffix == ".py":
            return ConfigFile(path=path, part=script_part(file.name, text.decode()))
        if file.suffix == ".sh":
            script = read_run_script(text.decode())
            return ConfigFile(path=path, verl=script_source(script, name=file.name))
        values = parse_json(text) if file.suffix == ".json" else parse_yaml(text.decode())
    except OSError as error:
        raise _fault(path, f"cannot be read ({reason(error)})") from error
    except UnicodeDecodeError as error:
        kind = {".py": "Python", ".sh": "text"}.get(path[-3:], "YAML")
        raise _fault(path, f"is not valid {kind} ({error})") from error
    except ForeignTextError as error:
        raise _fault(path, str(error)) from error
    if not isinstance(values, Mapping):
        raise _fault(path, "contains no keys with values")
    if SECTION in values:
        return ConfigFile(path=path, verl=file_source(flattened(values), name=file.stem))
    return ConfigFile(path=path, part=part_of(file.name, values))


def _fault(path: str, problem: str) -> UsageError:
    return UsageError([Fault(key=CONFIG, found=path, problem=problem)])
