"""Run options: how trials are run. They do not change what a trial is.

Each option is declared once, as a field of `RunOptions`. The reader of configurations, the page docs/run_options.md and
the check of `sweeps/config.yaml` derive from the declarations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from types import NoneType
from typing import TypeVar, get_args

from profiler.config.reading import MAX_NUMBER, FieldReader, show
from profiler.domain.address import ADDRESS_FORMS, Address, address_of, is_address
from profiler.domain.engine import Engine
from profiler.domain.errors import UsageError
from profiler.domain.keys import MAX_COUNT
from profiler.domain.shard import MAX_SHARDS, Shard, shard_of
from profiler.domain.slurm import SlurmGpus, SlurmName, SlurmTime, SlurmValue

Value = TypeVar("Value")

_DECLARATION = "declaration"

_MAX_S = 1_000_000
"""Eleven days: the kernel waits for at most 2^31 milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Facts of one option that its field does not state by itself."""

    meaning: str
    unit: str = ""
    kind: str = ""
    """What a path leads to, or what a text is: ``"a folder"``."""
    may_be_address: bool = False
    """Whether a path may also be an address, such as ``s3://bucket/path``."""
    null: str = ""
    """Meaning of null; empty where null is not allowed."""
    minimum: int = 0
    """Smallest number."""
    is_minimum_allowed: bool = True
    maximum: int = int(MAX_NUMBER)
    """Largest number."""


def _option(default: Value, declaration: Declaration) -> Value:
    return field(default=default, metadata={_DECLARATION: declaration})


def _flag(default: bool, meaning: str) -> bool:
    return _option(default, Declaration(meaning=meaning))


