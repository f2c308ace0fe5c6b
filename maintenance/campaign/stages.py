"""The stages of the campaign on a real card, as data: what each runs, in which order.

Each stage ends by itself within its time limit and goes on where it stopped when it is started again. What was found on
calibration rows may change an assumption; held-out rows only judge (`docs/campaign.md`, written before stage A).
"""

from dataclasses import dataclass

FOLDER = "{folder}"
"""Placeholder for the folder of the campaign in the words of a step."""

LOOKING = "looking"
"""Folder of trials that differ only in seed and sampling, which change no memory."""

DOOR = "door"
"""Folder of the first trial, which only shows that the card answers."""

_SMALL, _MIDDLE = "qwen2.5-0.5b", "qwen2.5-1.5b"
_UNPAGED = "adamw_torch_fused,adamw_torch,adamw_8bit,adafactor,sgd"
"""Optimizers without managed memory, which can hang a card."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command of a stage."""

    name: str
    words: tuple[str, ...]
    """Arguments of Python: ``("-m", "profiler.sweep", ...)``."""
    is_prerequisite: bool = False
    """Whether the stage ends if this step does not end with 0."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One command of the campaign."""

    letter: str
    title: str
    steps: tuple[Step, ...]
    needs_gpu: bool = True


def _sweep(grid: str, keys: str, *, folder: str = "", is_prerequisite: bool = False) -> Step:
    """`keys` are separated by spaces; `folder` is within the campaign's."""
    place = f"{FOLDER}/{folder}" if folder else FOLDER
    words = ("-m", "profiler.sweep", f"+grid={grid}", "backend=cuda", f"results_dir={place}", *keys.split())
    return Step(name=f"{grid} {keys}", words=words, is_prerequisite=is_prerequisite)


def _own(command: str, *arguments: str) -> Step:
    return Step(name=" ".join((command, *arguments)), words=("-m", "maintenance.campaign", command, *arguments))


_TABLE = _sweep("lora_vs_full", "rollout=synthetic lengths=forced steps=3")
_RAGGED = "rollout=synthetic steps=3"

_FAMILIES = (
    "gemma-3-1b,gemma-2-2b,smollm3-3b,phi-4-mini,olmo-2-7b,granite-3.3-8b,mistral-7b,"
    "deepseek-v2-lite,gpt-oss-20b,qwen3-30b-a3b"
)
"""One model of each family that no campaign had run; the last three are mixtures of experts."""

_PERIODS = ("null", "0.1", "0.01")
_LOOKED_AT = f"logprobs=fused model={_SMALL} rollout=synthetic seed=0,1,2"
"""Three trials that differ only in the seed, which changes no memory: they show the spread of times."""

