"""Parse the command line of an estimate: plain `key=value`, values as YAML writes them, lists of values with commas."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from profiler.config.foreign_text import ForeignTextError, parse_yaml
from profiler.config.grid import MAX_POINTS
from profiler.config.reading import show
from profiler.config.run_options import RUN_KEYS
from profiler.config.specification import unknown_key
from profiler.config.trl_interval import KEY as TRL
from profiler.config.trl_versions import NEWEST, OLDEST, release_of
from profiler.domain.errors import FailIf, Fault, nearest
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.trial import SPEC_KEYS
from profiler.estimate.cards import ANY, CAPABILITY, GPU, MEMORY, read_size
from profiler.storage.price_file import PRICES

CONFIG, FORMAT, STRICT, FAIL_IF = "config", "format", "strict", "fail_if"

OWN_KEYS = (CONFIG, TRL, FORMAT, STRICT, FAIL_IF, MEMORY, CAPABILITY, PRICES)

OTHER_NAMES = {"trainer": "recipe"}
"""Keys by the names that users give them."""

_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
"""A number that YAML 1.1 reads as text, because it has no point."""

_OF_VERL = re.compile(
    r"\+{0,2}(?:(?:actor_rollout_ref|critic|data|algorithm|trainer|reward_model|reward_manager|ray_\w+)\.\w|model_engine=)"
)
"""How an override of verl begins: a section and a dot, or the engine."""

_OPENING, _CLOSING, _QUOTES = "[{(", "]})", "\"'"


class OutputFormat(StrEnum):
    """Values of `format`."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with it."""

    keys: Mapping[str, object]
    """Keys of the trial with one value, untyped."""
    axes: Mapping[str, tuple[object, ...]]
    """Keys of the trial with several values, untyped, in the order of the command line."""
    configs: tuple[str, ...]
    """Files that describe the job, for keys that the command line does not give."""
    overrides: tuple[str, ...]
    """Words that set a key of verl, as Hydra spells them."""
    trl: str | None
    """The release of trl that the files are for; None if their keys decide."""
    any_card: bool
    """Whether the verdict of every card is asked for."""
    prices: str | None
    """Path of a file with the prices of cards."""
    strict: bool
    """Whether a key that trl does not have is a fault."""
    output_format: OutputFormat
    fail_if: FailIf | None
    """The verdict with which the command ends with exit code 4; None for none."""
    wants_help: bool
    faults: tuple[Fault, ...]


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program); a later word of the same key wins, except that files add up."""
    values: dict[str, tuple[object, ...]] = {}
    faults: list[Fault] = []
    configs: dict[str, None] = {}
    own: dict[str, str] = {}
    overrides: list[str] = []
    output_format, wants_help, strict = OutputFormat.TABLE, False, False
    for word in words:
        key, equals, text = word.partition("=")
        key = OTHER_NAMES.get(key, key)
        if word in ("-h", "--help"):
            wants_help = True
        elif equals and _OF_VERL.match(word):
            overrides.append(word)
        elif not equals or word.startswith("-"):
            faults.append(Fault(key="argument", found=word, problem="is not of the form key=value"))
        elif key == CONFIG:
            configs[text] = None
        elif key in OWN_KEYS:
            own[key] = text
            if key == FORMAT:
                output_format = _format(text, faults)
            elif key == STRICT:
                strict = _flag(key, text, faults)
        elif key in SPEC_KEYS:
            _read_values(key, text, values, faults)
        else:
            faults.append(_unknown(key, text))
    any_card = _read_cards(own, values, faults)
    return Command(
        keys={key: found[0] for key, found in values.items() if len(found) == 1},
        axes={key: found for key, found in values.items() if len(found) > 1},
        configs=tuple(configs),
        overrides=tuple(overrides),
        trl=_release(own.get(TRL), configs, faults),
        any_card=any_card,
        prices=own.get(PRICES),
        strict=strict,
        output_format=output_format,
        fail_if=_fail_if(own.get(FAIL_IF), faults),
        wants_help=wants_help,
        faults=tuple(faults),
    )


def _read_cards(own: Mapping[str, str], values: dict[str, tuple[object, ...]], faults: list[Fault]) -> bool:
    """Read a size in place of a card, and return whether every card is asked for."""
    asked = read_size(own, values.get(GPU, ()))
    faults.extend(asked.faults)
    if asked.gpu is not None:
        values[GPU] = (asked.gpu,)
    if values.get(GPU) == (ANY,):
        del values[GPU]
        if any(len(found) > 1 for found in values.values()):
            values[GPU] = tuple(KNOWN_GPUS)
            return False
        return True
    if PRICES in own and GPU in values:
        faults.append(Fault(key=PRICES, found=own[PRICES], problem=f"needs gpu={ANY}, because it compares cards"))
    return PRICES in own


def _release(text: str | None, configs: Collection[str], faults: list[Fault]) -> str | None:
    """Return the release of trl that the command states."""
    if text is None:
        return None
    release = release_of(text)
    if release is None:
        faults.append(Fault(key=TRL, found=text, problem=f"must be a release of trl from {OLDEST} to {NEWEST}"))
    elif not configs:
        problem = "is for the files of config=, and there are none; other keys have the defaults of this program"
        faults.append(Fault(key=TRL, found=text, problem=problem))
    return release


def _flag(key: str, text: str, faults: list[Fault]) -> bool:
    if text not in ("true", "false"):
        faults.append(Fault(key=key, found=text, problem="must be true or false"))
    return text == "true"


def _fail_if(text: str | None, faults: list[Fault]) -> FailIf | None:
    if text is None or text in list(FailIf):
        return None if text is None else FailIf(text)
    names = [str(member) for member in FailIf]
    faults.append(
        Fault(key=FAIL_IF, found=text, problem=f"must be one of {', '.join(names)}", hint=nearest(text, names))
    )
    return None


def _format(text: str, faults: list[Fault]) -> OutputFormat:
    if text in list(OutputFormat):
        return OutputFormat(text)
    names = [str(member) for member in OutputFormat]
    faults.append(
        Fault(key=FORMAT, found=text, problem=f"must be one of {', '.join(names)}", hint=nearest(text, names))
    )
    return OutputFormat.TABLE


def _read_values(key: str, text: str, values: dict[str, tuple[object, ...]], faults: list[Fault]) -> None:
    values.pop(key, None)  # so that the order is that of the last words
    parts = split_values(text)
    if len(parts) > MAX_POINTS:
        problem = f"has {len(parts):,} values, and at most {MAX_POINTS:,} are allowed"
        faults.append(Fault(key=key, found=text, problem=problem))
        return
    try:
        values[key] = tuple(read_value(part) for part in parts)
    except ForeignTextError as error:
        hint = f"Quote what has special characters: '{key}=\"...\"'."
        faults.append(Fault(key=key, found=text, problem=f"cannot be read as a value, because it {error}", hint=hint))


def split_values(text: str) -> list[str]:
    """Split `text` at commas outside of brackets and quotes, as a sweep does: ``"4,8"`` is two values."""
    parts, depth, quote, start = [], 0, "", 0
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def read_value(text: str) -> object:
    """Return the value of ``"true"``, ``"4"``, ``"1e-3"``, ``"[q_proj,v_proj]"`` or of a plain text.

    Raises:
        ForeignTextError: If brackets or quotes are not closed, for example.
    """
    text = text.strip()
    if _EXPONENT.fullmatch(text):
        return float(text)
    return parse_yaml(text) if text else ""


def _unknown(key: str, text: str) -> Fault:
    if key in RUN_KEYS:
        return Fault(key=key, found=text, problem="is an option of a sweep; an estimate runs nothing")
    return unknown_key(key, show(text), (*SPEC_KEYS, *OWN_KEYS))
