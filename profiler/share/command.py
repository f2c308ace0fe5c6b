"""The command line of `python -m profiler.share`: folders, options, the keys of a job, and the help text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from profiler.config.options.command_words import CONFIG, as_pairs, read_given, word_fault
from profiler.config.options.option import FLAG, Option, option, options_of, path
from profiler.config.options.run_options import option_lines
from profiler.config.trl_releases.facts import KEY as TRL
from profiler.domain.errors import Fault
from profiler.domain.trials.trial import SPEC_KEYS
from profiler.estimate.command import OPTIONS as OF_ESTIMATES
from profiler.estimate.command import OTHER_NAMES
from profiler.estimate.command import Command as EstimateCommand
from profiler.estimate.command import read_pairs as read_estimate

FILE, CONFIRM = "file", "confirm"

_OF_JOB = (CONFIG, TRL)
"""Options of an estimate that describe the job of a training."""


@dataclass(frozen=True, kw_only=True)
class ShareOptions:
    """The options, in the order of the help text."""

    file: PurePath | None = option(
        None, path("a file", "FILE"), "a new file for the rows that are shown", null="show them only"
    )
    confirm: bool = option(
        False, FLAG, "simulate each row that has no simulated trial in FOLDER; false: compare only with those"
    )


_OWN = options_of(ShareOptions)

OPTIONS: dict[str, Option] = {**_OWN, **{name: OF_ESTIMATES[name] for name in _OF_JOB}}
"""By name."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with it."""

    folders: tuple[str, ...]
    """The words that are no `key=value`: folders of results, or records."""
    options: ShareOptions
    rest: EstimateCommand
    """The job of a training, read as for an estimate."""
    wants_help: bool
    faults: tuple[Fault, ...]

    @property
    def names_a_job(self) -> bool:
        """Whether keys or a file describe the job of a training."""
        return bool(self.rest.keys or self.rest.configs)


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program)."""
    given = read_given(ShareOptions, as_pairs(words))
    of_job = [word for word in given.others if _key(word) in (*_OF_JOB, *SPEC_KEYS, *OTHER_NAMES)]
    rest = read_estimate(of_job, OPTIONS)
    others = [word for word in given.others if word not in of_job]
    folders = tuple(word for word in others if not _is_wrong(word))
    faults = [*(word_fault(word, OPTIONS, others=SPEC_KEYS) for word in others if _is_wrong(word))]
    faults += [
        Fault(key=key, found=",".join(map(str, values)), problem="has several values, and a training ran with one")
        for key, values in rest.axes.items()
    ]
    if not others and not given.wants_help:
        hint = "Write: python -m profiler.share results/<grid>, or the folder of VramCallback."
        faults.append(Fault(key="folder", found="(none)", problem="name one folder or several", hint=hint))
    return Command(
        folders=folders,
        options=given.options,
        rest=rest,
        wants_help=given.wants_help,
        faults=(*faults, *given.reader.faults, *rest.faults),
    )


def _key(word: str) -> str:
    key, equals, _ = word.partition("=")
    return key if equals else ""


def _is_wrong(word: str) -> bool:
    """Whether a word is an option; the name of a folder may contain "=" after a separator."""
    return not word or word.startswith(("-", "=")) or _key(word).isidentifier()


def usage() -> str:
    """Return the help text."""
    return f"""\
python -m profiler.share FOLDER [FOLDER ...] [file=FILE] [confirm=true]
python -m profiler.share FOLDER config=FILE [key=value ...] [file=FILE]

Measured peaks as rows of the benchmark (docs/benchmark.md), to be sent: one line
of JSON per row, each shown before it is written. A line has the keys of the job,
versions, the name of the card and peaks; no name of a machine or of a user, no
path, no address and no data. FOLDER is results/<grid> of a sweep with
backend=cuda, a folder with several of them, the folder of VramCallback, or one
record. Trials that were not measured are left out and named. Peaks that cannot
be are refused: reserved below allocated, the device's below reserved, above the
card, below the weights. Next to each row: how far the estimate and the
simulation are.

A callback does not know the job: config=FILE or keys of a trial, as in
python -m profiler.estimate, describe that of the newest training in FOLDER.

{option_lines(OPTIONS.values(), indent=20)}
Nothing is sent: CONTRIBUTING.md says where FILE goes.

Examples:
  python -m profiler.share results/lora_vs_full
  python -m profiler.share results/lora_vs_full file=shared.jsonl
  python -m profiler.share runs/mine config=grpo.yaml model=qwen2.5-7b
"""
