"""One trial: a configuration of GRPO training that is run once, in a fresh process."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.optimizers import Optimizer


class Backend(StrEnum):
    """Where a trial runs."""

    CUDA = "cuda"
    """A real GPU: GPU memory is measured."""
    SIMULATED = "simulated"
    """The same trainer on a GPU that is not there."""
    CPU = "cpu"
    """Real training on the CPU with a small model: proves that the job runs; GPU figures are null."""


class Tuning(StrEnum):
    """What is trained."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"
    """LoRA over weights in 4 bits (nf4, double quantisation)."""


class Lengths(StrEnum):
    """How long the completions of one batch are."""

    RAGGED = "ragged"
    """The first row at the maximum, the others shorter by the pattern of `completion_lengths`."""
    FORCED = "forced"
    """Every row at the maximum."""


class Logprobs(StrEnum):
    """How log-probabilities are computed in training."""

    FUSED = "fused"
    """trl today: a fused, chunked LM head over the scored positions."""
    FULL = "full"
    """trl 0.14.0: logits of all rows at once, log-softmax row by row."""
    SLICED = "sliced"
    """The forward in slices of one row, one backward over all."""
    MINIBATCH = "minibatch"
    """Forward and backward row by row."""


class Rollout(StrEnum):
    """How completions come about."""

    GENERATE = "generate"
    """transformers' `generate`, token by token."""
    SYNTHETIC = "synthetic"
    """Prefill, a KV cache filled at once, and the last decoding step at full length."""


class Weights(StrEnum):
    """Where the values of the weights come from."""

    RANDOM = "random"
    PRETRAINED = "pretrained"


class Dtype(StrEnum):
    """Data type of the weights, by torch's name."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class Attention(StrEnum):
    """Values of `attn_implementation`, by transformers' names."""

    SDPA = "sdpa"
    FLASH_ATTENTION_2 = "flash_attention_2"
    EAGER = "eager"


ALL_LINEAR = "all-linear"
"""peft's word for every linear layer but the LM head."""


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """Everything that decides what a trial does. Spelled as trl, transformers and peft spell it where they do.

    A spec is normalised (`profiler.config`): defaults filled in, and what has no meaning for it is None, so that two
    specs that mean the same are equal.
    """

    backend: Backend
    gpu: str | None
    """The card simulated, or the card a bigger real one is capped to; None on the CPU and for the whole real card."""
    model: str
    """A built-in name, a local path or a hub id."""
    weights: Weights = Weights.RANDOM
    dataset: str | None = None
    """A local path or a hub id; None for synthetic prompts."""
    tuning: Tuning = Tuning.FULL
    lora_rank: int | None = None
    """None with full fine-tuning, as are the next two."""
    lora_alpha: int | None = None
    lora_target_modules: tuple[str, ...] | None = None
    """Names of modules, or the one word `ALL_LINEAR`."""
    optim: Optimizer = Optimizer.ADAMW_TORCH_FUSED
    num_generations: int = 4
    max_prompt_length: int = 256
    max_completion_length: int = 786
    lengths: Lengths = Lengths.RAGGED
    per_device_train_batch_size: int = 4
    """Completions, not prompts."""
    gradient_accumulation_steps: int = 4
    steps_per_generation: int = 4
    """trl's default is `gradient_accumulation_steps`."""
    gradient_checkpointing: bool = True
    beta: float = 0.0
    """Weight of the KL term; above 0 full fine-tuning keeps a reference model."""
    attn_implementation: Attention = Attention.SDPA
    dtype: Dtype = Dtype.BFLOAT16
    bf16: bool = True
    """Autocast to bfloat16 in forward, as transformers' `bf16`."""
    logprobs: Logprobs = Logprobs.FUSED
    rollout: Rollout = Rollout.GENERATE
    steps: int = 3
    """Optimizer steps."""
    alloc_conf: str = ""
    """`PYTORCH_ALLOC_CONF` of the trial."""
    seed: int = field(default=0)

    @property
    def generation_batch_size(self) -> int:
        """Completions generated at once (trl: per device batch times `steps_per_generation`, on one GPU)."""
        return self.per_device_train_batch_size * self.steps_per_generation

    @property
    def keeps_reference_model(self) -> bool:
        """Whether a second model stays: trl makes one for `beta` > 0 unless an adapter can be switched off."""
        return self.beta != 0.0 and self.tuning is Tuning.FULL


def run_key(spec: TrialSpec) -> Hashable | None:
    """Equal for specifications that one simulated run answers: the card's size or the allocator's settings differ.

    What is allocated and freed depends on the kernels a card runs, not on how much memory it has. If a run meets a
    choice that a card of its family would make otherwise, it does not answer for that card. None on real hardware,
    where every trial is a run of its own.
    """
    if spec.backend is not Backend.SIMULATED or spec.gpu is None:
        return None
    return (replace(spec, gpu=None, alloc_conf=""), KNOWN_GPUS[spec.gpu].kernel_family)


def completion_lengths(*, lengths: Lengths, rows: int, max_completion_length: int) -> tuple[int, ...]:
    """Tokens of each completion of one generation batch, in the order they are generated.

    `forced`: every row at the maximum. `ragged`: row i has the maximum less i mod 4 eighths of it (100 %, 87.5 %,
    75 %, 62.5 %, and again), at least one token; so a batch of rows has one at the maximum, as real batches do when
    `max_completion_length` cuts the longest.
    """
    if lengths is Lengths.FORCED:
        return (max_completion_length,) * rows
    return tuple(max(1, max_completion_length - (row % 4) * max_completion_length // 8) for row in range(rows))


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """A trial of a sweep before it runs."""

    trial_id: str
    """Hash of all that decides what the trial finds (`profiler.config.identity`)."""
    grid: str
    label: str
    """The method's name in tables, computed from the spec: ``"LoRA + checkpointing"``."""
    spec: TrialSpec