def _seconds(default: Value, meaning: str, *, null: str = "") -> Value:
    declaration = Declaration(meaning=meaning, unit="s", null=null, is_minimum_allowed=False, maximum=_MAX_S)
    return _option(default, declaration)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How trials are run: made once by a command, and carried whole to its workers."""

    results_dir: PurePath | Address = _option(  # noqa: RUF009, because a path cannot change
        PurePath("results"),
        Declaration(
            meaning="folder of results, which are in `<results_dir>/<grid>/`, or the address of a store that several "
            "machines share",
            kind="a folder",
            may_be_address=True,
        ),
    )
    python: PurePath | None = _option(  # noqa: RUF009, because a path cannot change
        None,
        Declaration(
            meaning="Python program, or the folder of its environment, that simulated or emulated trials run in; "
            "backend=emulated needs torch's CUDA build there. Several, separated by commas, are compared",
            kind="the path of a program",
            null="this one; with backend=emulated the environment that `python -m profiler.emulation install` made",
        ),
    )
    strict: bool = _flag(
        True,
        "with backend=emulated, refuse a torch or an entry point of the driver that was never emulated before; false: "
        "go on, and mark the record",
    )
    shard: Shard | None = _option(  # noqa: RUF009, because a shard cannot change
        None,
        Declaration(
            meaning="run one part of the trials: of 1/8 to 8/8 each trial is in exactly one, and trials that one "
            "simulated run answers are in the same",
            null="all trials",
        ),
    )
    dry_run: bool = _flag(
        False, "list the trials with their estimates, say how long they take and what they cost, and run none"
    )
    resume: bool = _flag(True, "skip trials that are answered already")
    snapshot: bool = _flag(False, "write a memory snapshot of each trial, for torch's memory viewer")
    breakdown: bool = _flag(
        False,
        "run each measured or emulated trial once more in tracing mode, for its breakdown; simulated trials always "
        "have one",
    )
    timeout_s: float = _seconds(1800.0, "time limit of one trial")
    stall_s: float = _seconds(900.0, "end a measured or emulated trial that begins no new phase for this long")
    warm_up_s: float = _seconds(300.0, "time limit of the imports in the process that workers are forked from")
    lease_s: float = _seconds(
        60.0,
        "with an address as results_dir: time after which other machines run the trials of a machine that has ended",
    )
    engine: Engine = _option(  # noqa: RUF009, because an engine cannot change
        Engine.LOCAL,
        Declaration(meaning="what starts the processes of trials: this program, or the scheduler of a cluster"),
    )
    ray_address: str = _option(
        "auto",
        Declaration(
            meaning="with engine=ray: the cluster; auto is the one that runs on this machine, local starts one here",
            kind="auto, local, host:port or ray://host:port",
        ),
    )
    slurm_partition: SlurmName | None = _option(  # noqa: RUF009, because it cannot change
        None, Declaration(meaning="with engine=slurm: partition of the slots", null="Slurm's default")
    )
    slurm_account: SlurmName | None = _option(  # noqa: RUF009, because it cannot change
        None, Declaration(meaning="with engine=slurm: account that the slots are charged to", null="Slurm's default")
    )
    slurm_time: SlurmTime = _option(  # noqa: RUF009, because it cannot change
        SlurmTime(minutes=60),
        Declaration(
            meaning="with engine=slurm: time limit of a slot, after which it is requeued if it has finished a trial"
        ),
    )
    slurm_gpus_per_node: SlurmGpus | None = _option(  # noqa: RUF009, because it cannot change
        None, Declaration(meaning="with engine=slurm: GPUs of a slot, with their kind or without", null="none")
    )
    jobs: int | None = _option(
        None,
        Declaration(
            meaning="trials that run at the same time",
            null="one per CPU core if all are emulated or simulated, one per GPU if all are measured, otherwise one; "
            "with engine=slurm one slot per trial, at most 32",
            minimum=1,
            maximum=MAX_COUNT,
        ),
    )
    sample_period_s: float | None = _seconds(
        0.01, "period at which a measured trial samples NVIDIA's driver", null="no samples"
    )
    prune: bool = _flag(
        True, "do not run a measured trial that needs at least as much memory as one that ran out of memory"
    )
    price_per_hour: float | None = _option(
        None, Declaration(meaning="price of one GPU, in any currency, for the cost of the sweep", null="no cost")
    )
    prices: PurePath | None = _option(  # noqa: RUF009, because a path cannot change
        None,
        Declaration(
            meaning="CSV file with the price_per_hour of each gpu, in place of price_per_hour: what the sweep cost and "
            "will cost until its end",
            kind="the path of a CSV file",
            null="no cost, unless price_per_hour is given",
        ),
    )


DECLARATIONS: Mapping[str, Declaration] = {option.name: option.metadata[_DECLARATION] for option in fields(RunOptions)}
"""By name, in the order in which they are documented."""

RUN_KEYS = tuple(DECLARATIONS)

PATH_OPTIONS = tuple(option.name for option in fields(RunOptions) if PurePath in (option.type, *get_args(option.type)))
"""Options that name a file or a folder, whose text a command takes as it stands."""


def read_run_options(values: Mapping[str, object]) -> RunOptions:
    """Read the options from `values`; keys that are not run options are ignored.

    Raises:
        UsageError: Carries every fault found.
    """
    reader = FieldReader(values)
    options = {option.name: _read(reader, option.name, kind_of(option.type)) for option in fields(RunOptions)}
    if reader.faults:
        raise UsageError(reader.faults)
    return RunOptions(**options)  # type: ignore[arg-type]


def kind_of(annotation: object) -> object:
    """Return the type of an option that is not null."""
    return next(kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType)


def _read(reader: FieldReader, name: str, kind: object) -> object:
    declaration = DECLARATIONS[name]
    if declaration.null and reader.value(name) is None:
        return None
    if kind is PurePath:
        text = reader.text(name, declaration.kind)
        return _address(reader, name, text) if declaration.may_be_address and is_address(text) else PurePath(text)
    if kind is Shard:
        return _shard(reader, name)
    if kind is Engine:
        return reader.choice(name, Engine)
    if isinstance(kind, type) and issubclass(kind, SlurmValue):
        return _slurm_value(reader, name, kind)
    if kind is str:
        return reader.text(name, declaration.kind)
    if kind is bool:
        return reader.flag(name)
    if kind is int:
        return reader.count(name, minimum=declaration.minimum, maximum=declaration.maximum)
    number = reader.number(name, maximum=declaration.maximum)
    if number == declaration.minimum and not declaration.is_minimum_allowed and reader.sound(name):
        reader.fail(name, f"must be more than {declaration.minimum} seconds")
    return number


def _address(reader: FieldReader, name: str, text: str) -> Address | PurePath:
    address = address_of(text)
    if address is None:
        reader.fail(name, f"must be a folder, {ADDRESS_FORMS}")
        return PurePath()
    return address


def _shard(reader: FieldReader, name: str) -> Shard | None:
    value = reader.value(name)
    shard = shard_of(value) if isinstance(value, str) else None
    if shard is None:
        reader.fail(name, f"must be k/n with 1 <= k <= n <= {MAX_SHARDS:,}", f"The first of eight parts is {name}=1/8.")
    return shard


def _slurm_value(reader: FieldReader, name: str, kind: type[SlurmValue]) -> SlurmValue | None:
    value = reader.value(name)
    found = kind.parse(show(value)) if isinstance(value, str | int) and not isinstance(value, bool) else None
    if found is None:
        reader.fail(name, f"must be {kind.form()}")
    return found
