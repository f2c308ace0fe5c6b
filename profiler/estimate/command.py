"""The command line of `python -m profiler.estimate`: its options, keys of a trial with one or several values, help."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiler.analytical.explanation.explained import GPUS_PER_NODE
from profiler.config.options.command_words import CONFIG, as_pairs, read_given, word_fault
from profiler.config.options.option import (
    FLAG,
    NUMBER,
    SIZE,
    Kind,
    Option,
    OutputFormat,
    choice,
    count,
    format_option,
    name,
    option,
    options_of,
)
from profiler.config.options.reading import FieldReader
from profiler.config.options.run_options import RUN_KEYS, option_lines, trial_keys_help
from profiler.config.options.value_grammar import ValueTextError, read_path, read_values, unreadable
from profiler.config.trials.grid import MAX_POINTS
from profiler.config.trl_releases.facts import KEY as TRL
from profiler.config.trl_releases.facts import NEWEST, OLDEST, release_of
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.cards.gpu_names import find_gpu, name_card, sized_like
from profiler.domain.errors import FailIf, Fault
from profiler.domain.trials.trial import SPEC_KEYS, Backend
from profiler.domain.verl import Release
from profiler.storage.foreign.number_files import LENGTHS, PRICES

GPU, MEMORY, CAPABILITY = "gpu", "gpu_memory_gib", "compute_capability"

ANY = "any"
"""The value of `gpu` that asks for the verdict of every card."""


def read_size(options: FieldReader, gpus: Sequence[object]) -> str | None:
    """Return the card of `gpu_memory_gib` and `compute_capability`, as `gpu` names it; None without a size.

    What is wrong with them becomes faults of `options`.

    Args:
        options: The keys of a command; the capability as it stands, because 8.10 is not a number.
        gpus: The values of `gpu`, of which there may be none if a size is given.
    """
    capability = options.value(CAPABILITY)
    if options.value(MEMORY) is None:
        if capability is not None and options.sound(CAPABILITY):
            options.fail(CAPABILITY, f"needs {MEMORY}, because a named card has a capability of its own")
        return None
    if gpus:
        options.fail(MEMORY, "cannot be combined with gpu, which names a card")
        return None
    if not options.sound(MEMORY):
        return None
    size = options.number(MEMORY)
    alone = name_card(f"{size:f}GiB")
    card = name_card(f"{size:f}GiB" + (f"@{capability}" if capability is not None else ""))
    if find_gpu(card.name) is not None:
        return card.name
    if find_gpu(alone.name) is None:
        options.fail(MEMORY, alone.problem)
    else:
        options.fail(CAPABILITY, "must be a number such as 8.6, and at least 7.0")
    return None


def capability_note(gpu: str) -> str:
    """Return what is assumed of a card of which only the size is stated; empty for any other."""
    card = find_gpu(gpu)
    if card is None or card.source != "stated" or "@" in gpu:
        return ""
    like = sized_like(card.memory_bytes / 2**30)
    major, minor = card.compute_capability
    return f"compute_capability={major}.{minor} (of {like.name}, the nearest card)"


LAUNCH = "launch"
"""Name of the option that the words after ``--`` are the value of."""


def _files(reader: FieldReader, key: str) -> tuple[str, ...]:
    """Return the names of the files, each once."""
    values = reader.value(key)
    return tuple(dict.fromkeys(str(each or "") for each in values)) if isinstance(values, list) else ()


def _release_of_verl(reader: FieldReader, key: str) -> Release | None:
    try:
        return Release(str(reader.value(key)))
    except ValueError:
        reader.fail(key, f"must be one of {', '.join(Release)}, whose defaults are known")
        return None


def _release(reader: FieldReader, key: str) -> str | None:
    release = release_of(str(reader.value(key)))
    if release is None:
        reader.fail(key, f"must be a release of trl from {OLDEST} to {NEWEST}")
    return release


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    """The options, in the order of the help text."""

    configs: tuple[str, ...] | None = option(
        None,
        Kind(allowed="paths", shown="FILE", read=_files, read_text=read_path, adds_up=True),
        "a file that describes the job, for keys that are not given; it may be repeated",
        name=CONFIG,
        null="the keys describe the job",
    )
    launch: str | None = option(
        None,
        name("a command", "COMMAND"),
        "a command that trains, for keys that are not given; or its words after --",
        null="none",
    )
    trl: str | None = option(
        None,
        Kind(allowed=f"a release from {OLDEST} to {NEWEST}", shown="VERSION", read=_release, read_text=read_path),
        "the release of trl that FILE is for",
        null="the releases that have its keys",
    )
    verl: Release | None = option(
        None,
        Kind(allowed=" or ".join(Release), shown="VERSION", read=_release_of_verl, read_text=read_path),
        "the release of verl whose defaults and workers are taken",
        null="0.9.1 if a key is of that alone, else 0.8",
    )
    gpu_memory_gib: float | None = option(
        None, NUMBER, "memory of a card, in place of gpu", unit="GiB", null="that of gpu"
    )
    compute_capability: str | None = option(
        None,
        name("a number such as 8.6", "X.Y"),
        "compute capability of a card of gpu_memory_gib, at least 7.0",
        null="that of the nearest card",
    )
    prices: str | None = option(
        None,
        name("a file, or published", "FILE|published"),
        "CSV file with prices of cards, or public lists with their dates; the cheapest that fits is first",
        null="no prices; in solve gpu those of public lists",
    )
    strict: bool = option(False, FLAG, "refuse keys of FILE that trl does not have; false: list and ignore them")
    details: bool = option(
        False, FLAG, "show every phase and every card; false: the phase of the peak, and the cards in one line"
    )
    confirm: bool = option(
        False, FLAG, "simulate the trial too, with trl's trainer on its card; its verdict decides where both differ"
    )
    tokenizer: str | None = option(
        None,
        name("a folder", "FOLDER"),
        "counts the tokens of a data set that lengths names",
        null="lengths has numbers",
    )
    host: int | None = option(
        None,
        SIZE,
        "memory of one node, for a verdict of its own, which fail_if counts too; GiB are powers of two, GB of ten",
        null="no verdict",
    )
    gpus_per_node: int | None = option(
        None, count(), "processes of the job on one node", unit="processes", null=f"all, at most {GPUS_PER_NODE}"
    )
    output_format: OutputFormat = format_option()
    fail_if: FailIf | None = option(
        None,
        choice(FailIf, FailIf.DOES_NOT_FIT, FailIf.TIGHT),
        "end with exit code 4 if a trial does not fit its card, or also if it is tight; with gpu=any if no card is "
        "better",
        null="exit code 0",
    )


OPTIONS = options_of(EstimateOptions)
"""By name."""

DETAILS, CONFIRM, HOST, PER_NODE, TOKENIZER = "details", "confirm", "host", "gpus_per_node", "tokenizer"

_OF_ONE_TRIAL = (DETAILS, CONFIRM, HOST, PER_NODE, TOKENIZER)
"""Options of one trial on one card."""

COMMON_OPTIONS = {name: each for name, each in OPTIONS.items() if name not in _OF_ONE_TRIAL}
"""Those that `solve` and `advise` have as well; they declare `confirm` themselves, because it is their default."""

NO_LENGTHS = f"counts the tokens of {LENGTHS}=FILE, and there is none"
"""What is wrong with a tokenizer by itself."""

_NAMES_A_FILE = re.compile(r"[./~]")
"""A value of `lengths` with one of these names a file: its own values have none."""

OTHER_NAMES = {"trainer": "recipe"}
"""Keys by the names that users give them."""

_OF_VERL = re.compile(
    r"\+{0,2}(?:(?:actor_rollout_ref|critic|data|algorithm|trainer|reward|reward_model|reward_manager|ray_\w+)\.\w|model_engine=)"
)
"""How an override of verl begins: a section and a dot, or the engine."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with it."""

    keys: Mapping[str, object]
    """Keys of the trial with one value, untyped."""
    axes: Mapping[str, tuple[object, ...]]
    """Keys of the trial with several values, untyped, in the order of the command line."""
    overrides: tuple[str, ...]
    """Words that set a key of verl, as Hydra spells them."""
    any_card: bool
    """Whether the verdict of every card is asked for."""
    lengths_file: str | None
    """A file with the lengths of rows, in place of a value of the key `lengths`."""
    options: EstimateOptions
    wants_help: bool
    faults: tuple[Fault, ...]

    @property
    def configs(self) -> tuple[str, ...]:
        """Files that describe the job, for keys that the command line does not give."""
        return self.options.configs or ()


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program); a later word of the same key wins, except that files add up."""
    return read_pairs(as_pairs(words, rest=LAUNCH))


def read_pairs(words: Sequence[str], known: Mapping[str, Option] = OPTIONS) -> Command:
    """Parse `words` as `read_command` does, in which options are `key=value` already.

    Args:
        words: The words.
        known: All options of the command that asks, for the fault of an unknown one.
    """
    given = read_given(EstimateOptions, words)
    values: dict[str, tuple[object, ...]] = {}
    faults: list[Fault] = []
    lengths_file: str | None = None
    overrides = tuple(word for word in given.others if "=" in word and _OF_VERL.match(word))
    for word in given.others:
        key, equals, text = word.partition("=")
        key = OTHER_NAMES.get(key, key)
        if word in overrides:
            continue
        if equals and key == LENGTHS and _NAMES_A_FILE.search(text):
            lengths_file = text
        elif equals and key in SPEC_KEYS:
            _read_values(key, text, values, faults)
        else:
            faults.append(_word_fault(word, known))
    any_card = _read_cards(given.reader, values)
    options = given.options
    is_table = any_card or any(len(found) > 1 for found in values.values())
    for each in [each for each in _OF_ONE_TRIAL if getattr(options, each)]:
        if each not in known:
            given.reader.fail(each, "is an option of python -m profiler.estimate")
        elif is_table:
            given.reader.fail(each, "is for the estimate of one trial on one card, and a table was asked for")
    if lengths_file is not None and (is_table or DETAILS not in known):
        problem = "is a file, and its lengths are for the estimate of one trial on one card"
        faults.append(Fault(key=LENGTHS, found=lengths_file, problem=problem))
    if lengths_file is None and options.tokenizer is not None and TOKENIZER in known:
        given.reader.fail(TOKENIZER, NO_LENGTHS)
    if options.trl is not None and options.configs is None and options.launch is None:
        problem = "is for the files of config=, and there are none; other keys have the defaults of this program"
        given.reader.fail(TRL, problem)
    return Command(
        keys={key: found[0] for key, found in values.items() if len(found) == 1},
        axes={key: found for key, found in values.items() if len(found) > 1},
        overrides=overrides,
        any_card=any_card,
        lengths_file=lengths_file,
        options=options,
        wants_help=given.wants_help,
        faults=(*faults, *given.reader.faults),
    )


def _read_cards(reader: FieldReader, values: dict[str, tuple[object, ...]]) -> bool:
    """Read a size in place of a card, and return whether every card is asked for."""
    sized = read_size(reader, values.get(GPU, ()))
    if sized is not None:
        values[GPU] = (sized,)
    if values.get(GPU) == (ANY,):
        del values[GPU]
        if any(len(found) > 1 for found in values.values()):
            values[GPU] = tuple(KNOWN_GPUS)
            return False
        return True
    if reader.value(PRICES) is None:
        return False
    if GPU in values:
        reader.fail(PRICES, f"needs gpu={ANY}, because it compares cards")
    return True


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


def _word_fault(word: str, known: Mapping[str, Option]) -> Fault:
    key, equals, text = word.partition("=")
    if equals and key in RUN_KEYS:
        return Fault(key=key, found=text, problem="is an option of a sweep; an estimate runs nothing")
    return word_fault(word, known, others=SPEC_KEYS)


def usage() -> str:
    """Return the help text."""
    return f"""\
