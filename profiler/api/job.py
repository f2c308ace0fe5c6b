"""A job as values of Python: files that describe it, and keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from profiler.config.options.command_words import CONFIG
from profiler.config.options.value_grammar import written
from profiler.domain.errors import Fault, UsageError
from profiler.estimate.command import OPTIONS, read_command
from profiler.estimate.command import Command as EstimateCommand
from profiler.estimate.job.inputs import ArchitectureLookup, Inputs, architecture_lookup, job_files, read_inputs
from profiler.estimate.job.trial import with_reward_models
from profiler.storage.foreign.model_config import load_model_config

if TYPE_CHECKING:
    from profiler.config.verl.sources import VerlSource
    from profiler.estimate.verl import AnsweredVerl

_OPTIONS = ("launch", "trl", "verl", "strict", "gpu_memory_gib", "compute_capability", "host", "gpus_per_node")
"""Options of the command `estimate` that describe the job, and not the output."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job: files that describe it, and keys as `grpo-vram estimate` has them. Keys win over files."""

    files: tuple[str, ...] = ()
    """Paths: a recipe of trl, accelerate's or DeepSpeed's configuration, an `adapter_config.json`, a `train.py`; or a
    configuration or run script of verl, and ``"verl"`` for its defaults."""
    keys: Mapping[str, object] = field(default_factory=dict)
    """Keys of a trial by name, and `launch`, `trl`, `strict`, `gpu_memory_gib`, `compute_capability`, `host` (such as
    ``"64GiB"``), `gpus_per_node`; of a job of verl
    `gpu`, `verl`, `strict` and verl's own keys, such as ``trainer.n_gpus_per_node``."""

    def with_keys(self, **keys: object) -> "Job":
        """Return the same job with other values of some keys."""
        return replace(self, keys={**self.keys, **keys})

    def without_keys(self, *names: str) -> "Job":
        """Return the same job without the values of some keys; the files' values or the defaults hold then."""
        return replace(self, keys={key: value for key, value in self.keys.items() if key not in names})


def read_recipe(*files: str | PathLike[str], **keys: object) -> Job:
    """Return the job that files describe, after reading them once.

    Args:
        files: As `Job.files`.
        keys: As `Job.keys`.

    Raises:
        UsageError: A file or a key is wrong, or a file is of another tool; carries every fault.
    """
    job = Job(files=tuple(fspath(file) for file in files), keys=keys)
    if not files:
        raise UsageError([Fault(key=CONFIG, found="none", problem="needs at least one file")])
    command = command_of(job)
    described = job_files(command)
    if described.verl is None:
        known(read_inputs(command, described.part, with_bounds=True))
    else:
        answered(command, described.verl)
    return job


def job_with(job: Job | None, keys: Mapping[str, object]) -> Job:
    """Return a job with further keys; without one, the job of these keys alone."""
    return (job or Job()).with_keys(**keys)


def words_of(job: Job) -> tuple[str, ...]:
    """Return the words of the command line that describe the job.

    Raises:
        UsageError: A key is an option of the output.
    """
    others = [key for key in job.keys if key in OPTIONS and key not in _OPTIONS]
    problem = "is an option of the command line, and of no job"
    if others:
        raise UsageError([Fault(key=key, found=str(job.keys[key]), problem=problem) for key in others])
    files = [f"{CONFIG}={written(path)}" for path in job.files]
    return (*files, *(f"{key}={written(_plain(value))}" for key, value in job.keys.items()))


def command_of(job: Job) -> EstimateCommand:
    """Return the job as the command `estimate` reads it.

    Raises:
        UsageError: A key is wrong; carries every fault.
    """
    return one_trial(read_command(words_of(job)))


def one_trial(command: EstimateCommand, *others: Fault) -> EstimateCommand:
    """Return a command of one trial on one card.

    Args:
        command: The command.
        others: Faults of options that an estimate does not have.

    Raises:
        UsageError: A key is wrong, or several trials are asked for; carries every fault.
    """
    faults = list(dict.fromkeys((*command.faults, *others)))
    if command.any_card:
        problem = "asks for every card, and a job has one; the answer names the others as well"
        faults.append(Fault(key="gpu", found="any", problem=problem))
    if faults:
        raise UsageError(faults)
    return command


def answered(command: EstimateCommand, source: "VerlSource") -> "AnsweredVerl":
    """Return the estimate of a job of verl.

    Raises:
        UsageError: With every fault of the files and the keys.
    """
    from profiler.estimate.verl import answered_verl  # 15 ms, for jobs of verl alone

    return answered_verl(command, source, architecture_lookup(load_model_config))


def known(inputs: Inputs) -> tuple[Inputs, ArchitectureLookup]:
    """Return the inputs and the lookup of architectures, with the reward models.

    Raises:
        UsageError: With every fault of the inputs.
    """
    found, architecture_of = with_reward_models(inputs, architecture_lookup(load_model_config))
    if found.faults:
        raise UsageError(found.faults)
    return found, architecture_of


def assumed(ignored: str, notes: Sequence[str]) -> tuple[str, ...]:
    """Return what was ignored and assumed, a sentence each."""
    return tuple(line for line in (ignored, *notes) if line)


def _plain(value: Any) -> object:  # noqa: ANN401  of any key
    """Return a value as YAML would have it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PathLike):
        return fspath(value)
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
