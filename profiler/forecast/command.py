"""The command line of `python -m profiler.forecast`: its options beyond those of an estimate, and the help text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from profiler.analysis.forecast.lengths import FORMS, ONE, Distribution, SamplingStrategy, distribution_of
from profiler.config.options.command_words import as_pairs, read_given
from profiler.config.options.option import (
    FLAG,
    Kind,
    OutputFormat,
    choice,
    count,
    format_option,
    name,
    option,
    options_of,
    path,
)
from profiler.config.options.reading import FieldReader, show
from profiler.config.options.run_options import option_lines
from profiler.config.options.value_grammar import read_path
from profiler.domain.errors import FailIf, Fault, UsageError
from profiler.domain.trials.recipe import GENERATING, Recipe
from profiler.domain.trials.trial import Lengths, Logprobs
from profiler.estimate.command import COMMON_OPTIONS, LAUNCH, NO_LENGTHS, TOKENIZER
from profiler.estimate.command import Command as EstimateCommand
from profiler.estimate.command import read_pairs as read_estimate
from profiler.storage.foreign.number_files import LENGTHS

PROMPTS, COMPLETIONS, GROWTH, SAMPLING, LOG = "prompts", "completions", "growth", "train_sampling_strategy", "log"
STEPS = "steps"
"""A key of a trial: here the steps of the run."""

DEFAULT_STEPS = 1000
"""Steps of a run that states none (our choice): public reports die at 600 to 700."""

MOST_STEPS = 100_000

DEFAULT_EVAL_BATCH = 8
"""transformers' default of `per_device_eval_batch_size`."""

DEFAULT_EVALUATED = 128
"""Rows, or completions, of an evaluation where none are stated (our choice): 16 batches of the default."""

_MOST_SEEDS = 1000
_LEAST_GROWTH = 0.01


def _distribution(least: float, shown: str) -> Kind[Distribution]:
    def read(reader: FieldReader, key: str) -> Distribution | None:
        try:
            return distribution_of(str(reader.value(key)), least=least)
        except ValueError as error:
            reader.fail(key, str(error))
            return None

    return Kind(allowed=FORMS, shown=shown, read=read, read_text=read_path)


_TOKENS, _FACTOR = _distribution(1, "LENGTHS"), _distribution(_LEAST_GROWTH, "FACTOR")


class EvalStrategy(StrEnum):
    """When the model is evaluated, by transformers' names."""

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"


class SaveStrategy(StrEnum):
    """When checkpoints are written, by transformers' names.

    Their tensors are copied to the host one by one, so that no step of one GPU has another memory. Sources: `_save` of
    torch/serialization.py, and `_to_ndarray` of safetensors/torch.py.
    """

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"
    BEST = "best"


