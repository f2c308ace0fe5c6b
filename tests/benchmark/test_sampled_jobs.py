"""The jobs that are sampled to be emulated."""

from maintenance.benchmark.rows.jobs import config_of
from maintenance.benchmark.rows.sampling import COUNT, LAST_COUNT, SAMPLED_JOBS, SEED, sample, sample_last
from maintenance.samples.sampling import read_sampled, sampled_text


def test_the_list_is_that_of_its_seed():
    assert sampled_text(sample(), seed=SEED) == SAMPLED_JOBS.read_text()


def test_the_list_has_all_trainers_and_ten_types_of_model():
    specs = read_sampled(SAMPLED_JOBS.read_text())
    assert (len(specs), len(set(specs))) == (COUNT, COUNT)
    assert {spec.recipe.value for spec in specs} == {"sft", "dpo", "grpo", "rloo"}
    assert len({config_of(spec.model)["model_type"] for spec in specs}) == 10
    assert {spec.num_processes for spec in specs} == {1, 2, 4}
    assert {spec.distributed_type.value for spec in specs if spec.num_processes == 1} == {"no"}


def test_the_last_third_depends_on_the_frozen_commit_only():
    one, other = sample_last("5e06a0ee"), sample_last("128b1cec")
    assert len(one) == LAST_COUNT == COUNT // 2
    assert one == sample(LAST_COUNT, seed=0x5E06A0EE) != other
