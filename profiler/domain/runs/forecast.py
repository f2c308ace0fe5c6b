"""Which runs have a forecast, what it asks of the process that replays them, and what that answers, line by line.

`python -m profiler.worker.forecast REQUEST ANSWER` reads a `ForecastRequest` as JSON and appends JSON lines to ANSWER,
each flushed: first `Learnt`, then per draw, setting and step a `ForecastStep`, and a `Death` where the card is full.
Lines that ANSWER has already are not computed again: a forecast that was killed goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from profiler.domain.errors import Fault
from profiler.domain.memory import Phase
from profiler.domain.trials.recipe import GENERATING, Recipe
from profiler.domain.trials.trial import DistributedType, Evaluations, Logprobs, TrialSpec, dealt

ENGINE = "profiler.worker.forecast"
"""The module of that process."""


MOST_WHOLE_STEPS = 200
"""Of a run that cannot be written out: its trace is kept in memory as a whole."""


def why_rows_are_unknown(spec: TrialSpec) -> Fault | None:
    """Return why a forecast does not know how the trainer groups rows; None if it does."""
    accumulation, generation = spec.gradient_accumulation_steps, spec.steps_per_generation
    if spec.num_processes > 1 and (fault := _why_not_dealt(spec)) is not None:
        return fault
    if spec.use_dynamic_bsz:
        return Fault(key="use_dynamic_bsz", found="true", problem="has no forecast, because it splits rows by tokens")
    if spec.recipe is Recipe.KTO and spec.per_device_train_batch_size * accumulation % 2:
        rows = str(spec.per_device_train_batch_size)
        problem = f"has no forecast with gradient_accumulation_steps={accumulation}, which makes an odd number of rows"
        return Fault(key="per_device_train_batch_size", found=rows, problem=problem)
    if spec.recipe in GENERATING and generation % accumulation:
        problem = f"has no forecast unless it is a multiple of gradient_accumulation_steps={accumulation}"
        hint = "Give such a multiple; where a file of trl leaves it out, trl=VERSION takes that of your release."
        return Fault(key="steps_per_generation", found=str(generation), problem=problem, hint=hint)
    return None


def _why_not_dealt(spec: TrialSpec) -> Fault | None:
    """Return why a forecast does not know which rows each of several GPUs gets, or what it does with them."""
    if spec.distributed_type is not DistributedType.MULTI_GPU:
        problem = (
            "has no forecast, because no simulation shards a model; multi_gpu, with all of it on each GPU, has one"
        )
        hint = "`python -m profiler.estimate` says what its longest rows take."
        return Fault(key="distributed_type", found=str(spec.distributed_type), problem=problem, hint=hint)
    if found := [key for key in ("use_vllm", "precompute_ref_log_probs") if getattr(spec, key)]:
        return Fault(key=found[0], found="true", problem="has no forecast on several GPUs, only on one")
    if spec.logprobs is Logprobs.MINIBATCH:
        problem = "has no forecast on several GPUs, because it makes a gradient of each row within the loss"
        return Fault(key="logprobs", found=str(spec.logprobs), problem=problem)
    each, rows = spec.num_generations, spec.rows_dealt
    if spec.recipe in GENERATING and rows % each and each % rows:
        problem = (
            f"has no forecast on several GPUs unless it divides the {rows} completions that each of them generates at "
            "once, or is a multiple of these"
        )
        return Fault(key="num_generations", found=str(each), problem=problem)
    if spec.recipe is Recipe.KTO and spec.per_device_train_batch_size % 2:
        problem = "has no forecast on several GPUs where it is odd"
        return Fault(key="per_device_train_batch_size", found=str(rows), problem=problem)
    return None


MOST_BATCHES = 1000
"""Of a pass without training (our choice): all of them run on the simulated card."""


def note_of_reference(spec: TrialSpec, rows: int | None) -> "str | Fault":
    """Return over how many rows of a data set, if it is known, a reference runs before training, or why it cannot."""
    at_once = spec.precompute_ref_batch_size or spec.per_device_train_batch_size
    found = rows or spec.steps * spec.gradient_accumulation_steps * spec.per_device_train_batch_size
    if found > MOST_BATCHES * at_once:
        problem = f"makes more than {MOST_BATCHES:,} batches of {found:,} rows, which is as much as a forecast replays"
        return Fault(key="precompute_ref_batch_size", found=str(at_once), problem=problem)
    assumed = "" if rows else " (assumed: those of the run, as one epoch)"
    return f"Before the first step the reference runs over {found:,} rows{assumed}, {at_once:,} at once."


def steps_of_epoch(spec: TrialSpec, rows: int) -> int:
    """Return the optimizer steps of an epoch of one process.

    By hand, 100 prompts in generations of 8, each for 2 steps, are 24 steps: the last 4 prompts are left out.

    Args:
        spec: The trial.
        rows: Of the data set; or pairs, or prompts of a recipe that generates.

    Source: `_get_train_sampler` of `GRPOTrainer`, `RepeatSampler.__len__` (trl 1.16), and
    `set_initial_training_values` of transformers 5.23.
    """
    if spec.recipe not in GENERATING:
        return -(-rows // (spec.training_rows * spec.gradient_accumulation_steps))
    generations = rows * spec.num_generations // spec.generation_batch_size
    return max(1, generations * spec.steps_per_generation // spec.gradient_accumulation_steps)


def why_not_evaluated(spec: TrialSpec, *, rows: int, each: int) -> Fault | None:
    """Return why a forecast does not know the evaluations of a trial; None if it does.

    Args:
        spec: The trial.
        rows: Completions at once.
        each: Completions per prompt, or 1. Source of the rule: `GRPOConfig.__post_init__` in trl 1.16, and RLOO's.

    The loss of an evaluation is computed as that of training, with its entropy, but without gradients. Source:
    `prediction_step` and `_get_per_token_logps_and_entropies` of `GRPOTrainer` in trl 0.20 to 1.16. trl 1.14 has
    another kernel for `full`, which makes less than a log-softmax, `kernels/logprob_entropy.py`; trl 0.14 has no
    `prediction_step`, so that transformers asks `compute_loss` for outputs, which it refuses.
    """
    for key in ("num_processes", "precompute_ref_log_probs"):
        if (found := getattr(spec, key)) > 1 or found is True:
            problem = "has no forecast with evaluations; with eval_strategy=no training alone has one"
            return Fault(key=key, found=str(found).lower(), problem=problem)
    if rows % each:
        problem = f"must be a multiple of the {each} completions per prompt (num_generations_eval), as in trl"
        return Fault(key="per_device_eval_batch_size", found=str(rows), problem=problem)
    if spec.logprobs is Logprobs.MINIBATCH:
        problem = f"has no forecast with evaluations of recipe={spec.recipe}: it makes a gradient of each row within"
        problem += " the loss, and an evaluation makes none"
        hint = "With eval_strategy=no training alone has one."
        return Fault(key="logprobs", found=str(spec.logprobs), problem=problem, hint=hint)
    return None


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The lengths of all rows of one process in one seed, in tokens. The engine groups them as the trainer does."""

    seed: int
    prompts: tuple[int, ...]
    """One per group of completions, in the order of the data set; empty for recipes whose rows are whole."""
    completions: tuple[int, ...]
    """In the order of generation, or of the data set, of a pair the chosen one first; or whole rows."""
    evaluations: Evaluations | None = None
    """None: the run has none."""
    reference: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Prompts and completions over which a reference runs before training. None: over those of training, if at all."""

    def of_each(self, spec: TrialSpec) -> "tuple[Draw, ...]":
        """Return the rows that each process gets of these, which are those of all; `seed` counts processes too.

        `rows_dealt` of one process follow each other. Completions of one prompt may be those of several processes.
        """
        processes, part, each = spec.num_processes, spec.rows_dealt, max(1, spec.rows_per_prompt)
        if processes == 1:
            return (self,)
        prompts = [prompt for prompt in self.prompts for _ in range(max(1, each // part))]
        return tuple(
            replace(
                self,
                seed=self.seed * processes + process,
                prompts=dealt(prompts, max(1, part // each), process, processes),
                completions=dealt(self.completions, part, process, processes),
            )
            for process in range(processes)
        )

    def as_object(self) -> dict[str, object]:
        """Return the draw as values of JSON; what it lacks is left out, so that it has the name that it always had."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Draw":
        """Return the draw that `as_object` wrote."""
        evaluations = None
        if (known := values.get("evaluations")) is not None:
            lengths = {key: tuple(known[key]) for key in ("prompts", "completions", "samples")}
            evaluations = Evaluations(**{**known, **lengths})
        lengths = {key: tuple(values[key]) for key in ("prompts", "completions")}
        reference = values.get("reference")
        pair = reference and (tuple(reference[0]), tuple(reference[1]))
        return cls(seed=values["seed"], **lengths, evaluations=evaluations, reference=pair)


