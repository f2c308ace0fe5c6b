"""A job whose files say what shards it is the same job for every command."""

import json

import pytest
import yaml

import grpo_vram
from grpo_vram import Estimate, Job, UsageError, read_recipe
from profiler.advise.main import main as advise
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.domain.memory import GIB
from profiler.estimate.main import main as estimate
from profiler.forecast.main import main as forecast
from profiler.solve.main import main as solve

RECIPE = {
    "model_name_or_path": "Qwen/Qwen2.5-1.5B-Instruct",
    "dtype": "bfloat16",
    "per_device_train_batch_size": 8,
    "num_generations": 8,
    "max_completion_length": 1024,
    "gradient_checkpointing": True,
}

ZERO_3 = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}, "num_processes": 8}

SHARDED = {
    "ZeRO-3": ZERO_3,
    "ZeRO-2 on a number of GPUs that no file states": {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"zero_stage": 2},
    },
    "ZeRO-2 on one GPU": {**ZERO_3, "deepspeed_config": {"zero_stage": 2}, "num_processes": 1},
    "FSDP": {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}, "num_processes": 4},
    "DDP": {"distributed_type": "MULTI_GPU", "num_processes": 4},
}
"""Files of accelerate."""

OPEN = {**ZERO_3, "num_processes": 1}
"""Has no closed form with adapters."""

LENGTH = "max_completion_length"


@pytest.fixture
def job_of(tmp_path):
    def written(accelerate: object, **keys: object) -> Job:
        files = [tmp_path / "grpo.yaml", tmp_path / "accelerate.yaml"]
        for file, content in zip(files, (RECIPE, accelerate), strict=True):
            file.write_text(yaml.safe_dump(content))
        return read_recipe(*files, trl="1.16", gpu="a100-40gb", **keys)

    return written


@pytest.fixture(params=SHARDED.values(), ids=SHARDED)
def job(request, job_of) -> Job:
    return job_of(request.param)


def words_of(job: Job) -> list[str]:
    return [*(f"config={file}" for file in job.files), *(f"{key}={value}" for key, value in job.keys.items())]


def peaks(found: Estimate) -> tuple[object, ...]:
    return found.peak_allocated_bytes, found.peak_reserved_bytes, found.fit


def test_the_largest_value_is_estimated_to_fit_and_the_next_not(job):
    limit = grpo_vram.solve(LENGTH, job)
    assert limit.largest is not None
    assert limit.beyond is not None
    for value, verdict in ((limit.largest, limit.at_largest), (limit.beyond, limit.at_beyond)):
        alone = grpo_vram.estimate(job, **{LENGTH: value})
        assert alone.card is not None
        assert verdict is not None
        assert alone.card.peak_allocated_bytes == verdict.peak_allocated_bytes
        assert alone.card.fit is verdict.fit
    assert not any("Not counted" in line for line in limit.assumed)


def test_trials_of_a_grid_are_estimated_as_each_alone(job, capsys):
    assert estimate([*words_of(job), f"{LENGTH}=256,4096", "format=json"]) == EXIT_OK
    found = json.loads(capsys.readouterr().out)["points"]
    alone = [grpo_vram.estimate(job, **{LENGTH: length}) for length in (256, 4096)]
    said = [(point["peak_allocated_bytes"], point["peak_reserved_bytes"], point["verdict"]) for point in found]
    assert said == [peaks(each) for each in alone]


def test_the_advice_begins_with_the_estimate(job):
    alone, advised = grpo_vram.estimate(job), grpo_vram.advise(job)
    assert alone.card is not None
    assert advised.before.peak_allocated_bytes == alone.card.peak_allocated_bytes


def test_the_smallest_card_is_estimated_to_be_large_enough(job):
    found = grpo_vram.smallest_card(job)
    assert found.card is not None
    alone = grpo_vram.estimate(job, gpu=found.card.gpu.name)
    assert peaks(alone) == (found.card.peak_allocated_bytes, found.card.peak_reserved_bytes, found.card.fit)


@pytest.mark.parametrize("key", ["num_processes", "model"])
def test_choices_are_estimated_as_each_alone(job, key, capsys):
    assert solve([key, *words_of(job), "format=json"]) == EXIT_OK
    (found,) = json.loads(capsys.readouterr().out)["answers"]
    several = [each for each in found["choices"] if each["value"] != 1 and each["needed_bytes"] is not None]
    for each in several[:3]:
        alone = grpo_vram.estimate(job, **{key: each["value"]})
        assert alone.card is not None
        assert alone.card.fit.value == each["verdict"]
        # Requests of a choice are replayed only where fragments may decide.
        left = alone.card.gpu.memory_bytes - alone.card.peak_allocated_bytes
        if 0 <= left < alone.card.peak_allocated_bytes:
            assert alone.card.needed_bytes == each["needed_bytes"]


def test_nothing_is_assumed_of_the_key_that_is_solved_for(job_of):
    job = job_of(SHARDED["ZeRO-2 on a number of GPUs that no file states"])
    assert any("num_processes=2" in line for line in grpo_vram.solve(LENGTH, job).assumed)
    assert not any("max_prompt_length" in line for line in grpo_vram.solve("max_prompt_length", job).assumed)


