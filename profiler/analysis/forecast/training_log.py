"""What a trainer logs of each step, lengths of rows and memory; their trends; and the lengths of a run that follow."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from random import Random
from statistics import median

from profiler.analysis.forecast.lengths import Recorded, Source
from profiler.domain.memory import GIB, Phase


class Trainer(StrEnum):
    """Whose log it is."""

    TRL = "trl"
    VERL = "verl"


@dataclass(frozen=True, kw_only=True)
class LoggedStep:
    """One entry of a log. None means that it is not logged."""

    step: int
    """The last optimizer step that it is about."""
    mean: float | None = None
    """Tokens of a completion; this and the next fields are those of the steps since the entry before."""
    shortest: float | None = None
    longest: float | None = None
    clipped: float = 0.0
    """Part of the completions that were cut at the longest that is allowed."""
    prompts: tuple[float, float, float] | None = None
    """Mean, shortest and longest prompt."""
    tokens: float | None = None
    """Tokens of all rows since the beginning of training."""
    allocated_bytes: Mapping[Phase, int] = field(default_factory=dict)
    """Peak by phase."""
    peak_bytes: int | None = None
    """Peak of allocated memory, where it is not logged by phase."""
    reserved_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingLog:
    """The entries of a log, by step."""

    trainer: Trainer
    steps: tuple[LoggedStep, ...]
    planned_steps: int | None = None
    """Steps of the whole run; None if the log does not say it."""

    @property
    def with_lengths(self) -> tuple[LoggedStep, ...]:
        """The entries that say how long completions were."""
        return tuple(each for each in self.steps if each.mean is not None)

    @property
    def is_running_maximum(self) -> bool:
        """Whether memory is the peak since the beginning: verl never resets torch's counters (`fsdp_workers.py`)."""
        return self.trainer is Trainer.VERL


class LogError(ValueError):
    """A log that cannot be used; the message is the end of a sentence about it."""


# ---- reading ---------------------------------------------------------------------------------------------------------

_TRL = {"mean": "completions/mean_length", "shortest": "completions/min_length", "longest": "completions/max_length"}
_VERL = {"mean": "response_length/mean", "shortest": "response_length/min", "longest": "response_length/max"}
_PROMPTS = ("prompt_length/mean", "prompt_length/min", "prompt_length/max")
_ALLOCATED, _RESERVED = "vram/allocated_gib/", "vram/reserved_gib"
_OF_MONITOR = ("PAR1", '{"checksum":')
"""How parquet tables and records begin (`storage`)."""
_CONSOLE = re.compile(r"step:(\d{1,9}) - (.*)")
_MOST_STEPS, _MOST_NUMBER = 10**9, 1e15
"""Larger ones are of no training, and are left out (our choice)."""
_PAIR = re.compile(r"([\w/@.-]+):(?:np\.\w+\()?(-?[\d.]+(?:e[+-]?\d+)?)\)?")
"""A metric in a line of verl's console, whose numbers numpy may write as ``np.float64(3.0)``."""


def read_log(text: str) -> TrainingLog:
    """Return the log in the text of a file.

    It is the `trainer_state.json` of transformers, with the entries of trl and of `VramCallback`; JSON lines of either;
    or verl's console or file log.

    Raises:
        LogError: It is another file, has no step with numbers of lengths or memory, or has impossible ones.
    """
    entries = list(_entries(text))
    if text.startswith(_OF_MONITOR):
        raise LogError(
            "is a table or record like those of profiler.monitor, which samples memory by time and knows neither steps "
            "nor lengths of rows; name the trainer_state.json of the run, to which VramCallback adds memory by step"
        )
    if not entries:
        raise LogError("is no log of trl or verl: it is neither a trainer_state.json nor has it lines of steps")
    is_verl = any(
        key.startswith(("response_length/", "prompt_length/", "actor/")) for _, each in entries for key in each
    )
    trainer = Trainer.VERL if is_verl else Trainer.TRL
    found = {step: _logged(step, values, trainer) for step, values in entries}
    steps = tuple(each for _, each in sorted(found.items()) if _says_something(each))
    if not steps:
        names = ", ".join(_TRL.values())
        raise LogError(
            f"has {len(entries):,} entries and none with lengths ({names}; of verl response_length/mean, min, max) or "
            "with memory (vram/reserved_gib; of verl perf/max_memory_allocated_gb)"
        )
    for each in steps:
        _check(each, trainer)
    return TrainingLog(trainer=trainer, steps=steps, planned_steps=_planned(text))