@dataclass(frozen=True, kw_only=True)
class ForecastRequest:
    """One forecast."""

    spec: Mapping[str, object]
    """The trial, as `spec_to_mapping` writes it, on its card; its `steps` and `alloc_conf` do not count."""
    model_config: Mapping[str, object]
    """The `config.json` of its model."""
    steps: int
    """Optimizer steps to replay, from 1 on."""
    settings: tuple[str, ...]
    """Settings of the allocator (`PYTORCH_ALLOC_CONF`), each replayed with every draw."""
    draws: tuple[Draw, ...]

    def as_object(self) -> dict[str, object]:
        """Return the request as values of JSON."""
        draws = [draw.as_object() for draw in self.draws]
        return {
            "spec": dict(self.spec),
            "model_config": dict(self.model_config),
            "steps": self.steps,
            "settings": list(self.settings),
            "draws": draws,
        }

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ForecastRequest":
        """Return the request that `as_object` wrote."""
        draws = tuple(Draw.of(each) for each in values["draws"])
        return cls(**{**values, "settings": tuple(values["settings"]), "draws": draws})


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """What the trace of a step was learnt from."""

    shapes: int
    """Simulated steps of different lengths."""
    events_per_step: int
    """Allocations and frees."""
    layers_run: int | None
    """Layers of a deep model that ran, of which the others are copies; None if all ran."""
    whole: str | None
    """Why each step is simulated whole, as a sentence; None if the trace is written out from what was learnt."""