@dataclass(frozen=True, kw_only=True)
class ForecastOptions:
    """The options, in the order of the help text."""

    lengths: str | None = option(
        None,
        name("a file or a folder", "FILE"),
        'lengths of rows: JSON lines or a text of numbers, lines {"prompt": N, "completion": N} (of pairs "chosen" and '
        '"rejected"), or with tokenizer a data set on disk',
        null="prompts and completions, or log, say them",
    )
    prompts: Distribution | None = option(
        None, _TOKENS, "tokens of the prompts", null="those of lengths or log, else all max_prompt_length"
    )
    completions: Distribution | None = option(
        None,
        _TOKENS,
        f"tokens of the completions, or of whole rows: {FORMS}; the mean is that of the lengths, the sigma of "
        "lognormal that of their logarithms",
        null="those of lengths or log",
    )
    growth: Distribution = option(
        ONE,
        _FACTOR,
        "completions of the last step as a multiple of those of the first, sampled once per seed, and linear between "
        "them: 1.5, or uniform(1,2)",
    )
    train_sampling_strategy: SamplingStrategy | None = option(
        None,
        choice(SamplingStrategy),
        "order of whole rows (SFT), as transformers' key of this name: group_by_length sorts them, the longest first",
        null="that of config, else random",
    )
    log: str | None = option(
        None,
        name("a file", "FILE"),
        "a run that is under way, or died: trainer_state.json, JSON lines, or the console of verl; its lengths and "
        "their trend, and whether they explain the memory that it measured",
        null="none",
    )
    tokenizer: str | None = option(
        None, name("a folder", "FOLDER"), "counts the tokens of a data set in lengths", null="lengths has numbers"
    )
    seeds: int = option(10, count(maximum=_MOST_SEEDS), "runs with other draws of the same lengths", unit="seeds")
    levers: bool = option(
        False,
        FLAG,
        "forecast each change that may save the run too: shorter rows, smaller micro-batches, the allocator",
    )
    save_strategy: SaveStrategy | None = option(
        None,
        choice(SaveStrategy),
        "when checkpoints are written, as transformers' key of this name; on one GPU none takes memory",
        null="that of config",
    )
    save_steps: int | None = option(
        None, count(), "steps between two checkpoints", unit="steps", null="those of config"
    )
    eval_strategy: EvalStrategy | None = option(
        None,
        choice(EvalStrategy),
        "when the model is evaluated, as transformers' key of this name",
        null="steps with eval_steps, else that of config",
    )
    eval_steps: int | None = option(
        None, count(), "steps from one evaluation to the next", unit="steps", null="that of config"
    )
    per_device_eval_batch_size: int | None = option(
        None,
        count(),
        "rows, pairs or completions that are evaluated at once",
        unit="rows",
        null=f"that of config, else {DEFAULT_EVAL_BATCH}, transformers' default",
    )
    max_eval_samples: int | None = option(
        None,
        count(),
        "rows, pairs or prompts of each evaluation; their lengths are drawn as those of training",
        unit="rows",
        null=f"that of config, else {DEFAULT_EVALUATED}, or prompts with as many completions",
    )
    num_generations_eval: int | None = option(
        None,
        count(),
        "completions per prompt of an evaluation of GRPO or RLOO",
        null="that of config, else num_generations",
    )
    results_dir: PurePath = option(
        PurePath("results"), path("a folder", "FOLDER"), "page, tables and figure go to FOLDER/forecast/NAME"
    )
    output_format: OutputFormat = format_option()
    fail_if: FailIf | None = option(
        None,
        choice(FailIf, FailIf.DIES),
        "end with exit code 4 if a seed runs out of memory",
        null="exit code 0",
    )


_OWN = options_of(ForecastOptions)

OPTIONS = {**COMMON_OPTIONS, **_OWN}
"""By name."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with it."""

    options: ForecastOptions
    rest: EstimateCommand
    """Everything else, read as for an estimate."""
    wants_help: bool
    faults: tuple[Fault, ...]

    @property
    def is_json(self) -> bool:
        """Whether the answer is JSON."""
        return self.options.output_format is OutputFormat.JSON

    @property
    def is_log_alone(self) -> bool:
        """Whether it names a log and no job, and asks nothing that needs one."""
        rest, options = self.rest, self.options
        names_job = "model" in rest.keys or rest.configs or rest.options.launch is not None or rest.overrides
        return options.log is not None and not names_job and not self.faults and options.fail_if is None


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program)."""
    given = read_given(ForecastOptions, as_pairs(words, rest=LAUNCH))
    rest = read_estimate(given.others, OPTIONS)
    reader, options = given.reader, given.options
    if options.lengths in list(Lengths):
        reader.fail(LENGTHS, "must be a file: a forecast draws its lengths", "Write completions=lognormal(400,0.8).")
    for key in (LENGTHS, COMPLETIONS):
        others = [other for other in (LENGTHS, COMPLETIONS, LOG) if other != key and reader.value(other) is not None]
        if reader.value(key) is not None and LENGTHS in (key, *others) and COMPLETIONS in (key, *others):
            reader.fail(key, f"says how long completions are, and so does {others[0]}; leave one of them out")
            break
    if options.tokenizer is not None and options.lengths is None:
        reader.fail(TOKENIZER, NO_LENGTHS)
    if options.lengths is None and options.completions is None and options.log is None and not given.wants_help:
        problem = "is missing; say how long rows are: lengths=FILE, completions=lognormal(400,0.8) or log=FILE"
        rest_fault = [] if reader.faults else [Fault(key=COMPLETIONS, found="none", problem=problem)]
    else:
        rest_fault = []
    faults = (*rest.faults, *reader.faults, *rest_fault, *_faults_of_one_run(rest))
    return Command(options=options, rest=rest, wants_help=given.wants_help, faults=faults)


def _faults_of_one_run(rest: EstimateCommand) -> list[Fault]:
    faults = []
    if rest.any_card:
        problem = "asks for every card, and a forecast is for one; `python -m profiler.solve gpu` finds the smallest"
        faults.append(Fault(key="gpu", found="any", problem=problem))
    steps = rest.keys.get(STEPS)
    if isinstance(steps, int) and steps > MOST_STEPS:
        faults.append(Fault(key=STEPS, found=str(steps), problem=f"must be at most {MOST_STEPS:,}"))
    problem = "has several values, and a forecast is for one run"
    return faults + [
        Fault(key=key, found=",".join(map(str, values)), problem=problem) for key, values in rest.axes.items()
    ]


# ---- evaluations -----------------------------------------------------------------------------------------------------

_LOGGING_STEPS = 10
"""trl's default of `logging_steps`, which is that of `eval_steps` too (`_BaseConfig` of trl 1.16)."""
EVAL_BATCH, EVAL_GROUP, EVAL_ROWS = "per_device_eval_batch_size", "num_generations_eval", "max_eval_samples"