def _check(step: LoggedStep, trainer: Trainer) -> None:
    """Raise `LogError` if an entry has lengths or memory that no training has; a console may round a mean by 1."""
    own = None if step.mean is None else (step.mean, step.shortest or 0.0, step.longest or 0.0)
    for key, found in (((_VERL if trainer is Trainer.VERL else _TRL)["mean"], own), (_PROMPTS[0], step.prompts)):
        if found is not None and not (found[0] > 0 and 0 <= found[1] <= found[0] + 1 and found[0] <= found[2] + 1):
            raise LogError(
                f"has {key}={found[0]:g} in step {step.step:,}, which must be above 0, and between the shortest, "
                f"{found[1]:g}, and the longest, {found[2]:g}"
            )
    memory = [each for each in (*step.allocated_bytes.values(), step.peak_bytes, step.reserved_bytes) if each]
    if min(memory, default=0) < 0:
        raise LogError(f"has {min(memory) / GIB:g} GiB of memory in step {step.step:,}, which is less than none")


def _planned(text: str) -> int | None:
    """Return `max_steps` of a `trainer_state.json`, which transformers writes there whatever decides it."""
    found = re.search(r'^\s*"max_steps": (\d{1,7}),?$', text, re.MULTILINE) if text.lstrip()[:1] == "{" else None
    return int(found[1]) or None if found else None


def _says_something(step: LoggedStep) -> bool:
    memory = step.allocated_bytes or step.peak_bytes is not None or step.reserved_bytes is not None
    return step.mean is not None or bool(memory)


def _entries(text: str) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Yield the step and the numbers of each entry."""
    if text.lstrip()[:1] == "{":
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError):
            whole = None
        history = whole.get("log_history") if isinstance(whole, dict) else None
        if isinstance(history, list):
            yield from (pair for each in history for pair in _entry(each))
            return
    for line in text.splitlines():
        if line.lstrip()[:1] == "{":
            try:
                yield from _entry(json.loads(line))
            except (ValueError, RecursionError):
                continue
        elif found := _CONSOLE.search(line):
            yield int(found[1]), {key: float(number) for key, number in _PAIR.findall(found[2]) if _is_number(number)}


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) <= _MOST_NUMBER
    except ValueError:
        return False


def _entry(values: object) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Yield an entry of JSON, if it has a step: verl's file log keeps the numbers in ``data``."""
    if not isinstance(values, dict):
        return
    step, numbers = values.get("step"), values.get("data", values)
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= _MOST_STEPS:
        return
    if not isinstance(numbers, dict):
        return
    yield (
        step,
        {
            str(key).removeprefix("train/"): float(each)
            for key, each in numbers.items()
            if isinstance(each, int | float) and not isinstance(each, bool) and abs(each) <= _MOST_NUMBER
        },
    )


