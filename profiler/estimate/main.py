"""`python -m profiler.estimate model=NAME [key=value ...]`: the memory of a trial, or of a grid, in closed form.

Exit codes: docs/exit_codes.md. An estimate that does not fit ends with 0, unless `fail_if` says otherwise.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import fill

from profiler.analytical.explanation.cards import Fit, all_cards
from profiler.analytical.explanation.explained import explain
from profiler.analytical.explanation.verl_fit import Unanswered
from profiler.command_line import as_command, print_error, print_text
from profiler.config.images import images_line
from profiler.config.key_help import trial_keys_help
from profiler.config.model_lines import model_lines
from profiler.config.option import OutputFormat
from profiler.config.specification import attention_line
from profiler.domain.architecture import Architecture
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, FailIf
from profiler.domain.trial import Backend, TrialSpec
from profiler.estimate.command import Command, read_command
from profiler.estimate.grid import answered_grid
from profiler.estimate.inputs import Inputs, ModelConfigLoader, architecture_lookup, job_files, read_inputs
from profiler.estimate.reward_models import with_reward_models
from profiler.estimate.trial import notes_of_all, parsed_trial
from profiler.estimate.verl import verl_answer
from profiler.rendering.estimate.card_list import card_list, card_list_json
from profiler.rendering.estimate.grid import grid_json, grid_table
from profiler.rendering.estimate.table import estimate_json, estimate_table
from profiler.rendering.layouts.plain_text import WIDTH
from profiler.storage.model_config import load_model_config
from profiler.storage.price_file import load_prices, unknown_cards_line

_USAGE = """\
python -m profiler.estimate model=NAME [key=value ...] [format=table|json]
python -m profiler.estimate model=NAME,NAME key=value,value [key=value ...]
python -m profiler.estimate config=FILE [config=FILE ...] [key=value ...]

What training needs of a GPU, by phase and category, in closed form.
NAME is a built-in model, a hub id, or a local folder or config.json. FILE is a
configuration of trl (GRPO, RLOO or SFT) or of verl: its YAML, a run script, or
its defaults (config=verl), with Hydra's overrides as further words. Files next
to a recipe of trl are read with it: accelerate's, DeepSpeed's, an
adapter_config.json, and the script, whose literals are read without running it.
Keys win over files. Keys of FILE that trl does not have are listed and ignored;
strict=true refuses them.

What a file of trl leaves open has the defaults of the release that it is for:
its keys say which these can be, trl=0.18 says which it is. Where the releases
differ, the peaks of all are printed, and the dearest is answered.

gpu is a card's name or a part of it (gpu=4090), a size (gpu=24GiB, or
gpu_memory_gib=24 compute_capability=8.6), or any, for the verdict of every card.
prices=FILE.csv (gpu,price_per_hour,currency,source,date) puts the cheapest card
that fits first.

Several values of a key, separated by commas, give one table of the estimates of
all combinations (at most 100,000). Quote a value that contains a comma.

fail_if=does_not_fit ends with exit code 4 if the trial does not fit its card,
fail_if=tight also if it is tight; of several trials if one is so, of gpu=any if
no card is better.

Keys of a trial [default]:
{keys}
Examples:
  python -m profiler.estimate model=qwen2.5-7b tuning=lora gpu=a100-40gb
  python -m profiler.estimate model=qwen2.5-3b,qwen2.5-7b num_generations=4,8
  python -m profiler.estimate recipe=sft model=qwen2.5-7b max_length=2048
  python -m profiler.estimate config=grpo.yaml format=json
  python -m profiler.estimate config=grpo.yaml config=accelerate.yaml
  python -m profiler.estimate config=train.py gpu=4090
  python -m profiler.estimate config=run_qwen2-7b.sh trainer.n_gpus_per_node=4
  python -m profiler.estimate model=qwen2.5-7b gpu=any