def eval_steps_of(
    options: ForecastOptions, values: Mapping[str, object], *, steps: int, epoch: int | None
) -> int | None:
    """Return the steps from one evaluation to the next; None if none follows a step.

    Args:
        options: What the command says, which wins.
        values: What a file of trl says.
        steps: Of the run, which a fraction is of.
        epoch: Steps of an epoch; None if they are unknown.

    Source of the defaults: `TrainingArguments.__post_init__` and `TrainerState.compute_steps` of transformers 5.23.

    Raises:
        UsageError: It is unknown how many steps an epoch has, or the number is none.
    """
    strategy = _strategy(options, values)
    if strategy is EvalStrategy.NO:
        return None
    if strategy is EvalStrategy.EPOCH:
        if epoch is None:
            problem = "needs the size of the data set, which says how many steps an epoch has"
            hint = "Give lengths=FILE with a line for each row, pair or prompt, or eval_steps=N."
            raise UsageError([Fault(key="eval_strategy", found="epoch", problem=problem, hint=hint)])
        return epoch
    stated = options.eval_steps or values.get("eval_steps") or values.get("logging_steps") or _LOGGING_STEPS
    if not isinstance(stated, int | float) or stated <= 0:
        raise UsageError([Fault(key="eval_steps", found=show(stated), problem="must be a number above 0")])
    return math.ceil(stated * steps) if stated < 1 else int(stated)


def _strategy(options: ForecastOptions, values: Mapping[str, object]) -> EvalStrategy:
    if options.eval_strategy is not None:
        return options.eval_strategy
    if options.eval_steps is not None:
        return EvalStrategy.STEPS
    named = str(values.get("eval_strategy") or values.get("evaluation_strategy") or EvalStrategy.NO)
    return EvalStrategy(named) if named in list(EvalStrategy) else EvalStrategy.NO


def eval_delay_of(values: Mapping[str, object], steps: int | None) -> float:
    """Return the steps before which there is no evaluation; a file that evaluates by epoch states epochs."""
    delay = values.get("eval_delay")
    if not isinstance(delay, int | float):
        return 0
    is_epochs = EvalStrategy.EPOCH in (values.get("eval_strategy"), values.get("evaluation_strategy"))
    return delay * (steps or 1) if is_epochs else delay


