"""The words for memory: when (phase), what (category), by which ruler, and where a number comes from (origin)."""

from enum import StrEnum


class Phase(StrEnum):
    """What the trainer is doing. Every instant of a trial belongs to exactly one phase."""

    LOAD = "load"
    """Models, adapters and the trainer are made."""
    ROLLOUT = "rollout"
    """Completions are generated."""
    SCORE = "score"
    """Log-probabilities without gradient: of the reference, and of the old policy where trl needs them."""
    REWARD = "reward"
    """Rewards and advantages."""
    FORWARD = "forward"
    """The forward pass with gradient, and the loss."""
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    """Gradient clipping, the optimizer's step, gradients freed."""


class Category(StrEnum):
    """What the bytes are. A closed list; every byte at every instant belongs to exactly one."""

    WEIGHTS = "weights"
    """Parameters and buffers of the policy, adapters apart; quantisation states of 4-bit weights included."""
    REFERENCE = "reference"
    """Parameters and buffers of a separate reference model."""
    ADAPTERS = "adapters"
    """LoRA matrices."""
    GRADIENTS = "gradients"
    """What ends in `.grad`, and its accumulation buffers."""
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATIONS = "activations"
    """Everything between layers, saved for backward or passing, and the gradients of those."""
    LOGITS = "logits"
    """Anything as wide as the vocabulary, or a tile of it, and log-probabilities."""
    KV_CACHE = "kv_cache"
    INPUTS = "inputs"
    """Token ids, masks, rewards, advantages."""
    WORKSPACE = "workspace"
    """Scratch of libraries and of the optimizer's step."""
    OTHER = "other"


class Origin(StrEnum):
    """Where a number comes from. Every number shown says which it is."""

    MEASURED = "measured"
    """Read on a real GPU."""
    SIMULATED = "simulated"
    """The real trainer on a GPU that is not there."""
    ESTIMATED = "estimated"
    """A closed form."""
    PUBLISHED = "published"
    """Somebody else's measurement."""
