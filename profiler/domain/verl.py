"""A GRPO or PPO job of verl: the settings that affect the memory of one GPU."""

from dataclasses import dataclass, field
from enum import StrEnum


class Release(StrEnum):
    """Releases of verl whose keys, defaults and workers are known, by the values of the option `verl`."""

    V0_8 = "0.8"
    """As of 0.8.0.dev (b178a3c, 2026-01-29)."""
    V0_9_1 = "0.9.1"


class Strategy(StrEnum):
    """Values of `actor.strategy`."""

    FSDP = "fsdp"
    FSDP2 = "fsdp2"
    MEGATRON = "megatron"


@dataclass(frozen=True, kw_only=True)
class RolloutEngine:
    """What generates the completions of a job: its name in files, and the one that its authors give it."""

    key: str
    title: str
    takes_share: bool = False
    """Whether `gpu_memory_utilization` is a share of the card that it takes, as its pool is counted."""
    has_pool: bool = True
    """Whether it has weights and a cache of its own."""


VLLM = RolloutEngine(key="vllm", title="vLLM", takes_share=True)
ROLLOUT_ENGINES = {
    engine.key: engine
    for engine in (
        VLLM,
        RolloutEngine(key="sglang", title="SGLang", takes_share=True),
        RolloutEngine(key="trtllm", title="TensorRT-LLM"),
        RolloutEngine(key="hf", title="transformers' generate", has_pool=False),
    )
}
"""The values of `rollout.name`. A library that verl imports can register others.

Source: `_ROLLOUT_REGISTRY` in `workers/rollout/base.py` of verl 0.6 to 0.9.1; `hf` is of releases before these.
"""


def rollout_engine(key: str) -> RolloutEngine:
    """Return the engine of a name; one that verl does not have is called as its file calls it."""
    return ROLLOUT_ENGINES.get(key, RolloutEngine(key=key, title=key))


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """Memory settings of the actor or the critic."""

    param_offload: bool = False
    """Weights are on the host while the model is not used."""
    optimizer_offload: bool = False
    """The state of the optimizer is on the host while the model is not used."""
    offload_policy: bool = False
    """FSDP2: weights, gradients and states are on the host even during the update."""
    weight_bytes: int = 4
    """Bytes of one weight (`model_dtype`; verl's default for a trained model is float32)."""
    gradient_checkpointing: bool = True
    activation_offload: bool = False
    max_tokens: int = 16_384
    """Tokens of one backward on one GPU: the budget of a dynamic batch, or micro-batch times length; at most those of a
    mini-batch."""
    accumulates: bool = True
    """Whether a mini-batch has several micro-batches on one GPU, so that gradients of earlier ones are kept."""


@dataclass(frozen=True, kw_only=True)
class EntropySettings:
    """How the actor computes the entropy of its tokens from their logits. The pass of old log-probs always does."""

    in_update: bool = False
    """Also in the update (`calculate_entropy`, or an `entropy_coeff`)."""
    in_loss: bool = False
    """In the loss, so that its gradient is computed (`entropy_coeff` is not 0)."""
    is_compiled: bool = True
    """By torch.compile, as verl does where padding is removed."""
    checkpointing: bool = False
    """Computed again in backward (`entropy_checkpointing`)."""
    chunking: bool = False
    """2,048 rows at a time (`entropy_from_logits_with_chunking`)."""
    only_responses: bool = False
    """Of the tokens of responses only, as where padding is not removed."""


@dataclass(frozen=True, kw_only=True)
class RewardEngine:
    """The engine of a reward model on the GPUs that train, which is awake while it scores."""

    gpu_memory_utilization: float
    """Fraction of the card."""
    free_cache_engine: bool
    """It sleeps at all other times."""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """What the workers of a job do that those of verl 0.8 do not, whose ways are the defaults.

    Source of all: verl 0.9.1, `workers/engine/fsdp/transformer_impl.py` and `workers/engine_workers.py`.
    """

    logits_in_update: int = 2
    """Bfloat16 tensors of all logits at the head's backward, without those of an entropy."""
    logits_in_scoring: int = 1
    """The same without gradient, while an entropy is computed."""
    repacks_logits: bool = False
    """Padding is cut out of the logits by a copy, once an entropy is computed."""
    entropy_chunk: int = 2048
    """Rows of a chunk (`entropy_from_logits_chunk_size`)."""
    counts_adapters: bool = False
    """LoRA counts with its activations, and the reference is the actor, loaded, without adapters."""
    sends_adapters: bool = False
    """Only adapters go to the rollout engine, which has loaded the other weights."""
    update_bucket_bytes: int = 0
    """The buffer in which weights go to the rollout engine; 0 where that instant is not counted."""
    keeps_reference_root: bool = False
    """What a reference has outside of its layers stays gathered after its pass."""
    copied_reference_bytes: int = 0
    """Bytes of a weight of a reference whose shards FSDP 1 has on the host and copies; 0 otherwise."""
    keeps_actor_root: bool = False
    """The same of the actor, from its old log-probabilities to its update."""
    reward: RewardEngine | None = None
    expert_model_parallel_size: int = 1
    """Megatron's, of the experts of a layer."""
    expert_tensor_parallel_size: int = 1

    @property
    def reward_sleeps(self) -> bool:
        """Whether no engine of a reward model is awake while others compute."""
        return self.reward is None or self.reward.free_cache_engine


@dataclass(frozen=True, kw_only=True)
class VerlJob:
    """One job, spelled as verl spells it where it has the key."""

    model: str
    """A built-in name, a local path or a hub id."""
    n_gpus: int
    """nnodes x n_gpus_per_node."""
    strategy: Strategy
    actor: TrainedModel
    critic: TrainedModel | None
    """None for GRPO and the other estimators without one."""
    has_reference: bool
    """A KL term, in the loss or in the reward."""
    ref_param_offload: bool
    log_prob_max_tokens: int
    """Tokens of one forward without gradient on one GPU."""
    fsdp_size: int
    """GPUs per copy of the weights, over which it is sharded."""
    reshard_after_forward: bool
    """True is ZeRO-3; false keeps the gathered weights from forward to backward, as ZeRO-2 does."""
    tensor_model_parallel_size: int
    """Megatron's, of training; 1 for FSDP."""
    pipeline_model_parallel_size: int
    use_fused_kernels: bool
    """Log-probabilities without the logits of all positions."""
    lora_rank: int
    """0 for full fine-tuning."""
    lora_target_modules: tuple[str, ...]
    max_prompt_length: int
    max_response_length: int
    train_batch_size: int
    rollout_n: int
    rollout_tensor_parallel_size: int
    engine: RolloutEngine = VLLM
    gpu_memory_utilization: float
    """Fraction of the card that the rollout engine uses while it is awake."""
    entropy: EntropySettings = EntropySettings()
    free_cache_engine: bool
    """The engine sleeps and releases its pool while the model trains."""
    workers: Workers = field(default=Workers(), repr=False)