STAGES = (
    Stage(
        letter="A",
        title="the door, facts of the card, recorded histories, lora_vs_full begins",
        steps=(
            _sweep(
                "logprobs",
                "logprobs=fused model=tiny max_completion_length=32 steps=1 timeout_s=120",
                folder=DOOR,
                is_prerequisite=True,
            ),
            _own("facts", FOLDER),
            # One process each: recording has to start before the first allocation.
            _own("allocator_truth", "full", FOLDER),
            _own("allocator_truth", "lora", FOLDER),
            _TABLE,
        ),
    ),
    Stage(
        letter="B",
        title="lora_vs_full to its end, ragged, generated against synthetic rollouts",
        steps=(
            _TABLE,
            _sweep("lora_vs_full", f"{_RAGGED} model={_SMALL},qwen2.5-3b,qwen2.5-7b"),
            _sweep(
                "logprobs",
                f"logprobs=fused model={_SMALL} tuning=full,lora lengths=forced rollout=generate,synthetic "
                "max_completion_length=256",
                folder="rollouts",
            ),
            _own("rollouts", f"{FOLDER}/rollouts/logprobs"),
        ),
    ),
    Stage(
        letter="C",
        title="capped cards, optimizers, log-prob ways, completion lengths",
        steps=(
            _sweep("lora_vs_full", f"{_RAGGED} gpu=l40s-48gb model=qwen2.5-3b,qwen2.5-7b"),
            _sweep("lora_vs_full", f"{_RAGGED} gpu=rtx-4090-24gb model={_MIDDLE},qwen2.5-3b"),
            _sweep("lora_vs_full", f"{_RAGGED} gpu=t4-16gb model={_MIDDLE}"),
            _sweep("optimizer", f"rollout=synthetic model={_MIDDLE} optim={_UNPAGED}"),
            _sweep("logprobs", f"rollout=synthetic model={_MIDDLE}"),
            _sweep("completion_length", f"rollout=synthetic model={_MIDDLE} max_completion_length=256,2048,4096"),
        ),
    ),
    Stage(
        letter="D",
        title="cost of looking, breakdown, groups, expandable segments, large logits",
        steps=(
            *(
                _sweep("logprobs", f"{_LOOKED_AT} sample_period_s={period}", folder=f"{LOOKING}/{period}")
                for period in _PERIODS
            ),
            _own("looking", *(f"{FOLDER}/{LOOKING}/{period}/logprobs" for period in _PERIODS)),
            _sweep(
                "lora_vs_full",
                f"rollout=synthetic lengths=forced steps=3 model={_SMALL},{_MIDDLE} breakdown=true",
            ),
            _sweep("num_generations", f"rollout=synthetic model={_MIDDLE} num_generations=4,16,64"),
            _sweep("lora_vs_full", f"{_RAGGED} model={_SMALL},qwen2.5-3b alloc_conf=expandable_segments:True"),
            # 16 rows x 2,048 tokens x a vocabulary of 151,936: where reserved memory is least sure.
            _sweep(
                "logprobs",
                f"logprobs=full,fused model={_SMALL} rollout=synthetic lengths=forced per_device_train_batch_size=16 "
                "num_generations=16 max_completion_length=2048",
            ),
        ),
    ),
    Stage(
        letter="E",
        title="generated rollouts of 786 tokens, held-out rows",
        steps=(
            _sweep(
                "lora_vs_full",
                "rollout=generate tuning=lora optim=adamw_torch_fused gradient_checkpointing=true steps=2 "
                f"model={_SMALL},qwen2.5-7b",
            ),
            _sweep("lora_vs_full", f"{_RAGGED} model=llama-3.2-3b,qwen3-4b"),
            _sweep("completion_length", "rollout=synthetic model=llama-3.2-1b max_completion_length=1536"),
        ),
    ),
    Stage(
        letter="G",
        title="the other trainers: SFT and DPO",
        steps=tuple(_sweep(recipe, f"model={_SMALL},qwen2.5-7b,llama-3.2-3b") for recipe in ("sft", "dpo")),
    ),
    Stage(
        letter="H",
        title="whole runs of drawn lengths, for the forecast",
        steps=(
            Step(
                name="whole runs",
                # The runs share the card, 62 GiB in all: only torch's counters are read, those of one process.
                words=("-m", "maintenance.forecasts", "backend=cuda", "jobs=8", f"results_dir={FOLDER}"),
            ),
        ),
    ),
    Stage(
        letter="I",
        title="other families, mixtures of experts, and QLoRA",
        steps=(
            _sweep("logprobs", f"logprobs=fused tuning=lora {_RAGGED} model={_FAMILIES}", folder="families"),
            _sweep(
                "logprobs",
                f"logprobs=fused tuning=qlora {_RAGGED} model={_SMALL},llama-3.2-3b,qwen2.5-7b,qwen2.5-14b",
                folder="families",
            ),
            _sweep(
                "logprobs",
                f"logprobs=fused tuning=full {_RAGGED} model=gemma-3-1b,smollm3-3b,phi-4-mini",
                folder="families",
            ),
            _sweep("sft", "model=gemma-3-1b,qwen3-4b"),
        ),
    ),
    Stage(
        letter="F",
        title="the same trials simulated with this machine's versions, and the thresholds",
        steps=(_own("simulate", FOLDER), _own("thresholds", FOLDER)),
        needs_gpu=False,
    ),
)
"""Stages in the order of execution: F reads what all others measured."""


def stage(letter: str) -> Stage | None:
    """Return the stage of this letter, upper or lower case; None if there is none."""
    return next((one for one in STAGES if one.letter == letter.upper()), None)