@dataclass(frozen=True, kw_only=True)
class ForecastStep:
    """One replayed optimizer step. Sizes are bytes."""

    seed: int
    alloc_conf: str
    step: int
    """From 1 on."""
    longest_prompt: int
    """Tokens."""
    longest_completion: int
    """Tokens; of a whole row for recipes that generate nothing."""
    scored_tokens: int
    """Tokens of all rows of the step that are predicted and have a label or a mask of 1."""
    allocated_bytes: int
    """Peak of the step."""
    reserved_bytes: int
    """Peak of the step."""
    reserved_after_bytes: int
    """Held by the allocator at the end of the step."""
    inactive_split_bytes: int
    """Free parts of segments of which another part is in use, at the end of the step: no empty_cache returns them."""
    phase: Phase
    """In which allocated memory has its peak."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """The request that the card refused. Sizes are bytes."""

    seed: int
    alloc_conf: str
    step: int
    phase: Phase
    requested_bytes: int
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    row_tokens: int
    """The longest row of the micro-batch, in tokens."""
    rows: int
    """Of the micro-batch."""
    process: int = 0
    """The first whose card is full, of those of a seed."""


AnswerLine: TypeAlias = Learnt | ForecastStep | Death

_KINDS: Mapping[str, type[Learnt] | type[ForecastStep] | type[Death]] = {
    "learnt": Learnt,
    "step": ForecastStep,
    "died": Death,
}
"""The types of the lines of an answer, by their `kind`."""


def line_object(line: AnswerLine) -> dict[str, object]:
    """Return a line of an answer as values of JSON."""
    kind = next(name for name, kept in _KINDS.items() if isinstance(line, kept))
    return {"kind": kind, **asdict(line)}


def line_of(values: Mapping[str, Any]) -> AnswerLine:
    """Return the line of an answer that `line_object` wrote.

    Raises:
        KeyError, TypeError, ValueError: It wrote something else.
    """
    fields = {key: value for key, value in values.items() if key != "kind"}
    if "phase" in fields:
        fields["phase"] = Phase(fields["phase"])
    return _KINDS[values["kind"]](**fields)


@dataclass(frozen=True, kw_only=True)
class ForecastRun:
    """The replay of one draw with one setting."""

    seed: int
    alloc_conf: str
    steps: tuple[ForecastStep, ...]
    """In order; the step that the card refused is none of them."""
    death: Death | None
    """None if the run survives, or is not finished."""

    @property
    def lines(self) -> tuple["ForecastStep | Death", ...]:
        """The steps, and after them the death."""
        return self.steps if self.death is None else (*self.steps, self.death)

    def survived(self, steps: int) -> bool:
        """Return whether it has all of `steps`."""
        return self.death is None and len(self.steps) >= steps


@dataclass(frozen=True, kw_only=True)
class ForecastAnswer:
    """All lines of an answer."""

    learnt: Learnt | None
    runs: tuple[ForecastRun, ...]

    def open_runs(self, request: ForecastRequest) -> list[tuple[Draw, str]]:
        """Return the pairs of draw and setting that have no end yet."""
        ended = {
            (run.seed, run.alloc_conf) for run in self.runs if run.death is not None or run.survived(request.steps)
        }
        pairs = [(draw, conf) for draw in request.draws for conf in request.settings]
        return [(draw, conf) for draw, conf in pairs if (draw.seed, conf) not in ended]


def answer_of(lines: Sequence[AnswerLine]) -> ForecastAnswer:
    """Return an answer with its lines by draw and setting; a step that is there twice counts once."""
    learnt = next((line for line in lines if isinstance(line, Learnt)), None)
    steps: dict[tuple[int, str], dict[int, ForecastStep]] = {}
    deaths: dict[tuple[int, str], Death] = {}
    for line in lines:
        if isinstance(line, ForecastStep):
            steps.setdefault((line.seed, line.alloc_conf), {})[line.step] = line
        elif isinstance(line, Death):
            steps.setdefault((line.seed, line.alloc_conf), {})
            deaths[line.seed, line.alloc_conf] = line
    runs = tuple(
        ForecastRun(
            seed=seed,
            alloc_conf=conf,
            steps=tuple(found[step] for step in sorted(found)),
            death=deaths.get((seed, conf)),
        )
        for (seed, conf), found in sorted(steps.items())
    )
    return ForecastAnswer(learnt=learnt, runs=runs)


def runs_of_seeds(runs: Sequence[ForecastRun], processes: int) -> tuple[ForecastRun, ...]:
    """Return the run of each seed, given those of its processes (`Draw.of_each`); it ends with the first that is full.

    Each size of a step is the largest of all processes; the phase is that of the largest allocated memory.
    """
    if processes == 1:
        return tuple(runs)
    by_seed: dict[tuple[str, int], list[ForecastRun]] = {}
    for run in runs:
        by_seed.setdefault((run.alloc_conf, run.seed // processes), []).append(run)
    return tuple(_run_of_seed(own, seed, processes) for (_, seed), own in by_seed.items())


def _run_of_seed(runs: Sequence[ForecastRun], seed: int, processes: int) -> ForecastRun:
    deaths = [run.death for run in runs if run.death is not None]
    first = min(deaths, key=lambda death: (death.step, death.seed), default=None)
    last = None if first is None else first.step - 1
    return ForecastRun(
        seed=seed,
        alloc_conf=runs[0].alloc_conf,
        steps=tuple(_largest(lines, seed) for lines in zip(*(run.steps[:last] for run in runs), strict=True)),
        death=None if first is None else replace(first, seed=seed, process=first.seed % processes),
    )


_SIZES = ("longest_prompt", "longest_completion", "reserved_bytes", "reserved_after_bytes", "inactive_split_bytes")


def _largest(lines: Sequence[ForecastStep], seed: int) -> ForecastStep:
    largest = max(lines, key=lambda line: line.allocated_bytes)
    return replace(largest, seed=seed, **{name: max(getattr(line, name) for line in lines) for name in _SIZES})


def note_of_processes(spec: TrialSpec) -> tuple[str, ...]:
    """Return how the GPUs of a trial are forecast; nothing for one."""
    if spec.num_processes == 1:
        return ()
    return (
        f"Each of the {spec.num_processes} GPUs of a seed has its own rows, as accelerate deals them, and is replayed "
        "by itself: sizes are those of the largest GPU of a step, and the run ends with the first that is full.",
    )