"""


@as_command("estimate")
def main(argv: Sequence[str] | None = None, *, load_model: ModelConfigLoader = load_model_config) -> int:
    """Print the estimate for `argv` (without the program) and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    found = _answered(words, load_model=load_model, say=print_error)
    print_text(found.text)
    return EXIT_ANSWER_IS_NO if found.is_no else EXIT_OK


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The output of a command."""

    text: str
    is_no: bool = False
    """Whether `fail_if` asks for the verdict that was found."""


def _keep_silent(line: str) -> None:
    """Drop `line`."""


def answer(
    words: Sequence[str],
    *,
    load_model: ModelConfigLoader = load_model_config,
    say: Callable[[str], None] = _keep_silent,
) -> str:
    """Return the output for `words`, as `_answered`.

    Args:
        words: The command line without the program.
        load_model: The content of the `config.json` of a model that is not built in.
        say: Called with each line that is not part of the answer.

    Raises:
        UsageError: With all faults that were found.
    """
    return _answered(words, load_model=load_model, say=say).text


def _answered(words: Sequence[str], *, load_model: ModelConfigLoader, say: Callable[[str], None]) -> _Answer:
    command = read_command(words)
    if command.wants_help:
        return _Answer(text=_USAGE.format(keys=trial_keys_help(given=Backend.SIMULATED)))
    architecture_of = architecture_lookup(load_model)
    files = job_files(command)
    if files.verl is not None:
        text, fit = verl_answer(command, files.verl, architecture_of, say)
        return _Answer(text=text, is_no=fails(command.fail_if, [fit]))
    common, architecture_of = with_reward_models(read_inputs(command, files.part), architecture_of)
    if common.ignored:
        say(common.ignored)
    if command.any_card:
        return _cards_answer(command, common, architecture_of, say)
    if command.axes:
        return _grid_answer(command, common, architecture_of)
    return _trial_answer(command, common, architecture_of)


def fails(fail_if: FailIf | None, verdicts: Iterable[Fit | Unanswered | None]) -> bool:
    """Return whether one of `verdicts` is what `fail_if` asks for."""
    failing: set[Fit | Unanswered] = {Fit.TOO_LARGE, Fit.NO_ENGINE, Fit.NO_KERNEL, Unanswered.NOT_POSSIBLE}
    if fail_if is FailIf.TIGHT:
        failing |= {Fit.TIGHT, Unanswered.UNDECIDED}
    return fail_if is not None and any(verdict in failing for verdict in verdicts)


def _cards_answer(
    command: Command, common: Inputs, architecture_of: Callable[[str], Architecture], say: Callable[[str], None]
) -> _Answer:
    spec, notes = parsed_trial(common, architecture_of)
    prices = load_prices(command.prices) if command.prices is not None else None
    if prices is not None and unknown_cards_line(prices):
        say(unknown_cards_line(prices))
    notes = with_images_line(notes, spec, architecture_of(spec.model))
    cards = all_cards(spec, architecture_of(spec.model))
    show_cards = card_list_json if command.output_format is OutputFormat.JSON else card_list
    text = show_cards(spec, cards, prices.by_card if prices is not None else None, notes)
    return _Answer(text=text, is_no=all(fails(command.fail_if, [card.fit]) for card in cards))


def _trial_answer(command: Command, common: Inputs, architecture_of: Callable[[str], Architecture]) -> _Answer:
    spec, notes = parsed_trial(common, architecture_of)
    architecture = architecture_of(spec.model)
    notes = with_images_line(notes, spec, architecture)
    explained = explain(spec, architecture)
    fits = [card.fit for card in explained.cards if card.gpu.name == spec.gpu]
    is_no = fails(command.fail_if, fits)
    if command.output_format is OutputFormat.JSON:
        return _Answer(text=estimate_json(explained, notes=notes), is_no=is_no)
    lines = _lines(notes, (attention_line(spec, architecture),))
    return _Answer(text=lines + estimate_table(explained), is_no=is_no)


def _grid_answer(command: Command, common: Inputs, architecture_of: Callable[[str], Architecture]) -> _Answer:
    grid = answered_grid(common, command.axes, architecture_of)
    specs = [point.spec for point in grid.points]
    architectures = {model: architecture_of(model) for model in dict.fromkeys(spec.model for spec in specs)}
    is_no = fails(command.fail_if, [point.fit for point in grid.points])
    if command.output_format is OutputFormat.JSON:
        return _Answer(text=grid_json(grid), is_no=is_no)
    images = dict.fromkeys(images_line(spec, architectures[spec.model], with_prompt=False) for spec in specs)
    lines = dict.fromkeys(
        line
        for spec in specs
        for line in (attention_line(spec, architectures[spec.model]), *model_lines(spec, architectures[spec.model]))
    )
    notes = notes_of_all(common, specs, architecture_of)
    return _Answer(text=_lines(tuple(images), notes, tuple(lines)) + grid_table(grid), is_no=is_no)


def with_images_line(notes: Sequence[str], spec: TrialSpec, architecture: Architecture) -> tuple[str, ...]:
    """Return `notes` after what is assumed about images, if the model sees some."""
    line = images_line(spec, architecture)
    return (line, *notes) if line else tuple(notes)


def _lines(*parts: Sequence[str]) -> str:
    return "".join(f"{fill(line, WIDTH, break_on_hyphens=False)}\n" for lines in parts for line in lines if line)
