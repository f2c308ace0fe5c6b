"""Jobs to be emulated for the set, sampled by a seed and written down before any of them runs.

Two thirds are sampled now. The last third follows once the estimate and the simulation are frozen for it: its seed is
the hash of the frozen commit, and it is judged once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from maintenance.samples.emulated_sample import Sample
from maintenance.samples.one_gpu import AXES as AXES_OF_ONE_GPU
from maintenance.samples.one_gpu import takes_seconds
from profiler.domain.trials.trial import DistributedType, TrialSpec

_MODELS = (
    "qwen2.5-0.5b",
    "qwen2.5-3b",
    "llama-3.2-1b",
    "llama-3.1-8b",
    "qwen3-0.6b",
    "qwen3-4b",
    "mistral-7b",
    "phi-3.5-mini",
    "phi-4-mini",
    "gemma-2-2b",
    "gemma-3-1b",
    "olmo-2-7b",
    "granite-3.3-8b",
    "smollm3-3b",
)
"""Of ten types of model."""

AXES: Mapping[str, Sequence[object]] = {
    **{key: values for key, values in AXES_OF_ONE_GPU.items() if key not in ("recipe", "model", "logprobs", "beta")},
    "recipe": ("sft", "dpo", "grpo", "rloo"),
    "model": _MODELS,
    "logprobs": ("fused", "fused", "fused", "full", "nll", "nll_entropy"),
    "beta": (0.0, 0.04, 0.04),
    "rollout": ("synthetic",),
    "num_processes": (1, 1, 2, 4),
    "distributed_type": ("no", "no", "multi_gpu", "fsdp"),
    "fsdp_reshard_after_forward": (None, True, False),
}
"""Values of each key, as literals; each entry is equally likely."""


def _is_runnable(spec: TrialSpec) -> bool:
    """Whether the emulation takes seconds. Whether the estimate covers a job is not asked."""
    return takes_seconds(spec) and (spec.distributed_type is DistributedType.NO) == (spec.num_processes == 1)


UNSEEN = "5c259a056289"
"""The commit whose estimate judged the first two thirds before it had seen one of their trials."""

BENCHMARK = Sample(
    name="benchmark",
    count=400,
    seed=3303,
    axes=AXES,
    is_wanted=_is_runnable,
    earlier=(
        f"Whether the estimate covers a trial was not asked. The estimate of commit {UNSEEN}, which had seen none, "
        "was 0.1 % off in the median, 1.8 % in the 95th percentile and +28.1 % at the worst: DDP was taken to "
        "copy an embedding that it sends as it is. That was corrected from torch's source."
    ),
    added={},
    what="the benchmark",
)


def last_third(commit: str) -> Sample:
    """Return the last third, by the hash of the commit in which estimate and simulation are frozen for it."""
    return replace(
        BENCHMARK,
        name="benchmark_last",
        count=BENCHMARK.count // 2,
        seed=int(commit, 16),
        earlier=f"Its seed is the hash of commit {commit}, in which estimate and simulation are frozen for it.",
        what="the last third of the benchmark",
        is_judged_once=True,
    )


FROZEN = "5fce05db2e3a"
"""The commit in which estimate and simulation were frozen for the last third, before it was sampled."""

LAST_THIRD = last_third(FROZEN)
