"""What several GPUs change in a trainer's arguments, data and session."""

from pathlib import Path

import pytest
import torch
from simulating import small_spec

from profiler.domain.trial import Backend, DistributedType, Recipe
from profiler.training.arguments import common_arguments
from profiler.training.recipes.grpo.prompts import build_prompts
from profiler.training.recipes.sft.rows import build_rows
from profiler.training.session import PlainSession
from profiler.training.tokenizer import build_tokenizer

FSDP = {
    "backend": Backend.EMULATED,
    "num_processes": 4,
    "distributed_type": DistributedType.FSDP,
    "fsdp_version": 2,
    "fsdp_reshard_after_forward": True,
    "fsdp_offload_params": False,
    "fsdp_activation_checkpointing": False,
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
    }


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
