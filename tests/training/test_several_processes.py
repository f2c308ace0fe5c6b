"""What several GPUs change in a trainer's arguments, data and session."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DeepSpeedPlugin
from simulating import small_spec

from profiler.domain.memory import Phase
from profiler.domain.trials.trial import Backend, DistributedType, OffloadDevice, Recipe
from profiler.training.announced_steps import AnnouncedDeepSpeed
from profiler.training.arguments import _sharding, common_arguments
from profiler.training.data.source_data import build_tokenizer
from profiler.training.recipes.grpo.recipe import build_prompts
from profiler.training.recipes.sft import build_rows
from profiler.training.run import PlainSession

FSDP = {
    "backend": Backend.EMULATED,
    "num_processes": 4,
    "distributed_type": DistributedType.FSDP,
    "fsdp_version": 2,
    "fsdp_reshard_after_forward": True,
    "fsdp_offload_params": False,
    "fsdp_activation_checkpointing": False,
    "fsdp_cpu_ram_efficient_loading": False,
}


class Silent:
    def enter(self, phase):
        """Do nothing."""

    def model_built(self, *, parameters, trainable):
        """Do nothing."""


def arguments(**keys):
    return common_arguments(small_spec(**keys), use_cpu=True, output_dir=Path("out"))


@pytest.mark.parametrize(("version", "reshard", "said"), [(2, True, True), (2, False, False), (1, True, "full_shard")])
def test_fsdp_is_given_in_the_words_of_its_version(version, reshard, said):
    found = arguments(**{**FSDP, "fsdp_version": version, "fsdp_reshard_after_forward": reshard})
    assert found["fsdp"] is True
    assert found["fsdp_config"] == {
        "version": version,
        "reshard_after_forward": said,
        "cpu_offload": False,
        "activation_checkpointing": False,
        "cpu_ram_efficient_loading": False,
    }


def test_accelerate_splits_rows_over_a_part_of_the_gpus():
    keys = {**FSDP, "recipe": Recipe.SFT, "max_length": 64, "cp_size": 2}
    found = arguments(**keys)["parallelism_config"]
    assert (found.cp_size, found.dp_shard_size, found.total_size) == (2, 2, 4)
    assert "parallelism_config" not in arguments(**{**keys, "cp_size": 1})


def test_ddp_needs_no_arguments():
    ddp = {"backend": Backend.EMULATED, "num_processes": 4, "distributed_type": DistributedType.MULTI_GPU}
    assert arguments(**ddp) == arguments()


def test_there_are_rows_for_every_process():
    tokenizer = build_tokenizer()
    assert len(build_prompts(small_spec(**FSDP), tokenizer)) == 4 * len(build_prompts(small_spec(), tokenizer))
    sft = {"recipe": Recipe.SFT, "max_length": 16}
    assert len(build_rows(small_spec(**sft, **FSDP), tokenizer)) == 4 * len(build_rows(small_spec(**sft), tokenizer))


def test_a_session_leaves_the_group_of_processes():
    session = PlainSession(device=torch.device("cpu"), observer=Silent())
    with session.running():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    assert not torch.distributed.is_initialized()


DEEPSPEED = {
    "backend": Backend.EMULATED,
    "num_processes": 4,
    "distributed_type": DistributedType.DEEPSPEED,
    "zero_stage": 3,
    "offload_optimizer_device": OffloadDevice.CPU,
    "offload_param_device": OffloadDevice.NONE,
}


def test_deepspeed_has_the_configuration_that_accelerate_makes_of_the_same_keys(monkeypatch):
    said = {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu"}
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    theirs = DeepSpeedPlugin().deepspeed_config["zero_optimization"]
    ours = common_arguments_of(**DEEPSPEED)["zero_optimization"]
    assert ours == {
        key: {"device": value["device"]} if isinstance(value, dict) else value
        for key, value in theirs.items()
        if key in ours
    }


def common_arguments_of(**keys):
    return _sharding(small_spec(**keys))["deepspeed"]


def test_the_steps_of_an_engine_are_announced():
    entered, steps = [], []
    engine = SimpleNamespace(step=lambda: steps.append(1) or "done", is_there=True)
    observer = SimpleNamespace(enter=entered.append)
    announced = AnnouncedDeepSpeed(engine, observer)
    assert (announced.step(), announced.is_there) == ("done", True)
    assert (entered, steps) == ([Phase.OPTIMIZER], [1])
