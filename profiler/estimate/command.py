"""The command line of an estimate, taken apart: plain key=value, values as YAML writes them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import yaml

from profiler.config.reading import show
from profiler.config.run_options import RUN_KEYS
from profiler.config.specification import unknown_key
from profiler.domain.errors import Fault, nearest
from profiler.domain.trial import SPEC_KEYS

CONFIG, FORMAT = "config", "format"

OWN_KEYS = (CONFIG, FORMAT)

_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
"""A number to everybody but YAML 1.1, which wants a point in it."""


class OutputFormat(StrEnum):
    """Values of `format`."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line taken apart; what is wrong with it is in `faults`."""

    keys: Mapping[str, object]
    """Keys of the trial, untyped."""
    config: str | None
    """Path of a trl or verl configuration that holds where no key is given."""
    output_format: OutputFormat
    wants_help: bool
    faults: tuple[Fault, ...]


def read_command(words: Sequence[str]) -> Command:
    """Take `words` (argv without the program) apart; a later word of the same key wins."""
    keys: dict[str, object] = {}
    faults: list[Fault] = []
    config, output_format, wants_help = None, OutputFormat.TABLE, False
    for word in words:
        key, equals, text = word.partition("=")
        if word in ("-h", "--help"):
            wants_help = True
        elif not equals or word.startswith("-"):
            faults.append(Fault(key="argument", found=word, problem="is not of the form key=value"))
        elif key == CONFIG:
            config = text
        elif key == FORMAT:
            if text in list(OutputFormat):
                output_format = OutputFormat(text)
            else:
                faults.append(_format_fault(text))
        elif key in SPEC_KEYS:
            _read_value(key, text, keys, faults)
        else:
            faults.append(_unknown(key, text))
    return Command(keys=keys, config=config, output_format=output_format, wants_help=wants_help, faults=tuple(faults))


def _read_value(key: str, text: str, keys: dict[str, object], faults: list[Fault]) -> None:
    try:
        keys[key] = read_value(text)
    except yaml.YAMLError:
        hint = f"Quote what has special characters: '{key}=\"...\"'."
        faults.append(Fault(key=key, found=text, problem="cannot be read as a value", hint=hint))


def read_value(text: str) -> object:
    """``"true"``, ``"4"``, ``"1e-3"``, ``"[q_proj,v_proj]"`` or a plain text, as what it means.

    Raises:
        yaml.YAMLError: It has brackets or quotes that do not close.
    """
    if _EXPONENT.fullmatch(text):
        return float(text)
    return yaml.safe_load(text) if text else ""


def _format_fault(text: str) -> Fault:
    names = [str(member) for member in OutputFormat]
    return Fault(key=FORMAT, found=text, problem=f"must be one of {', '.join(names)}", hint=nearest(text, names))


def _unknown(key: str, text: str) -> Fault:
    if key in RUN_KEYS:
        return Fault(key=key, found=text, problem="says how a sweep is run, and an estimate runs nothing")
    return unknown_key(key, show(text), (*SPEC_KEYS, *OWN_KEYS))