def whole_number(values: Mapping[str, object], key: str) -> int | None:
    """Return the whole number above 0 that a file has for a key; None if it has none."""
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def refuse_idle(options: ForecastOptions, recipe: Recipe, *, is_evaluated: bool) -> None:
    """Refuse keys of evaluations that change nothing.

    Raises:
        UsageError: There is one.
    """
    if options.num_generations_eval is not None and recipe not in GENERATING:
        problem = f"has no meaning with recipe={recipe}, whose evaluations generate nothing"
        raise UsageError([Fault(key=EVAL_GROUP, found=str(options.num_generations_eval), problem=problem)])
    for key in () if is_evaluated or options.eval_strategy is not None else (EVAL_BATCH, EVAL_GROUP, EVAL_ROWS):
        if (found := getattr(options, key)) is not None:
            said = {"problem": "is of evaluations, and nothing says when they come", "hint": "Add eval_steps=N."}
            raise UsageError([Fault(key=key, found=str(found), **said)])


_UNKNOWN_IN_EVALUATION = {
    "batch_eval_metrics": "empties the cache after every batch of an evaluation",
    "include_for_metrics": "keeps inputs of an evaluation on the card",
    "generate_during_eval": "generates completions in an evaluation",
}
"""Keys that change an evaluation as no forecast does.

The last one is of `DPOTrainer` of trl 0.14 to 0.28 and of `KTOTrainer` of trl 0.14 to 0.25; the others are of
transformers.
"""


def refuse_other_evaluations(values: Mapping[str, object]) -> None:
    """Refuse evaluations that a file changes in a way that has no forecast.

    Raises:
        UsageError: It does.
    """
    for key, problem in _UNKNOWN_IN_EVALUATION.items():
        if values.get(key):
            raise UsageError([Fault(key=key, found=show(values[key]), problem=f"{problem}, which has no forecast")])


_UNREAD_LOSSES = (Logprobs.CHUNKED_NLL_MASKED, Logprobs.CHUNKED_NLL_CAST, Logprobs.NLL_ENTROPY)
"""Those that may be of trl 1.10 to 1.14, of which the evaluation was not read."""


def assumed_loss(logprobs: Logprobs) -> str:
    """Return what is assumed of the loss of an evaluation, after a space; it is that of training.

    Source: `SFTTrainer` (each minor release) and `DPOTrainer` (v0.14, v0.24, v0.29, v1.9) up to 1.9, and trl 1.16.
    """
    if logprobs is Logprobs.FULL:
        return " trl 1.14 takes one log-softmax of a row less than is counted, and trl 0.14 cannot evaluate."
    is_unread = logprobs in _UNREAD_LOSSES
    return is_unread * " Assumed: trl 1.10 to 1.14 evaluate with the loss of training, as 0.14 to 1.9 do."


# ---- the help text ---------------------------------------------------------------------------------------------------


def usage() -> str:
    """Return the help text."""
    return f"""\
python -m profiler.forecast config=FILE gpu=CARD lengths=FILE [key=value ...]
python -m profiler.forecast model=NAME gpu=CARD completions=LENGTHS [steps=N]
python -m profiler.forecast log=FILE [config=FILE] [gpu=CARD] [key=value ...]

Whether a whole run survives: the memory of each of its steps, with lengths of
rows that are sampled, replayed through the allocator of CARD with its state
carried on. The answer has the probability to run out of memory by step over the
seeds, the step and the batch that do it, the peak against the worst case that
the estimate prices, and what the allocator keeps. With log=FILE it says whether
longer rows explain the memory that a run measured, or whether it is a leak;
without a job, how both grow.

{option_lines(_OWN.values(), indent=24)}
LENGTHS is a number, uniform(low,high), normal(mean,sigma) or
lognormal(mean,sigma); lengths above max_completion_length, max_prompt_length or
max_length are cut to it. steps is that of log, or {DEFAULT_STEPS:,}. A forecast that was
killed goes on.

The other keys and FILE of config are those of python -m profiler.estimate. A
clone has examples of all three files in examples/forecast.

Examples:
  python -m profiler.forecast config=grpo.yaml gpu=h100 lengths=lengths.jsonl
  python -m profiler.forecast config=grpo.yaml completions='lognormal(420,0.9)'
  python -m profiler.forecast model=qwen2.5-7b tuning=lora completions=400
  python -m profiler.forecast log=trainer_state.json config=grpo.yaml
"""