def _logged(step: int, values: Mapping[str, float], trainer: Trainer) -> LoggedStep:
    names = _VERL if trainer is Trainer.VERL else _TRL
    mean, shortest, longest = (values.get(names[each]) for each in ("mean", "shortest", "longest"))
    prompts = [values.get(name) for name in _PROMPTS]
    clipped = values.get("response_length/clip_ratio", values.get("completions/clipped_ratio", 0.0))
    phases = {phase: values[_ALLOCATED + phase] for phase in Phase if _ALLOCATED + phase in values}
    return LoggedStep(
        step=step,
        mean=mean,
        shortest=mean if shortest is None else shortest,
        longest=mean if longest is None else longest,
        clipped=min(1.0, max(0.0, clipped)),
        prompts=None if any(each is None for each in prompts) else tuple(each or 0.0 for each in prompts),  # type: ignore[arg-type]
        tokens=values.get("num_tokens"),
        allocated_bytes={phase: round(size * GIB) for phase, size in phases.items()},
        peak_bytes=_bytes(_of_verl(values, "perf/max_memory_allocated_gb")),
        reserved_bytes=_bytes(values.get(_RESERVED, _of_verl(values, "perf/max_memory_reserved_gb"))),
    )


def _of_verl(values: Mapping[str, float], name: str) -> float | None:
    """Return a counter of verl; its later releases write the name of the role before it."""
    return values.get(name, values.get(f"actor/{name}"))


def _bytes(gib: float | None) -> int | None:
    """Return bytes; verl's ``_gb`` are GiB: its workers divide by 1024^3."""
    return None if gib is None else round(gib * GIB)


Z_95 = 1.959964
"""The two-sided 95 % point of the normal distribution."""

_MOST_POINTS = 200
"""Points of a trend of which all pairs are compared; of more, medians of equal parts are."""

# ---- trends ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A straight line through points, with an interval of its slope."""

    slope: float
    """Per step."""
    low: float
    high: float
    start: float
    """The line at step 0."""

    def at(self, step: float) -> float:
        """Return the line at a step."""
        return self.start + self.slope * step


def trend(points: Sequence[tuple[float, float]], z: float = Z_95) -> Trend | None:
    """Return the trend of (step, value), or None for fewer than four steps.

    The slope is the median of the slopes of all pairs, and its interval has the slopes of the ranks M -+ C, of N pairs,
    with C = z sqrt(n (n - 1) (2 n + 5) / 18) (P. K. Sen, JASA 63, 1968; the points are not tied). Outliers, such as one
    very long row, hardly change it. By hand: of (1, 1), (2, 3), (3, 4), (4, 8) the slopes are 1, 1.5, 2, 2.33, 2.5, 4,
    and their median is 2.17.

    Args:
        points: At different steps.
        z: Of the interval; 1.96 for 95 %.
    """
    found = _thinned(sorted(points))
    count = len(found)
    if count < 4:
        return None
    slopes = sorted(
        (after[1] - before[1]) / (after[0] - before[0])
        for place, before in enumerate(found)
        for after in found[place + 1 :]
    )
    spread = z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, math.floor((len(slopes) - spread) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))
    slope = median(slopes)
    return Trend(
        slope=slope,
        low=slopes[low],
        high=slopes[high],
        start=median(value - slope * step for step, value in found),
    )


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return at most `_MOST_POINTS` points: medians of equal parts."""
    if len(points) <= _MOST_POINTS:
        return points
    ends = [round(len(points) * part / _MOST_POINTS) for part in range(_MOST_POINTS + 1)]
    parts = [points[start:end] for start, end in pairwise(ends)]
    return [(median(step for step, _ in part), median(value for _, value in part)) for part in parts]


# ---- lengths of a log ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LoggedLengths:
    """Lengths as a log has them: of a step of the log its own, and after it those of any step, on the log's trend."""

    steps: tuple[LoggedStep, ...]
    """With lengths; not empty."""
    trend: Trend | None
    """Of the mean; None if the log is too short for one."""
    slope: float | None = None
    """That of this seed, sampled from the interval of the trend; None before a seed is chosen."""
    of_prompts: bool = False

    def of_seed(self, random: Random) -> "LoggedLengths":
        """Return the same with a slope for one seed: normal, with the interval of the trend as its middle 95 %."""
        if self.trend is None:
            return self
        sigma = (self.trend.high - self.trend.low) / (2 * Z_95)
        return replace(self, slope=random.gauss(self.trend.slope, sigma))

    @property
    def mean(self) -> float:
        """The mean of the log."""
        return sum(self._values(each)[0] for each in self.steps) / len(self.steps)

    def lengths(self, random: Random, count: int, step: int) -> Sequence[float]:
        """Return `count` lengths of a step."""
        last = self.steps[-1].step
        if step <= last:
            own = next(each for each in self.steps if each.step >= step)
            return _as_logged(random, count, *self._values(own), own.clipped)
        own = random.choice(self.steps)
        factor = self._factor(step, own)
        return [length * factor for length in _as_logged(random, count, *self._values(own), own.clipped)]

    def _values(self, step: LoggedStep) -> tuple[float, float, float]:
        if self.of_prompts:
            assert step.prompts is not None
            return step.prompts
        mean = step.mean or 0.0
        return mean, mean if step.shortest is None else step.shortest, mean if step.longest is None else step.longest

    def _factor(self, step: int, logged: LoggedStep) -> float:
        """Return by how much a step after the log is longer than a logged one; no mean falls below the log's least."""
        if self.trend is None or self.slope is None:
            return 1.0
        least = min(self._values(each)[0] for each in self.steps)
        end = self.trend.at(self.steps[-1].step)
        return max(least, end + self.slope * (step - self.steps[-1].step)) / max(1.0, self.trend.at(logged.step))


