"""Run options: how trials are run. They do not change what a trial is. With the texts of `--help`.

Run options: how trials are run. They do not change what a trial is.

Each option is declared once, as a field of `RunOptions`. The reader of configurations, the page docs/run_options.md and
the check of `sweeps/config.yaml` derive from the declarations.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from textwrap import wrap
from typing import TypeVar

from profiler.config.options.option import (
    FLAG,
    NUMBER,
    SECONDS,
    Kind,
    Option,
    choice,
    count,
    option,
    options_of,
    path,
    read_options,
    text,
)
from profiler.config.options.reading import NULL, FieldReader, show
from profiler.config.options.value_grammar import read_path
from profiler.domain.machines.engines import (
    ADDRESS_FORMS,
    MAX_SHARDS,
    Address,
    Scheduler,
    Shard,
    SlurmGpus,
    SlurmName,
    SlurmTime,
    SlurmValue,
    address_of,
    is_address,
    shard_of,
)
from profiler.domain.trials.keys import Key
from profiler.domain.trials.trial import TRIAL_KEYS

SomeSlurmValue = TypeVar("SomeSlurmValue", bound=SlurmValue)


def _folder_or_address(reader: FieldReader, name: str) -> PurePath | Address:
    written = reader.text(name, "a folder")
    address = address_of(written) if is_address(written) else PurePath(written)
    if address is None:
        reader.fail(name, f"must be a folder, {ADDRESS_FORMS}")
        return PurePath()
    return address


def _shard(reader: FieldReader, name: str) -> Shard | None:
    value = reader.value(name)
    shard = shard_of(value) if isinstance(value, str) else None
    if shard is None:
        reader.fail(name, f"must be {_SHARD.allowed}", f"The first of eight parts is {name}=1/8.")
    return shard


def _slurm(kind: type[SomeSlurmValue]) -> Kind[SomeSlurmValue]:
    def read(reader: FieldReader, name: str) -> SomeSlurmValue | None:
        value = reader.value(name)
        found = kind.parse(show(value)) if isinstance(value, str | int) and not isinstance(value, bool) else None
        if found is None:
            reader.fail(name, f"must be {kind.form()}")
        return found

    return Kind(allowed=kind.form(), shown="VALUE", read=read)


_RESULTS: Kind[PurePath | Address] = Kind(
    allowed=f"a path, {ADDRESS_FORMS}", shown="FOLDER", read=_folder_or_address, read_text=read_path
)
_SHARD = Kind(allowed=f"k/n with 1 <= k <= n <= {MAX_SHARDS:,}", shown="k/n", read=_shard)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How trials are run: made once by a command, and carried whole to its workers."""

    results_dir: PurePath | Address = option(
        PurePath("results"),
        _RESULTS,
        "folder of results, which are in `<results_dir>/<grid>/`, or the address of a store that several machines "
        "share",
    )
    python: PurePath | None = option(
        None,
        path("the path of a program", "PATH"),
        "Python program, or the folder of its environment, that simulated or emulated trials run in; backend=emulated "
        "needs torch's CUDA build there. Several, separated by commas, are compared",
        null="this one; with backend=emulated the environment that `python -m profiler.emulation install` made",
    )
    strict: bool = option(
        True,
        FLAG,
        "with backend=emulated, refuse a torch or an entry point of the driver that was never emulated before; false: "
        "go on, and mark the record",
    )
    shard: Shard | None = option(
        None,
        _SHARD,
        "run one part of the trials: of 1/8 to 8/8 each trial is in exactly one, and trials that one simulated run "
        "answers are in the same",
        null="all trials",
    )
    dry_run: bool = option(
        False, FLAG, "list the trials with their estimates, say how long they take and what they cost, and run none"
    )
    resume: bool = option(True, FLAG, "skip trials that are answered already")
    snapshot: bool = option(False, FLAG, "write a memory snapshot of each trial, for torch's memory viewer")
    breakdown: bool = option(
        False,
        FLAG,
        "run each measured or emulated trial once more in tracing mode, for its breakdown; simulated trials always "
        "have one",
    )
    timeout_s: float = option(1800.0, SECONDS, "time limit of one trial", unit="s")
    stall_s: float = option(
        900.0, SECONDS, "end a measured or emulated trial that begins no new phase for this long", unit="s"
    )
    warm_up_s: float = option(
        300.0, SECONDS, "time limit of the imports in the process that workers are forked from", unit="s"
    )
    lease_s: float = option(
        60.0,
        SECONDS,
        "with an address as results_dir: time after which other machines run the trials of a machine that has ended",
        unit="s",
    )
    engine: Scheduler = option(
        Scheduler.LOCAL,
        choice(Scheduler),
        "what starts the processes of trials: this program, or the scheduler of a cluster",
    )
    ray_address: str = option(
        "auto",
        text("auto, local, host:port or ray://host:port"),
        "with engine=ray: the cluster; auto is the one that runs on this machine, local starts one here",
    )
    slurm_partition: SlurmName | None = option(
        None, _slurm(SlurmName), "with engine=slurm: partition of the slots", null="Slurm's default"
    )
    slurm_account: SlurmName | None = option(
        None, _slurm(SlurmName), "with engine=slurm: account that the slots are charged to", null="Slurm's default"
    )
    slurm_time: SlurmTime = option(
        SlurmTime(minutes=60),
        _slurm(SlurmTime),
        "with engine=slurm: time limit of a slot, after which it is requeued if it has finished a trial",
    )
    slurm_gpus_per_node: SlurmGpus | None = option(
        None, _slurm(SlurmGpus), "with engine=slurm: GPUs of a slot, with their kind or without", null="none"
    )
    jobs: int | None = option(
        None,
        count(),
        "trials that run at the same time",
        null="one per CPU core if all are emulated or simulated, one per GPU if all are measured, otherwise one; "
        "with engine=slurm one slot per trial, at most 32",
    )
    sample_period_s: float | None = option(
        0.01, SECONDS, "period at which a measured trial samples NVIDIA's driver", unit="s", null="no samples"
    )
    prune: bool = option(
        True, FLAG, "do not run a measured trial that needs at least as much memory as one that ran out of memory"
    )
    price_per_hour: float | None = option(
        None, NUMBER, "price of one GPU, in any currency, for the cost of the sweep", null="no cost"
    )
    prices: PurePath | None = option(
        None,
        path("the path of a CSV file", "FILE"),
        "CSV file with the price_per_hour of each gpu, in place of price_per_hour: what the sweep cost and will cost "
        "until its end",
        null="no cost, unless price_per_hour is given",
    )


