"""How long a sweep will take: the usual times are those of the kept results."""

from pathlib import Path

import builders
import pandas as pd
import pytest

from profiler.analysis.times.durations import Durations, Likeness
from profiler.analysis.times.sweep_time import USUAL, Basis, sweep_time
from profiler.domain.machines.engines import Money
from profiler.domain.trials.trial import Backend

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


@pytest.mark.parametrize("backend", USUAL)
def test_usual_times_are_those_of_the_kept_trials(backend):
    runs = pd.concat(
        pd.read_parquet(path, columns=["backend", "wall_s"]) for path in sorted(REFERENCE.glob("*/runs.parquet"))
    )
    took = runs[runs.backend == backend].wall_s.dropna()
    usual = USUAL[backend]
    assert usual.trials == pytest.approx(len(took), rel=0.2)
    for share, seconds in ((0.05, usual.short_s), (0.5, usual.median_s), (0.95, usual.long_s)):
        assert seconds == pytest.approx(took.quantile(share), rel=0.2)


def test_the_nearest_earlier_trials_count():
    spec = builders.spec()
    durations = Durations()
    assert durations.of(spec) is None
    for other, seconds in (
        (builders.spec(model="qwen2.5-14b"), 100.0),
        (builders.spec(gradient_checkpointing=not spec.gradient_checkpointing), 30.0),
        (builders.spec(seed=1), 10.0),
        (builders.spec(seed=2), 20.0),
    ):
        durations.learn(other, seconds)
    found = durations.of(spec)
    assert (found.seconds, found.shortest_s, found.longest_s, found.likeness) == (15.0, 10.0, 20.0, Likeness.KIND)
    durations.learn(spec, 11.0)
    assert durations.of(spec).likeness is Likeness.SAME
    assert durations.of(builders.spec(model="qwen2.5-3b")).likeness is Likeness.BACKEND
    assert durations.of(builders.spec(backend=Backend.CPU, gpu=None, model="tiny")) is None


def test_a_price_that_is_not_the_same_for_all_is_left_out():
    specs = [builders.spec(backend=Backend.CUDA, gpu=gpu) for gpu in ("a100-40gb", "h100-80gb")]
    price = {"a100-40gb": Money(amount=1.0), "h100-80gb": Money(amount=2.0)}
    (part,) = sweep_time(specs, Durations(), least_of=lambda _: 1.0, most_s=10.0, price_of=lambda spec: price[spec.gpu])
    assert (part.basis, part.price, part.least_s, part.most_s) == (Basis.BOUNDS, None, 2.0, 20.0)
