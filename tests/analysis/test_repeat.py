"""The command of a stored trial repeats only that trial, for every grid."""

from pathlib import Path

import builders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.analysis.sweep_report import repeat_commands
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.grid import expand, read_grid
from profiler.config.trials.specification import parse_points
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Backend, Lengths, Rollout
from profiler.sweep.command import read_command
from profiler.sweep.prepared.composition import compose

ROOT = Path(__file__).parents[2]


def asked_for(line):
    import shlex

    program, dash_m, module, *words = shlex.split(line)
    assert (program, dash_m, module) == ("python", "-m", "profiler.sweep")
    command = read_command(words)
    assert command.faults == ()
    (grid,) = command.grids
    return parse_points(expand(read_grid(grid, compose(command)), command.axes), architecture_of=builtin_architecture)


def command_of(folder, spec):
    record = builders.record(spec, outcome=builders.outcome(spec), grid="lora_vs_full")
    (line,) = repeat_commands(builders.tables(folder, [record]).runs).values()
    return line


CASES = [
    builders.spec(),
    builders.lora(model="qwen2.5-3b", gradient_checkpointing=True),
    builders.spec(alloc_conf="expandable_segments:True,max_split_size_mb:64"),
    builders.spec(beta=0.0, seed=7, optim=Optimizer.PAGED_ADAMW_8BIT, gpu="rtx-4090-24gb"),
    builders.spec(dataset="my data/questions.jsonl"),
    builders.spec(backend=Backend.CPU, gpu=None),
    builders.spec(recipe=Recipe.SFT, max_length=2048, beta=0.0),
]


@pytest.mark.parametrize("spec", CASES, ids=range(len(CASES)))
def test_the_command_repeats_the_trial(spec, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert asked_for(command_of(tmp_path, spec)) == (spec,)


@pytest.mark.parametrize(
    ("spec", "other"),
    [(builders.spec(recipe=Recipe.SFT, max_length=2048), "num_generations="), (builders.spec(), "max_length=")],
    ids=["sft", "grpo"],
)
def test_the_command_has_no_key_of_another_recipe(spec, other, tmp_path):
    assert other not in command_of(tmp_path, spec)


@settings(max_examples=25)
@given(
    groups=st.integers(1, 8),
    length=st.integers(1, 4096),
    beta=st.floats(0, 1, allow_nan=False),
    lengths=st.sampled_from(Lengths),
    rollout=st.sampled_from(Rollout),
)
def test_the_command_repeats_a_trial_of_any_values(tmp_path_factory, groups, length, beta, lengths, rollout):
    spec = builders.spec(
        num_generations=2 * groups,
        per_device_train_batch_size=2 * groups,
        max_completion_length=length,
        beta=beta,
        lengths=lengths,
        rollout=rollout,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert asked_for(command_of(tmp_path_factory.mktemp("runs"), spec)) == (spec,)


def test_every_kind_of_null_gives_the_same_command(tmp_path):
    spec = builders.spec()
    runs = builders.tables(tmp_path, [builders.record(spec, outcome=builders.outcome(spec))]).runs
    as_objects = runs.astype(object).where(runs.notna(), None)
    assert repeat_commands(as_objects) == repeat_commands(runs)
