"""The jobs that are sampled to be emulated."""

from maintenance.benchmark.rows.jobs import config_of
from maintenance.samples.benchmark import BENCHMARK, last_third
from maintenance.samples.emulated_sample import sample


def test_the_list_has_all_trainers_and_ten_types_of_model():
    specs = sample(BENCHMARK)
    assert (len(specs), len(set(specs))) == (BENCHMARK.count, BENCHMARK.count)
    assert {spec.recipe.value for spec in specs} == {"sft", "dpo", "grpo", "rloo"}
    assert len({config_of(spec.model)["model_type"] for spec in specs}) == 10
    assert {spec.num_processes for spec in specs} == {1, 2, 4}
    assert {spec.distributed_type.value for spec in specs if spec.num_processes == 1} == {"no"}


def test_the_last_third_depends_on_the_frozen_commit_only():
    one, other = last_third("5e06a0ee"), last_third("128b1cec")
    assert (one.count, one.seed) == (BENCHMARK.count // 2, 0x5E06A0EE)
    assert one.axes == BENCHMARK.axes
    assert sample(one, count=9) != sample(other, count=9)
