"""The jobs whose steps are run and forecast: their trials, and the rows that a seed draws for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any

from profiler.analysis.forecast.lengths import RowCounts, RunLengths, distribution_of, sampled
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import ALL_LINEAR, Backend, Rollout, RowLengths, TrialSpec, Tuning

SETTINGS = ("", "expandable_segments:True")
"""Of torch's allocator, for each job."""

SEED = 1
"""Of the rows of every job."""

_SMALL_MODEL = {**BUILTIN_MODELS["tiny"].config, "vocab_size": 151_936}
"""Two layers of 64 (one where every token is decoded), with the vocabulary of a real model: logits are the largest
blocks, as they are there."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run of many steps."""

    name: str
    spec: TrialSpec
    """With as many steps as the run has, on a card that it does not fill."""
    model_config: Mapping[str, Any]
    lengths: RunLengths
    backend: Backend = Backend.EMULATED
    """Where it runs: on an emulated card, or on a real one."""
    runs_out: bool = True
    """Whether it also runs on a card on which memory runs out."""

    @property
    def side(self) -> str:
        """What the sizes of its trainer are: emulated or measured."""
        return "emulated" if self.backend is Backend.EMULATED else "measured"

    @cached_property
    def rows(self) -> RowLengths:
        """The rows of all steps."""
        draw = sampled(self.lengths, RowCounts.of(self.spec, self.spec.steps), SEED).draw
        random = Random(SEED)
        shuffles = tuple(random.randrange(2**32) for _ in range(self.spec.steps))
        return RowLengths(prompts=draw.prompts, completions=draw.completions, shuffles=shuffles)


def _lengths(completions: str, prompts: str | None = None, growth: str = "1.5") -> RunLengths:
    return RunLengths(
        prompts=None if prompts is None else distribution_of(prompts, least=1),
        completions=distribution_of(completions, least=1),
        growth=distribution_of(growth, least=0.1),
    )


_LORA: Mapping[str, Any] = {
    "tuning": Tuning.LORA,
    "lora_rank": 8,
    "lora_alpha": 16,
    "lora_target_modules": (ALL_LINEAR,),
}
_ROWS: Mapping[str, Any] = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
_GROUPS: Mapping[str, Any] = {**_ROWS, "num_generations": 4, "steps_per_generation": 2}
_SMALL: Mapping[str, Any] = {"backend": Backend.SIMULATED, "gpu": "h100-80gb", "model": "tiny", "steps": 300}

_LARGE = TrialSpec(
    **{**_SMALL, "model": "qwen2.5-7b", "steps": 8},
    **_GROUPS,
    **_LORA,
    rollout=Rollout.SYNTHETIC,
    gradient_checkpointing=True,
    max_prompt_length=512,
    max_completion_length=2048,
)
_LARGE_LENGTHS = _lengths("lognormal(500,0.8)", "lognormal(180,0.5)", "2")

JOBS: Sequence[Job] = (
    Job(
        name="full",
        spec=TrialSpec(
            **_SMALL,
            **_GROUPS,
            tuning=Tuning.FULL,
            rollout=Rollout.SYNTHETIC,
            max_prompt_length=96,
            max_completion_length=256,
        ),
        model_config=_SMALL_MODEL,
        lengths=_lengths("lognormal(60,0.7)", "lognormal(40,0.5)"),
    ),
    Job(
        name="lora",
        spec=TrialSpec(
            **_SMALL,
            **_GROUPS,
            **_LORA,
            rollout=Rollout.GENERATE,
            max_prompt_length=96,
            max_completion_length=24,
        ),
        model_config={**_SMALL_MODEL, "num_hidden_layers": 1},
        lengths=_lengths("lognormal(10,0.5)", "lognormal(40,0.5)"),
    ),
    Job(
        name="sft",
        spec=TrialSpec(**_SMALL, **_ROWS, **_LORA, recipe=Recipe.SFT, max_length=512),
        model_config=_SMALL_MODEL,
        lengths=_lengths("lognormal(150,0.6)"),
    ),
    Job(
        name="7b",
        spec=_LARGE,
        model_config=BUILTIN_MODELS["qwen2.5-7b"].config,
        lengths=_LARGE_LENGTHS,
        runs_out=False,
    ),
)


_CARD: Mapping[str, Any] = {"backend": Backend.SIMULATED, "gpu": "h200-141gb"}

CARD_JOBS: Sequence[Job] = (
    Job(
        name="0.5b-full",
        backend=Backend.CUDA,
        spec=TrialSpec(
            **_CARD,
            **_GROUPS,
            model="qwen2.5-0.5b",
            steps=200,
            tuning=Tuning.FULL,
            rollout=Rollout.SYNTHETIC,
            max_prompt_length=256,
            max_completion_length=768,
        ),
        model_config=BUILTIN_MODELS["qwen2.5-0.5b"].config,
        lengths=_lengths("lognormal(200,0.7)", "lognormal(150,0.5)"),
    ),
    Job(
        name="7b-lora",
        backend=Backend.CUDA,
        spec=replace(_LARGE, gpu=_CARD["gpu"], steps=40),
        model_config=BUILTIN_MODELS["qwen2.5-7b"].config,
        lengths=_LARGE_LENGTHS,
    ),
    Job(
        name="0.5b-sft",
        backend=Backend.CUDA,
        spec=TrialSpec(**_CARD, **_ROWS, **_LORA, model="qwen2.5-0.5b", steps=300, recipe=Recipe.SFT, max_length=1024),
        model_config=BUILTIN_MODELS["qwen2.5-0.5b"].config,
        lengths=_lengths("lognormal(250,0.6)"),
    ),
    Job(
        name="0.5b-generated",
        backend=Backend.CUDA,
        spec=TrialSpec(
            **_CARD,
            **_GROUPS,
            **_LORA,
            model="qwen2.5-0.5b",
            steps=30,
            rollout=Rollout.GENERATE,
            max_prompt_length=128,
            max_completion_length=48,
        ),
        model_config=BUILTIN_MODELS["qwen2.5-0.5b"].config,
        lengths=_lengths("lognormal(24,0.5)", "lognormal(60,0.5)"),
        runs_out=False,
    ),
)
"""With real models, on a real card: written down before the first of them has run."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a job."""

    job: Job
    alloc_conf: str
    is_small: bool
    """Whether its card is so small that memory runs out."""

    @property
    def name(self) -> str:
        """Such as ``"lora-expandable-small"``."""
        conf = self.alloc_conf.partition("_")[0] or "default"
        return f"{self.job.name}-{conf}-{'small' if self.is_small else 'whole'}"

    @property
    def spec(self) -> TrialSpec:
        """The trial with the settings of the allocator."""
        return replace(self.job.spec, alloc_conf=self.alloc_conf)


RUNS: Sequence[Run] = tuple(
    Run(job=job, alloc_conf=conf, is_small=is_small)
    for job in (*JOBS, *CARD_JOBS)
    for conf in SETTINGS
    for is_small in (False, *([True] if job.runs_out else []))
)
