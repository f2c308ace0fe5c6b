"""Who is ranked: each predictor with its package or its formula's source, and how its authors can correct it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from maintenance.benchmark.adapters import formulas, own
from maintenance.benchmark.adapters.question import Question, Said
from maintenance.benchmark.rows.kept import simulation_seconds
from profiler.domain.runs.shared import Row

_OWN_SOURCE = "this repository"
_TORCH = "torch==2.13.0"
_TRACKERS = "https://github.com/pytorch/pytorch, torch/distributed/_tools"


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """One way to predict memory."""

    key: str
    title: str
    source: str
    """Where its formula is written."""
    says: str
    """What its figure means, by its own documentation."""
    covers: str
    """Which jobs it is asked."""
    package: str = ""
    """The pinned package that is called in an environment of its own; "" where there is none."""
    from_row: Callable[[Row], Said] | None = None
    """Answers here, from a row."""
    from_question: Callable[[Question], Said] | None = None
    """Answers here, from the job, the model's configuration and the card."""
    is_ours: bool = False
    own_trainer: bool = False
    """Whether it predicts jobs of a trainer or kernels of its own, of which the set has no row: it is not ranked."""
    seconds: Callable[[], float] | None = None
    """Seconds of one answer, where kept answers are read and not computed."""
    needs: tuple[str, ...] | None = None
    """Packages that are installed in place of those that it declares, where its formula needs fewer; None: all."""
    sees_ours: bool = False
    """Whether its environment sees the packages of this one, for torch and transformers."""
    is_here: bool = False
    """Whether its package is one of this environment, which asks it in a process of its own: no other is made."""


_PACKAGES = (
    Predictor(
        key="fitcheck",
        title="fitcheck",
        package="fitcheck-llm==0.3.1",
        source="https://pypi.org/project/fitcheck-llm/0.3.1/",
        says="tensors, and memory of the process",
        covers="SFT on one GPU",
    ),
    Predictor(
        key="canifinetune",
        title="canifinetune",
        package="canifinetune==0.4.1",
        source="https://pypi.org/project/canifinetune/0.4.1/",
        says="peak of reserved memory; its safety margin, which it states apart, is left out",
        covers="SFT on one GPU; adapters on attention, or on all projections",
    ),
    Predictor(
        key="agilerl",
        title="AgileRL's arena memory",
        package="agilerl-arena==1.29.0",
        source="https://pypi.org/project/agilerl-arena/1.29.0/",
        says="tensors, and memory of the device, in the training phase of AgileRL's own learner",
        covers="GRPO, DPO and SFT with LoRA on one GPU, by AdamW",
        own_trainer=True,
    ),
    Predictor(
        key="unsloth",
        title="Unsloth Studio's estimator",
        package="unsloth==2026.10.9",
        source="https://pypi.org/project/unsloth/2026.10.9/",
        says="tensors, and memory of the device with 1.4 GiB more, of a job with Unsloth's kernels",
        covers="SFT on one GPU",
        own_trainer=True,
        needs=(),
    ),
    Predictor(
        key="llm_analysis",
        title="llm-analysis",
        package="llm-analysis==0.2.2",
        source="https://pypi.org/project/llm-analysis/0.2.2/",
        says="weights, gradients, states of Adam and activations",
        covers="full SFT by AdamW, on one GPU, by DDP or DeepSpeed",
        needs=("fire<0.6",),
    ),
    Predictor(
        key="kitsune",
        title="torch-kitsune",
        package="torch-kitsune==0.4.0",
        source="https://pypi.org/project/torch-kitsune/0.4.0/",
        says="tensors, and memory of the device with 15 % more",
        covers="full SFT on one GPU without checkpointing",
        needs=(),
        sees_ours=True,
    ),
    Predictor(
        key="vram_check",
        title="vram-check",
        package="vram-check==0.1.0",
        source="https://pypi.org/project/vram-check/0.1.0/",
        says="weights, gradients, states of Adam and activations; weights that are frozen, which it states apart, "
        "are added",
        covers="full SFT and LoRA on one GPU, by AdamW",
        needs=(),
        sees_ours=True,
    ),
    Predictor(
        key="mem_tracker",
        title="torch's MemTracker",
        package=_TORCH,
        source=f"{_TRACKERS}/mem_tracker.py of 2.13.0",
        says="tensors of one step on fake tensors of the CPU: it watches a script, here the model of transformers "
        "with the loss of trl, without the kernels that take no fake tensors",
        covers="full SFT on one GPU by AdamW or SGD; it refuses frozen parameters, and with them LoRA; no steps of "
        "other trainers are written",
        is_here=True,
    ),
    Predictor(
        key="fsdp_mem_tracker",
        title="torch's FSDPMemTracker",
        package=_TORCH,
        source=f"{_TRACKERS}/fsdp2_mem_tracker.py of 2.13.0",
        says="tensors of the first process in one step, as MemTracker, with fake collectives; the step of the "
        "optimizer is neither fused nor foreach, of which it counts whole tensors where they are sharded",
        covers="full SFT in bf16 by FSDP 2, without offloading and accumulation",
        is_here=True,
    ),
)

