"""`python -m profiler.estimate model=NAME [key=value ...]`: what a trial needs of a GPU, in closed form, at once.

Exit codes: docs/exit_codes.md. That it does not fit is an answer.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from profiler.analytical.explanation.explained import explain
from profiler.command_line import as_command
from profiler.config.architecture import read_architecture
from profiler.config.model_lookup import builtin_architecture
from profiler.config.specification import attention_line, parse_point
from profiler.config.trl_config import read_trl_config
from profiler.config.verl_config import SECTION
from profiler.domain.architecture import Architecture
from profiler.domain.errors import EXIT_OK, UsageError
from profiler.domain.trial import Backend
from profiler.estimate.command import Command, OutputFormat, read_command
from profiler.estimate.config_file import load_config
from profiler.estimate.verl import verl_answer
from profiler.rendering.estimate_json import estimate_json
from profiler.rendering.estimate_table import estimate_table
from profiler.storage.model_config import load_model_config

ModelConfigLoader = Callable[[str], Mapping[str, object]]

_USAGE = """\
python -m profiler.estimate model=NAME [key=value ...] [format=table|json]
python -m profiler.estimate config=FILE.yaml [key=value ...]

What training needs of a GPU, by phase and category, in closed form.
NAME is a built-in model, a hub id, or a local folder or config.json. FILE is a
GRPOConfig of trl, or a configuration of verl. Keys are those of a sweep
(python -m profiler.sweep --help) and win over the file.

Examples:
  python -m profiler.estimate model=qwen2.5-7b tuning=lora gpu=h100-80gb
  python -m profiler.estimate model=llama-3.1-8b optim=adamw_8bit beta=0.04
  python -m profiler.estimate recipe=sft model=qwen2.5-7b max_length=2048
  python -m profiler.estimate config=my_grpo.yaml gpu=a100-80gb format=json
"""


@as_command("estimate")
def main(argv: Sequence[str] | None = None, *, load_model: ModelConfigLoader = load_model_config) -> int:
    """Print the estimate that `argv` (without the program) asks for; gives the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    return _say(answer(words, load_model=load_model))


def answer(words: Sequence[str], *, load_model: ModelConfigLoader = load_model_config) -> str:
    """What `words` ask for, as text.

    Raises:
        UsageError: Carries every fault that was found.
    """
    command = read_command(words)
    if command.wants_help:
        return _USAGE

    def architecture_of(model: str) -> Architecture:
        return builtin_architecture(model) or read_architecture(load_model(model), model=model)

    values = _file_values(command)
    if values is not None and SECTION in values:
        return verl_answer(command, values, architecture_of)
    return _trial_answer(command, values, architecture_of)


def _file_values(command: Command) -> Mapping[str, object] | None:
    """What the file holds; None where none is named."""
    if command.config is None:
        return None
    try:
        return load_config(command.config)
    except UsageError as error:
        raise UsageError((*command.faults, *error.faults)) from error


def _trial_answer(
    command: Command, values: Mapping[str, object] | None, architecture_of: Callable[[str], Architecture]
) -> str:
    faults = list(command.faults)
    point: dict[str, object] = {"backend": Backend.SIMULATED.value}
    if values is not None:
        reading = read_trl_config(values)
        point.update(reading.point)
        faults.extend(reading.faults)
    point.update(command.keys)
    if point["backend"] == "auto":
        point["backend"] = Backend.SIMULATED.value
    try:
        spec = parse_point(point, architecture_of=architecture_of)
    except UsageError as error:
        faults.extend(error.faults)
    if faults:
        raise UsageError(tuple(dict.fromkeys(faults)))
    architecture = architecture_of(spec.model)
    explained = explain(spec, architecture)
    if command.output_format is OutputFormat.JSON:
        return estimate_json(explained)
    line = attention_line(spec, architecture)
    return (f"{line}\n" if line else "") + estimate_table(explained)


def _say(text: str) -> int:
    """Write `text`; a reader such as `head` may have seen enough before its end."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_OK
