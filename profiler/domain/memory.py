"""The words for memory: its units, when (phase), what (category), and where a number comes from.

Units of memory and their texts. The only file that contains 1024.
"""

from enum import StrEnum

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def as_gib(size_bytes: float) -> float:
    """Return `size_bytes` in GiB (2**30 bytes), for axes and tables."""
    return size_bytes / GIB


def gib_text(size_bytes: float, digits: int = 1) -> str:
    """Return `size_bytes` as a text in GiB, such as ``"12.3 GiB"``."""
    return f"{as_gib(size_bytes):.{digits}f} GiB"


def mib_text(size_bytes: float, digits: int = 1) -> str:
    """Return `size_bytes` as a text in MiB, such as ``"894.0 MiB"``."""
    return f"{size_bytes / MIB:.{digits}f} MiB"


class Phase(StrEnum):
    """Part of a training step. Every instant of a trial belongs to exactly one phase."""

    LOAD = "load"
    """Models, adapters and the trainer are created."""
    ROLLOUT = "rollout"
    """Completions are generated."""
    SCORE = "score"
    """Log-probabilities without gradient: of the reference, and of the old policy where trl needs them."""
    REWARD = "reward"
    """Rewards and advantages."""
    CRITIC = "critic"
    """The critic is updated: its forward, backward and optimizer. Only trials with a critic have this phase."""
    FORWARD = "forward"
    """The forward pass with gradient, and the loss."""
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    """Gradient clipping, the optimizer's step, gradients freed."""
    EVALUATION = "evaluation"
    """The model is evaluated. Of trials only an estimate has this phase; scripts have it and the next."""
    CHECKPOINT = "checkpoint"
    """Weights or optimizer states are written to a file."""
    SYNC = "sync"
    """An engine in other processes wakes up and takes the weights of the policy. Only commands of several have it."""


_OF_SOME = (Phase.CRITIC, Phase.EVALUATION, Phase.CHECKPOINT, Phase.SYNC)

TRIAL_PHASES: tuple[Phase, ...] = tuple(phase for phase in Phase if phase not in _OF_SOME)
"""The phases of a trial without a critic, in the order of a training step."""


class Category(StrEnum):
    """Kind of content of memory. Every byte at every instant belongs to exactly one category."""

    WEIGHTS = "weights"
    """Parameters and buffers of the policy without adapters, with the quantisation states of 4-bit weights."""
    REFERENCE = "reference"
    """Parameters and buffers of a separate reference model."""
    REWARD_MODEL = "reward_model"
    """Parameters and buffers of models that score the completions."""
    CRITIC = "critic"
    """Parameters and buffers of a critic, which predicts the reward at each token."""
    ADAPTERS = "adapters"
    """LoRA matrices."""
    GRADIENTS = "gradients"
    """Tensors that become `.grad`, and their accumulation buffers."""
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATIONS = "activations"
    """Tensors between layers, saved for backward or temporary, and their gradients."""
    LOGITS = "logits"
    """Tensors as wide as the vocabulary, tiles of them, and log-probabilities."""
    KV_CACHE = "kv_cache"
    INPUTS = "inputs"
    """Token ids, masks, rewards, advantages."""
    ENGINE = "engine"
    """vLLM in the process that trains: its weights, KV cache and activations."""
    COMMUNICATION = "communication"
    """Buffers of collective operations between GPUs."""
    WORKSPACE = "workspace"
    """Temporary memory of libraries and of the optimizer's step."""
    OTHER = "other"


OF_THE_MODEL = frozenset(
    {
        Category.WEIGHTS,
        Category.REFERENCE,
        Category.REWARD_MODEL,
        Category.CRITIC,
        Category.ADAPTERS,
        Category.GRADIENTS,
        Category.OPTIMIZER_STATE,
    }
)
"""What grows with models and their training, not with rows of data."""


class Origin(StrEnum):
    """Where a number comes from, the strongest first. Every number is shown with its origin."""

    MEASURED = "measured"
    """Read on a real GPU."""
    EMULATED = "emulated"
    """Read from torch's counters in torch's CUDA build, on an emulated driver that computes nothing."""
    SIMULATED = "simulated"
    """From the real trainer on a simulated GPU."""
    COUNTED = "counted"
    """Operations and bytes of a simulated step, put through what the card can do at most: a bound of its time."""
    ESTIMATED = "estimated"
    """By a closed form."""
    PUBLISHED = "published"
    """Measured and published by others."""


NOT_EMULATED = "cuDNN's workspace, the CUDA context (assumed), NCCL's buffers and time, which an emulated driver lacks"
"""What figures of an emulated trial do not contain. Completes "Not measured: "."""