PREDICTORS: Mapping[str, Predictor] = {
    each.key: each
    for each in (
        Predictor(
            key="simulation",
            title="our simulation",
            source=_OWN_SOURCE,
            says="allocated and reserved memory",
            covers="kept results of it, and rows that were run in it, by the keys of a trial or by the script that "
            "measured them; the others are left to run",
            from_row=own.simulation,
            is_ours=True,
            seconds=simulation_seconds,
        ),
        Predictor(
            key="estimate",
            title="our estimate",
            source=_OWN_SOURCE,
            says="allocated and reserved memory",
            covers="jobs with a closed form",
            from_row=own.estimate,
            is_ours=True,
        ),
        *_PACKAGES,
        Predictor(
            key="training_hub",
            title="training-hub",
            source="https://github.com/Red-Hat-AI-Innovation-Team/training_hub, "
            "training_hub/profiling/memory_estimator.py of 0.11.2",
            says="tensors, and memory of the device with 10 % more",
            covers="SFT by AdamW on one GPU or by FSDP",
            from_question=formulas.training_hub,
            own_trainer=True,
        ),
        Predictor(
            key="accelerate",
            title="accelerate estimate-memory",
            source="https://github.com/huggingface/accelerate, accelerate/commands/estimate.py of 1.15.0",
            says="the largest part of training by Adam at a batch of one",
            covers="full training by AdamW on one GPU",
            from_question=own.accelerate,
        ),
        Predictor(
            key="deepspeed",
            title="DeepSpeed's estimate_zero*",
            source="https://github.com/deepspeedai/DeepSpeed, deepspeed/runtime/zero/stage_1_and_2.py and stage3.py "
            "of 0.19.8",
            says="states of the model only",
            covers="full training by AdamW with ZeRO 2 and 3",
            from_question=formulas.deepspeed,
        ),
        Predictor(
            key="rule",
            title="rule of thumb of a blog",
            source="profiler/published/sources.csv, oxen-grpo-2025",
            says="states of the model",
            covers="one GPU",
            from_row=own.rule_of_thumb,
        ),
        Predictor(
            key="verl_report",
            title="formulas of a report on verl",
            source="profiler/analytical/baselines.py",
            says="states of the model, activations and 2 GB",
            covers="full GRPO by AdamW on one GPU",
            from_row=own.verl_report,
        ),
    )
}

RANKED: Mapping[str, Predictor] = {key: each for key, each in PREDICTORS.items() if not each.own_trainer}
"""Those whose jobs the set has."""

NOT_RANKED: Mapping[str, str] = {
    "hf-mem 0.5.6": "predicts inference only",
    "Megatron Bridge 0.6, xtuner": "their formulas are of their own trainers, of which the set has no row",
    "trl's rule for vLLM's memory": "is about the engine's share; no row of the set has an engine",
}
"""Others that predict memory, and why they have no row."""