python -m profiler.estimate model=NAME [key=value ...] [format=table|json]
python -m profiler.estimate model=NAME,NAME key=value,value [key=value ...]
python -m profiler.estimate config=FILE [config=FILE ...] [key=value ...]
python -m profiler.estimate [key=value ...] -- COMMAND

What training needs of a GPU, by phase and category, in closed form.
NAME is a built-in model, a hub id, or a local folder or config.json. FILE is a
configuration of trl (of any recipe) or of verl: its YAML, a run script, or
its defaults (config=verl), with Hydra's overrides as further words. Files next
to a recipe of trl are read with it: accelerate's, DeepSpeed's, an
adapter_config.json, and the script or notebook, read without running it. COMMAND,
or a shell script as FILE, starts a training with trl: trl grpo --key value ...,
or accelerate launch, torchrun, deepspeed or python with a script. Files that it
names are read where they are, and its arguments win over them.
Keys win over files. Keys of FILE that trl does not have are listed and ignored;
strict=true refuses them.

What a file of trl leaves open has the defaults of the release that it is for:
its keys say which these can be, trl=0.18 says which it is. Where the releases
differ, the peaks of all are printed, and the dearest is answered.

gpu is a card's name or a part of it (gpu=4090), a size (gpu=24GiB, or
gpu_memory_gib=24 compute_capability=8.6), or any, for the verdict of every card.
prices=FILE.csv has the columns gpu,price_per_hour,currency,source,date.
lengths=FILE.jsonl has lengths of rows, as for a forecast: then the answer says
too what half of the steps need, and 99.9 % of them.

Several values of a key, separated by commas, give one table of the estimates of
all combinations (at most 100,000). Quote a value that contains a comma.

{option_lines(OPTIONS.values(), indent=24)}
Keys of a trial [default]:
{trial_keys_help(given=Backend.SIMULATED)}
Examples:
  python -m profiler.estimate model=qwen2.5-7b tuning=lora gpu=a100-40gb
  python -m profiler.estimate model=qwen2.5-3b,qwen2.5-7b num_generations=4,8
  python -m profiler.estimate recipe=sft model=qwen2.5-7b max_length=2048
  python -m profiler.estimate recipe=dpo model=qwen2.5-7b tuning=lora
  python -m profiler.estimate config=grpo.yaml format=json
  python -m profiler.estimate config=grpo.yaml config=accelerate.yaml
  python -m profiler.estimate config=train.py gpu=4090
  python -m profiler.estimate gpu=h100 -- trl grpo --config grpo.yaml
  python -m profiler.estimate config=run_qwen2-7b.sh trainer.n_gpus_per_node=4
  python -m profiler.estimate model=qwen2.5-7b gpu=any
"""