def test_a_number_of_gpus_is_not_assumed_where_it_is_solved_for(job_of, capsys):
    job = job_of(SHARDED["ZeRO-2 on a number of GPUs that no file states"])
    assert solve(["num_processes", *words_of(job), "format=json"]) == EXIT_OK
    assert not any("fewest" in line for line in json.loads(capsys.readouterr().out)["notes"])


def test_one_gpu_keeps_the_copies_of_deepspeed_and_none_of_fsdp(job_of, capsys):
    needed = []
    for accelerate in (SHARDED["ZeRO-2 on one GPU"], SHARDED["FSDP"], SHARDED["DDP"]):
        assert solve(["num_processes", *words_of(job_of(accelerate)), "format=json"]) == EXIT_OK
        (found,) = json.loads(capsys.readouterr().out)["answers"]
        needed.append(next(each["needed_bytes"] for each in found["choices"] if each["value"] == 1))
    by_zero, by_fsdp, by_ddp = needed
    assert by_fsdp == by_ddp < by_zero - 10 * GIB


# ---- sizes that a file takes from elsewhere --------------------------------------------------------------------------

SCRIPT = """
import sys
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(max_completion_length=int(sys.argv[1]), per_device_train_batch_size=4, num_generations=4)
GRPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", args=args, reward_funcs=[]).train()
"""


@pytest.mark.parametrize("command", [estimate, advise, lambda words: solve(["num_generations", *words])])
def test_each_command_says_which_sizes_a_file_leaves_open(tmp_path, command, capsys):
    (tmp_path / "train.py").write_text(SCRIPT)
    assert command([f"config={tmp_path / 'train.py'}", "gpu=l4", "trl=1.16", "confirm=false"]) == EXIT_OK
    assert "take them from elsewhere: max_completion_length." in capsys.readouterr().err


# ---- sharding without a closed form ----------------------------------------------------------------------------------


def test_a_limit_without_a_closed_form_of_sharding_is_refused(job_of):
    with pytest.raises(UsageError, match=r"distributed_type=ZeRO-3: has no formula for this job\. distributed_type="):
        grpo_vram.solve(LENGTH, job_of(OPEN, tuning="lora"))


def _forecast(words):
    return forecast([*words, "prompts=100", "completions=100"])


@pytest.mark.parametrize("command", [advise, _forecast, lambda words: solve(["model", *words])])
def test_commands_without_a_verdict_refuse_open_sharding(job_of, command, capsys):
    assert command(words_of(job_of(OPEN, tuning="lora"))) == EXIT_USAGE
    assert "distributed_type=ZeRO-3: has no formula for this job." in capsys.readouterr().err


def test_advice_of_the_package_refuses_open_sharding(job_of):
    with pytest.raises(UsageError, match="has no formula for this job"):
        grpo_vram.advise(job_of(OPEN, tuning="lora"))


def test_only_a_card_for_all_that_sharding_adds_is_enough(job_of):
    job = job_of(OPEN, tuning="lora", max_completion_length=2048)
    found, unsharded = grpo_vram.smallest_card(job), grpo_vram.smallest_card(job, distributed_type="no")
    assert found.card is not None
    assert unsharded.card is not None
    assert found.card.gpu.memory_bytes > unsharded.card.gpu.memory_bytes
    assert any("Not counted: what ZeRO-3 changes" in line for line in found.assumed)


@pytest.mark.parametrize("gpu", ["t4-16gb", "rtx-3060-12gb", "l4-24gb", "h100-80gb"])
def test_a_grid_leaves_the_verdicts_of_open_sharding_open(job_of, gpu, capsys):
    job = job_of(OPEN, tuning="lora").with_keys(gpu=gpu)
    assert estimate([*words_of(job), f"{LENGTH}=256,2048", "format=json"]) == EXIT_OK
    found = json.loads(capsys.readouterr().out)
    assert any("Not counted: what ZeRO-3 changes" in line for line in found["notes"])
    assert [each["verdict"] for each in found["points"]] == [
        grpo_vram.estimate(job, **{LENGTH: n}).fit for n in (256, 2048)
    ]


def test_a_grid_names_how_many_of_its_trials_leave_sharding_out(job_of, capsys):
    assert estimate([*words_of(job_of(ZERO_3, tuning="lora")), "num_processes=1,2,8", "format=json"]) == EXIT_OK
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert "Without ZeRO-3, which has no formula for them: 1 of 3 trials." in notes
    assert not any("Not counted" in line for line in notes)


def test_reserved_memory_above_the_card_is_explained_in_a_grid(job_of, capsys):
    above = "a full card gives its cache back before it runs out"
    for gpu, is_above in (("a100-80gb", False), ("rtx-3060-12gb", True)):
        job = job_of(ZERO_3).with_keys(gpu=gpu)
        assert estimate([*words_of(job), f"{LENGTH}=1024,4096"]) == EXIT_OK
        assert (above in " ".join(capsys.readouterr().out.split())) is is_above


def test_what_is_not_counted_is_named_with_a_limit(job_of):
    """Stage 0 shards nothing, and the closed form has no offloading without sharding."""
    job = job_of({**ZERO_3, "deepspeed_config": {"zero_stage": 0, "offload_optimizer_device": "cpu"}})
    assert any("offloaded" in line for line in grpo_vram.estimate(job).assumed)
    assert any("offloaded" in line for line in grpo_vram.solve(LENGTH, job).assumed)