RUN_OPTIONS = options_of(RunOptions)
"""By name, in the order in which they are documented."""

RUN_KEYS = tuple(RUN_OPTIONS)

PATH_OPTIONS = tuple(name for name, each in RUN_OPTIONS.items() if each.kind.read_text is read_path)
"""Options that name a file or a folder, whose text a command takes as it stands."""


def read_run_options(values: Mapping[str, object]) -> RunOptions:
    """Read the options from `values`; keys that are not run options are ignored.

    Raises:
        UsageError: Carries every fault found.
    """
    return read_options(RunOptions, values)


_WIDTH = 100
_NAME = 30
_OPTION_WIDTH = 80


def trial_keys_help(*, given: str = "") -> str:
    """Return one entry per key of a trial.

    Args:
        given: The default of `backend`, where the command resolves it.
    """
    defaults = {"backend": given} if given else {}
    return "".join(
        entry(key.name, key.meaning + _choices(key), _default(key, defaults), key.unit) for key in TRIAL_KEYS
    )


def run_options_help() -> str:
    """Return one entry per run option."""
    return "".join(
        entry(name, option.meaning, option.default_text if option.default is not None else option.null, option.unit)
        for name, option in RUN_OPTIONS.items()
    )


def option_lines(options: Iterable[Option], *, indent: int) -> str:
    """Return ``"  name=VALUE    meaning (default: value)"`` of each option.

    Args:
        options: The options.
        indent: Columns before a meaning. A longer name has a line of its own.
    """
    return "".join(_option_line(option, indent) for option in options)


def _option_line(option: Option, indent: int) -> str:
    head, meaning = f"  {option.name}={option.kind.shown}", option.meaning
    default = f"{option.default_text} {option.unit}".rstrip()
    if option.default is None:
        default = option.null
    elif option.null:
        head, meaning = f"{head}|{NULL}", f"{meaning}; {NULL}: {option.null}"
    first, *others = wrap(f"{meaning} (default: {default})", _OPTION_WIDTH - indent)
    lines = [head.ljust(indent) + first] if len(head) < indent else [head, " " * indent + first]
    return "\n".join([*lines, *(" " * indent + line for line in others)]) + "\n"


def entry(name: str, meaning: str, default: str, unit: str = "") -> str:
    """Return ``"  name    meaning [default unit]"``; a long meaning continues below itself."""
    said = f"{name} {meaning}".replace("_", " ").split()
    is_known = not unit or any(len(word) > 1 and word in said for word in unit.split())
    shown = f"[{default}]" if is_known or not default[:1].isdigit() else f"[{default} {unit}]"
    lines = wrap(f"{meaning} {shown}", _WIDTH - _NAME - 2, break_on_hyphens=False)
    return "".join(f"  {head:<{_NAME - 1}} {line}\n" for head, line in zip(_heads(name, lines), lines, strict=True))


def _choices(key: Key) -> str:
    """Return the allowed words in brackets, if they are few and the meaning does not have them."""
    listed = ", ".join(key.allowed)
    is_short = len(listed) <= _WIDTH - _NAME
    return f" ({listed})" if is_short and not all(word in key.meaning for word in key.allowed) else ""


def _heads(name: str, lines: Iterable[str]) -> Iterable[str]:
    return (name if number == 0 else "" for number, _ in enumerate(lines))


def _default(key: Key, defaults: dict[str, str]) -> str:
    if key.name in defaults:
        return defaults[key.name]
    if key.default is not None:
        return show(key.default) if key.default != "" else key.null_given or "none"
    if key.given_default is not None:
        return show(key.given_default)
    return key.null_given or "required"