def _as_logged(
    random: Random, count: int, mean: float, shortest: float, longest: float, clipped: float
) -> Sequence[float]:
    """Return lengths with the mean, the shortest, the longest and the clipped part that a log has, in random order.

    One row is the shortest and one the longest, as in the batch that was logged; of the others, the clipped are the
    longest, and the rest are shortest + (longest - shortest) u^k with u uniform, whose mean is
    shortest + (longest - shortest) / (k + 1). By hand: 100 to 900 with the mean 300 gives k = 800 / 200 - 1 = 3.
    """
    low, high = min(shortest, mean), max(longest, mean)
    if count < 2 or high <= low:
        return [mean] * count
    at_most = max(1, min(count - 1, round(clipped * count)))
    rest = count - at_most - 1
    middle = (count * mean - at_most * high - low) / rest if rest else mean
    share = min(1.0, max(1e-3, (middle - low) / (high - low)))
    power = 1 / share - 1
    found = [low + (high - low) * random.random() ** power for _ in range(rest)] + [low] + [high] * at_most
    random.shuffle(found)
    return found


def logged_lengths(log: TrainingLog) -> LoggedLengths:
    """Return the lengths of the completions of a log.

    Raises:
        LogError: It has none.
    """
    steps = log.with_lengths
    if not steps:
        raise LogError(f"has no lengths: none of {', '.join((*_TRL.values(), *_VERL.values()))}")
    points = [(each.step, each.mean or 0.0) for each in steps]
    return LoggedLengths(steps=steps, trend=trend(points))


def logged_prompts(log: TrainingLog, rows_per_step: int) -> Source | None:
    """Return the lengths of the prompts of a log, or None if it has none.

    verl logs them. Of trl's log the mean follows from the tokens of all rows: those between two entries, by the rows,
    less the mean completion. By hand: 38,400 tokens in one step of 64 rows with completions of 400 are prompts of 200.

    Args:
        log: The log.
        rows_per_step: Rows of one optimizer step of all processes.
    """
    steps = tuple(each for each in log.steps if each.prompts is not None)
    if steps:
        return LoggedLengths(steps=steps, trend=None, of_prompts=True)
    found = [each for each in log.with_lengths if each.tokens is not None]
    means = [
        ((after.tokens or 0) - (before.tokens or 0)) / (rows_per_step * (after.step - before.step)) - (after.mean or 0)
        for before, after in pairwise(found)
    ]
    likely = [round(each) for each in means if each >= 1]
    return Recorded(tuple(likely), is_data_set=False) if likely else None
