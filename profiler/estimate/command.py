"""Parse the command line of an estimate: plain `key=value`, with commas between several values."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from profiler.config.command_words import HELP_FLAGS, as_pairs
from profiler.config.grid import MAX_POINTS
from profiler.config.option import FORMAT, OutputFormat, read_format
from profiler.config.reading import TextReader, show
from profiler.config.run_options import RUN_KEYS
from profiler.config.specification import unknown_key
from profiler.config.trl_interval import KEY as TRL
from profiler.config.trl_versions import NEWEST, OLDEST, release_of
from profiler.config.value_grammar import ValueTextError, read_path, read_values, unreadable
from profiler.domain.errors import FailIf, Fault
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.trial import SPEC_KEYS
from profiler.estimate.cards import ANY, CAPABILITY, GPU, MEMORY, read_size
from profiler.storage.foreign.price_file import PRICES

CONFIG, STRICT, FAIL_IF = "config", "strict", "fail_if"

OWN_KEYS = (CONFIG, TRL, FORMAT, STRICT, FAIL_IF, MEMORY, CAPABILITY, PRICES)

_DEFAULTS = {FORMAT: OutputFormat.TABLE, STRICT: "false"}

OTHER_NAMES = {"trainer": "recipe"}
"""Keys by the names that users give them."""

_OF_VERL = re.compile(
    r"\+{0,2}(?:(?:actor_rollout_ref|critic|data|algorithm|trainer|reward_model|reward_manager|ray_\w+)\.\w|model_engine=)"
)
"""How an override of verl begins: a section and a dot, or the engine."""


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
    return read_pairs(as_pairs(words))


def read_pairs(words: Sequence[str]) -> Command:
    """Parse `words` as `read_command` does, in which options are `key=value` already."""
    values: dict[str, tuple[object, ...]] = {}
    faults: list[Fault] = []
    configs: dict[str, None] = {}
    own: dict[str, str] = {}
    overrides: list[str] = []
    wants_help = False
    for word in words:
        key, equals, text = word.partition("=")
        key = OTHER_NAMES.get(key, key)
        if word in HELP_FLAGS:
            wants_help = True
        elif equals and _OF_VERL.match(word):
            overrides.append(word)
        elif not equals or word.startswith("-"):
            faults.append(Fault(key="argument", found=word, problem="is not of the form key=value"))
        elif key == CONFIG:
            configs[read_path(text) or ""] = None
        elif key in OWN_KEYS:
            own[key] = text
        elif key in SPEC_KEYS:
            _read_values(key, text, values, faults)
        else:
            faults.append(_unknown(key, text))
    options = TextReader({**_DEFAULTS, **own}, paths=(CAPABILITY, PRICES, TRL))
    any_card = _read_cards(options, values)
    prices = None if options.value(PRICES) is None else options.text(PRICES, "a file")
    output_format, strict = read_format(options), options.flag(STRICT)
    fail_if = None if options.value(FAIL_IF) is None else options.choice(FAIL_IF, FailIf)
    faults.extend(options.faults)
    return Command(
        keys={key: found[0] for key, found in values.items() if len(found) == 1},
        axes={key: found for key, found in values.items() if len(found) > 1},
        configs=tuple(configs),
        overrides=tuple(overrides),
        trl=_release(read_path(own[TRL]) if TRL in own else None, configs, faults),
        any_card=any_card,
        prices=prices,
        strict=strict,
        output_format=output_format,
        fail_if=fail_if,
        wants_help=wants_help,
        faults=tuple(faults),
    )


def _read_cards(options: TextReader, values: dict[str, tuple[object, ...]]) -> bool:
    """Read a size in place of a card, and return whether every card is asked for."""
    sized = read_size(options, values.get(GPU, ()))
    if sized is not None:
        values[GPU] = (sized,)
    if values.get(GPU) == (ANY,):
        del values[GPU]
        if any(len(found) > 1 for found in values.values()):
            values[GPU] = tuple(KNOWN_GPUS)
            return False
        return True
    if options.value(PRICES) is None:
        return False
    if GPU in values:
        options.fail(PRICES, f"needs gpu={ANY}, because it compares cards")
    return True


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


def _read_values(key: str, text: str, values: dict[str, tuple[object, ...]], faults: list[Fault]) -> None:
    values.pop(key, None)  # so that the order is that of the last words
    try:
        found = read_values(text)
    except ValueTextError as error:
        faults.append(unreadable(key, text, error))
        return
    if len(found) > MAX_POINTS:
        problem = f"has {len(found):,} values, and at most {MAX_POINTS:,} are allowed"
        faults.append(Fault(key=key, found=text, problem=problem))
        return
    values[key] = found


def _unknown(key: str, text: str) -> Fault:
    if key in RUN_KEYS:
        return Fault(key=key, found=text, problem="is an option of a sweep; an estimate runs nothing")
    return unknown_key(key, show(text), (*SPEC_KEYS, *OWN_KEYS))
