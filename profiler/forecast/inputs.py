"""What a forecast is made of: lengths, from files, data sets, distributions and logs; and the changes that it tries."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from profiler.analysis.forecast.lengths import (
    ONE,
    Distribution,
    Law,
    Recorded,
    RunLengths,
    SamplingStrategy,
    Source,
    evaluated_rows,
)
from profiler.analysis.forecast.outlook import why_not_compared
from profiler.analysis.forecast.training_log import (
    LogError,
    LoggedLengths,
    TrainingLog,
    logged_lengths,
    logged_prompts,
    read_log,
)
from profiler.config.options.reading import show
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu_names import find_gpu, gpu_named, name_card
from profiler.domain.errors import Fault, UsageError
from profiler.domain.runs.forecast import (
    MOST_BATCHES,
    note_of_reference,
    steps_of_epoch,
    why_not_evaluated,
    why_rows_are_unknown,
)
from profiler.domain.trials.kernels import missing_kernel
from profiler.domain.trials.recipe import GENERATING, Recipe
from profiler.domain.trials.trial import Evaluations, TrialSpec
from profiler.estimate.job.counting import length_file
from profiler.estimate.job.inputs import ArchitectureLookup, Inputs
from profiler.estimate.job.trial import dearest_spec
from profiler.forecast.command import (
    DEFAULT_EVAL_BATCH,
    DEFAULT_EVALUATED,
    EVAL_BATCH,
    EVAL_GROUP,
    LOG,
    SAMPLING,
    Command,
    EvalStrategy,
    ForecastOptions,
    assumed_loss,
    eval_delay_of,
    eval_steps_of,
    refuse_idle,
    refuse_other_evaluations,
    whole_number,
)
from profiler.storage.foreign.number_files import LENGTHS, LengthFile, read_named

if TYPE_CHECKING:  # most forecasts read no file
    from profiler.config.trl.parts import JobFile

_OLDER_SAMPLING = "group_by_length"
"""What transformers before 5 has in place of `train_sampling_strategy`."""


@dataclass(frozen=True, kw_only=True)
class LengthInputs:
    """The lengths that a command names."""

    lengths: RunLengths
    notes: tuple[str, ...]
    """What was assumed; a sentence each."""
    evaluation: "EvaluationPlan | None"


def training_log(options: ForecastOptions) -> TrainingLog | None:
    """Return the log that the options name; None if they name none.

    Raises:
        UsageError: It cannot be read, or is no log of a trainer that is known.
    """
    if options.log is None:
        return None
    try:
        return read_log(read_named(options.log, LOG).decode(errors="replace"))
    except LogError as error:
        raise UsageError([Fault(key=LOG, found=options.log, problem=str(error))]) from error


def limit_of_card(command: Command) -> int | None:
    """Return the bytes that the card of a command has beyond CUDA's context; None if it names no card.

    Raises:
        UsageError: The card is unknown.
    """
    named = command.rest.keys.get("gpu")
    if named is None:
        return None
    card = name_card(show(named))
    gpu = find_gpu(card.name)
    if gpu is None:
        raise UsageError([Fault(key="gpu", found=show(named), problem=card.problem, hint=card.hint)])
    return gpu.usable_bytes


def with_forecast(spec: TrialSpec) -> TrialSpec:
    """Return a trial that has a forecast, without its evaluations, which have a plan.

    Raises:
        UsageError: Its rows are grouped in an unknown way, or its card has no kernel for it.
    """
    spec = replace(spec, per_device_eval_batch_size=None)
    fault = why_rows_are_unknown(spec)
    missing = missing_kernel(spec, gpu_named(str(spec.gpu)).chip)
    if fault is None and missing is not None:
        problem = f"has no kernel for this job: {missing.name} does not run there"
        fault = Fault(key="gpu", found=str(spec.gpu), problem=problem, hint=missing.hint)
    if fault is not None:
        raise UsageError([fault])
    return spec


# ---- evaluations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """The evaluations of a run."""

    when: Evaluations
    """Without lengths."""
    rows: int
    """Or pairs, or prompts."""
    lengths: RunLengths
    is_packed: bool
    """Whether every row is as long as `max_length` allows."""

    def of(self, spec: TrialSpec, seed: int) -> Evaluations:
        """Return the evaluations of a seed of a trial, with the lengths of their rows."""
        found = evaluated_rows(self.when, self.rows, self.lengths, spec, seed)
        return replace(found, completions=(spec.row_tokens,) * len(found.completions)) if self.is_packed else found

    def rows_generated(self, steps: int) -> int:
        """Return the completions of all evaluations in a run of so many steps; 0 where they are rows of data."""
        return self.rows * (self.when.num_generations_eval or 0) * self.when.count(steps)

    def sentence(self, spec: TrialSpec, *, are_rows_assumed: bool) -> str:
        """Return when is evaluated, what, and what is assumed."""
        when = self.when
        every = "" if when.eval_steps is None else f" after every {when.eval_steps:,} steps and the last one"
        start = ("" if when.eval_steps is None else " and") + " before the first step" if when.eval_on_start else ""
        assumed = " (assumed; see max_eval_samples)" if are_rows_assumed else ""
        said = f"Evaluated{every}{start}: {self.rows:,}"
        if (each := when.num_generations_eval) is not None:
            return (
                f"{said} prompts{assumed} with {each:,} completions each, {when.per_device_eval_batch_size:,} at once, "
                "as long as those of training: completions are sampled anew each time, prompts once per seed."
                f"{assumed_loss(spec.logprobs)}"
            )
        return (
            f"{said} rows{assumed}, {when.per_device_eval_batch_size:,} at once, the same ones with every seed. With "
            f"compute_metrics their logits would stay too.{assumed_loss(spec.logprobs)}"
        )

    def estimated(self, spec: TrialSpec) -> TrialSpec:
        """Return a trial whose estimate has the evaluations."""
        each, at_once = self.when.num_generations_eval or 1, self.when.per_device_eval_batch_size
        return replace(spec, per_device_eval_batch_size=min(at_once, each * self.rows))


def evaluation_plan(
    options: ForecastOptions, values: Mapping[str, object], lengths: RunLengths, spec: TrialSpec
) -> EvaluationPlan | None:
    """Return the evaluations that options and a file of trl ask for; None if there are none.

    Raises:
        UsageError: They have no forecast.
    """
    generates = spec.recipe in GENERATING
    source = lengths.prompts if generates else lengths.completions
    known = source.values if isinstance(source, Recorded) and source.is_data_set else None
    epoch = None if known is None else steps_of_epoch(spec, len(known))
    steps = eval_steps_of(options, values, steps=spec.steps, epoch=epoch)
    on_start = values.get("eval_on_start") is True and options.eval_strategy is not EvalStrategy.NO
    refuse_idle(options, spec.recipe, is_evaluated=steps is not None or on_start)
    if steps is None and not on_start:
        return None
    refuse_other_evaluations(values)
    at_once = options.per_device_eval_batch_size or whole_number(values, EVAL_BATCH) or DEFAULT_EVAL_BATCH
    each = options.num_generations_eval or whole_number(values, EVAL_GROUP) or spec.num_generations if generates else 1
    if (fault := why_not_evaluated(spec, rows=at_once, each=each)) is not None:
        raise UsageError([fault])
    assumed = max(1, DEFAULT_EVALUATED // each)
    rows = options.max_eval_samples or whole_number(values, "max_eval_samples") or assumed
    if spec.recipe is Recipe.KTO:  # a batch has the KL term of whole micro-batches of training
        rows = -(-rows // spec.per_device_train_batch_size) * spec.per_device_train_batch_size
    if rows * each > MOST_BATCHES * at_once:
        problem = (
            f"is more than {MOST_BATCHES:,} batches of {EVAL_BATCH}={at_once}, which is as much as a forecast replays"
        )
        raise UsageError([Fault(key="max_eval_samples", found=str(rows), problem=problem, hint="Give fewer.")])
    packed = values.get("eval_packing")
    return EvaluationPlan(
        when=Evaluations(
            eval_steps=steps,
            per_device_eval_batch_size=at_once,
            num_generations_eval=each if generates else None,
            completions=(),
            eval_delay=eval_delay_of(values, steps),
            eval_on_start=on_start,
            eval_accumulation_steps=whole_number(values, "eval_accumulation_steps"),
        ),
        rows=rows,
        lengths=lengths,
        is_packed=spec.recipe is Recipe.SFT and (values.get("packing") if packed is None else packed) is True,
    )


# ---- lengths ---------------------------------------------------------------------------------------------------------


def _sampling(options: ForecastOptions, part: "JobFile | None", spec: TrialSpec) -> tuple[SamplingStrategy, str]:
    """Return the order of rows, and what was assumed about it.

    Raises:
        UsageError: The options name one for a recipe that generates.
    """
    own, random = options.train_sampling_strategy, SamplingStrategy.RANDOM
    if spec.recipe is not Recipe.SFT and own not in (None, random):
        raise UsageError([Fault(key=SAMPLING, found=str(own), problem=_why_not_sorted(spec.recipe))])
    if spec.recipe.facts.has_rollout:
        return random, ""
    if own is not None:
        return own, ""
    values = part.values if part is not None else {}
    grouped = SamplingStrategy.GROUP_BY_LENGTH
    named = values.get(SAMPLING) or (grouped if values.get(_OLDER_SAMPLING) is True else random)
    if named not in list(SamplingStrategy) or (named is grouped and spec.recipe is not Recipe.SFT):
        return random, f"Assumed: rows come in random order, because {SAMPLING}={show(named)} has no forecast."
    return SamplingStrategy(str(named)), ""


def _why_not_sorted(recipe: Recipe) -> str:
    if recipe.facts.has_rollout:
        return f"has no meaning with recipe={recipe}, which pads the rows of a generation to the longest"
    return f"has no forecast with recipe={recipe}: transformers sorts by `input_ids`, which its rows do not have"


def length_inputs(
    options: ForecastOptions,
    part: "JobFile | None",
    log: TrainingLog | None,
    spec: TrialSpec,
    architecture: Architecture,
) -> LengthInputs:
    """Return the lengths of a run of `spec`, whose file is `part`.

    Raises:
        UsageError: A file cannot be read, has no lengths, or has rows that the model cannot read.
    """
    has_rollout, has_prompts = spec.recipe.facts.has_rollout, spec.recipe.facts.has_prompts
    path = options.lengths
    file = None if path is None else length_file(path, options.tokenizer, has_prompts=has_prompts)
    completions = options.completions or _of_file(file, has_rollout=has_rollout) or _of_log(log, options)
    prompts: Source | None = None
    notes: list[str] = []
    if has_prompts:
        prompts = options.prompts or (Recorded(file.prompts, is_data_set=True) if file and file.prompts else None)
        if prompts is None and log is not None and has_rollout:
            rows = spec.training_rows * spec.gradient_accumulation_steps * spec.num_processes
            prompts = logged_prompts(log, rows)
        if prompts is None:
            prompts = Distribution(Law.FIXED, spec.max_prompt_length)
            notes.append(f"Assumed: every prompt has max_prompt_length={spec.max_prompt_length} tokens.")
    elif options.prompts is not None:
        problem = f"has no meaning with recipe={spec.recipe}, whose rows are whole; completions says how long they are"
        raise UsageError([Fault(key="prompts", found=str(options.prompts), problem=problem)])
    strategy, assumed = _sampling(options, part, spec)
    notes += [assumed] if assumed else []
    if file is not None and file.prompts and file.completions and has_prompts:
        notes.append("Prompts and completions are sampled independently of each other.")
    if isinstance(completions, LoggedLengths) and completions.trend is not None:
        low, high, end = completions.trend.low, completions.trend.high, completions.steps[-1].step
        notes.append(
            f"After step {end:,} of the log, completions go on to change by {low:+.2f} to {high:+.2f} tokens per step "
            f"(95 %), one slope per seed, never below the log's least mean nor above {_longest(spec):,}."
        )
    if options.growth != ONE:
        notes.append(
            f"Stated: completions grow to {options.growth} times their length by the last step, evenly, until they are "
            "cut; one factor per seed."
        )
    if log is not None and (reason := why_not_compared(log, completions)):
        notes.append(f"Leak or longer rows? Not compared: {reason}.")
    _refuse_beyond_context(spec, architecture)
    lengths = RunLengths(
        prompts=prompts, completions=completions, growth=options.growth, train_sampling_strategy=strategy
    )
    values = part.values if part is not None else {}
    plan = evaluation_plan(options, values, lengths, spec)
    if plan is not None:
        is_stated = options.max_eval_samples or whole_number(values, "max_eval_samples")
        notes.append(plan.sentence(spec, are_rows_assumed=not is_stated))
    if spec.precompute_ref_log_probs:
        known = len(prompts.values) if file and isinstance(prompts, Recorded) and file.completions else None
        note = note_of_reference(spec, known)
        if isinstance(note, Fault):
            raise UsageError([note])
        notes.append(note)
    return LengthInputs(lengths=lengths, notes=tuple(notes), evaluation=plan)


def _longest(spec: TrialSpec) -> int:
    return spec.max_completion_length if spec.recipe.facts.has_rollout else spec.row_tokens


def _refuse_beyond_context(spec: TrialSpec, architecture: Architecture) -> None:
    """Refuse rows that may be longer than the model reads.

    Raises:
        UsageError: They may.
    """
    if spec.row_tokens <= architecture.context:
        return
    key = "max_completion_length" if spec.recipe.facts.has_rollout else "max_length"
    context = f"the context of {spec.model}, {architecture.context:,} tokens"
    problem = f"allows rows of {spec.row_tokens:,} tokens, beyond {context}"
    raise UsageError([Fault(key=key, found=str(_longest(spec)), problem=problem, hint=f"Give a smaller {key}.")])


def _of_file(file: LengthFile | None, *, has_rollout: bool) -> Source | None:
    if file is None or not file.completions:
        return None
    return Recorded(file.completions, is_data_set=not has_rollout)


def _of_log(log: TrainingLog | None, options: ForecastOptions) -> Source:
    """Return the lengths of the log.

    Raises:
        UsageError: It has none.
    """
    if log is None:
        problem = "has prompts and no completions; completions=lognormal(400,0.8) says how long these are"
        raise UsageError([Fault(key=LENGTHS, found=str(options.lengths), problem=problem)])
    try:
        return logged_lengths(log)
    except LogError as error:
        hint = "Name them: lengths=FILE or completions=lognormal(400,0.8)."
        raise UsageError([Fault(key=LOG, found=str(options.log), problem=str(error), hint=hint)]) from error


# ---- levers ----------------------------------------------------------------------------------------------------------

_LEVER_LENGTH = 0.75
"""Part of the longest row that a lever leaves (our choice)."""


@dataclass(frozen=True, kw_only=True)
class Lever:
    """A change that may save a run."""

    name: str
    spec: TrialSpec
    lengths: RunLengths
    evaluation: EvaluationPlan | None


def trial_levers(own: Lever, inputs: Inputs, architecture_of: ArchitectureLookup) -> Iterator[Lever]:
    """Yield changes of a trial or of its lengths that may save it, each by itself, as far as rules allow them."""
    spec, lengths = own.spec, own.lengths
    longest = "max_completion_length" if spec.recipe.facts.has_rollout else "max_length"
    changes: list[dict[str, object]] = [{longest: max(1, int(getattr(spec, longest) * _LEVER_LENGTH))}]
    rows, batches = spec.per_device_train_batch_size, spec.gradient_accumulation_steps
    if rows % 2 == 0:
        smaller = {"per_device_train_batch_size": rows // 2, "gradient_accumulation_steps": 2 * batches}
        generated = {"steps_per_generation": 2 * spec.steps_per_generation} if spec.recipe.facts.has_rollout else {}
        changes.append({**smaller, **generated})
    if spec.torch_empty_cache_steps != 1:
        changes.append({"torch_empty_cache_steps": 1})
    for change in changes:
        try:
            changed = dearest_spec(inputs, change, architecture_of)
        except UsageError:
            continue
        key, value = next(iter(change.items()))
        name = f"{key}={value}" + (" (accumulated)" if len(change) > 1 else "")
        yield replace(own, name=name, spec=replace(changed, per_device_eval_batch_size=None))
    if (plan := own.evaluation) is not None:
        group = plan.when.num_generations_eval or 1
        if at_once := plan.when.per_device_eval_batch_size // (2 * group) * group:
            fewer = replace(plan, when=replace(plan.when, per_device_eval_batch_size=at_once))
            yield replace(own, name=f"{EVAL_BATCH}={at_once}", evaluation=fewer)
    grouped = SamplingStrategy.GROUP_BY_LENGTH
    if spec.recipe is Recipe.SFT and lengths.train_sampling_strategy is not grouped:
        sorted_lengths = replace(lengths, train_sampling_strategy=grouped)
        yield replace(own, name=f"{SAMPLING}={grouped}", lengths=sorted_lengths)
