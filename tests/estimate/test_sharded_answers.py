"""What sharded GPUs gather is named after the verdict, where it is most of the peak."""

import json

import pytest

import grpo_vram
from profiler.estimate.main import answer

JOB = {"model": "qwen2.5-32b", "gpu": "h100-80gb", "num_processes": 8}
ZERO_3 = {"distributed_type": "deepspeed", "zero_stage": 3}
FSDP = {"distributed_type": "fsdp"}


def _said(keys, *more):
    return " ".join(answer([*(f"{key}={value}" for key, value in {**JOB, **keys}.items()), *more]).split())


@pytest.mark.parametrize(
    ("keys", "part", "hint"),
    [
        # 2 x 32,763,876,352 B and a bucket of 10^9 B: 62.0 GiB.
        (ZERO_3, "in rollout, is gathered: 62.0 GiB of 127.1 GiB", "use_vllm=true gathers one tensor at a time"),
        # The reference twice, 4 x 32,763,876,352 B, and norm and head, 2 x 778,573,120 B: 123.5 GiB.
        ({**FSDP, "beta": 0.04}, "in score, is gathered: 123.5 GiB of 177.9 GiB", "beta=0 and LoRA need none"),
    ],
)
def test_most_of_the_peak_is_named_with_what_avoids_it(keys, part, hint):
    said = _said(keys)
    assert said.index("Does not fit") < said.index("Most of the peak") < said.index("Host memory")
    assert part in said
    assert hint in said
    assert (
        part in json.loads(answer([*(f"{k}={v}" for k, v in {**JOB, **keys}.items()), "format=json"]))["peak_gathered"]
    )
    assert hint in grpo_vram.estimate(**JOB, **keys).gathered


@pytest.mark.parametrize(
    "keys", [{**ZERO_3, "zero_stage": 2}, {**ZERO_3, "use_vllm": "true"}, {"tuning": "lora"}, FSDP]
)
def test_another_category_at_the_peak_is_not_named(keys):
    assert "Most of the peak" not in _said(keys)
